"""A file to which chunks are appended whole or not at all, also when the disk is full."""

from __future__ import annotations

import os
from pathlib import Path


class AppendFile:
    r"""A file that grows by whole chunks: after an error none of the chunk's bytes are in it.

    Every chunk is handed to the operating system before `append` returns, so that a killed process
    loses nothing; a machine that loses power may lose what `sync` had not been called for. There
    may be one writer only. Should the file be deleted meanwhile, the next chunk begins a new one in
    its place.

    Args:
        path: the file; it and its folders are made where they are missing.
        header: what a new or empty file begins with, written together with its first chunk.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = AppendFile(f"{folder.name}/runs/log.txt", header=b"# log\n")
        >>> file.append(b"first\n")
        >>> file.close()
        >>> file.path.read_bytes()
        b'# log\nfirst\n'
        >>> folder.cleanup()
    """

    def __init__(self, path: str | os.PathLike[str], header: bytes = b"") -> None:
        self.path = Path(path)
        self._header = header
        self._file = -1
        self._closed = False
        self._torn_at: int | None = None  # where the bytes begin that an error left and none cut
        self._listed = False  # whether the folder's entry of the file is known to be durable

    def open(self) -> None:
        """Open the file, or do nothing where it is open.

        Raises:
            ValueError: it was closed.
            OSError: the operating system refused.
        """
        if self._closed:
            raise ValueError(f"{self.path} was closed and takes no more")
        if self._file >= 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(self.path, flags, 0o666)
        self._listed = False

    def append(self, data: bytes) -> None:
        """Append `data` in one piece.

        Raises:
            ValueError: the file was closed.
            OSError: the operating system refused; the file is as it was before the call.
        """
        self.open()
        size = self._good_size()
        rest = memoryview(self._header + data if size == 0 else data)
        try:
            while rest:  # a signal or a full disk may stop a write half-way
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            self._cut(size)
            raise

    def sync(self) -> None:
        """Wait until all that was appended is on the disk."""
        if self._file < 0:
            return
        os.fsync(self._file)
        if not self._listed:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
            self._listed = True

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        self._closed = True
        self._release()

    def _good_size(self) -> int:
        """The file's length without what an error left; opens a new file for a deleted one."""
        status = os.fstat(self._file)
        if status.st_nlink == 0:
            self._release()
            self._torn_at = None
            self.open()
            status = os.fstat(self._file)
        if self._torn_at is not None:
            os.ftruncate(self._file, self._torn_at)
            size, self._torn_at = self._torn_at, None
            return size
        return status.st_size

    def _cut(self, size: int) -> None:
        try:
            os.ftruncate(self._file, size)
        except OSError:
            self._torn_at = size  # the next append cuts it, or fails and leaves it for the next

    def _release(self) -> None:
        if self._file >= 0:
            file, self._file = self._file, -1
            os.close(file)
