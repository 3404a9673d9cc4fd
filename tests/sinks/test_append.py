"""A file that takes chunks whole or not at all."""

from __future__ import annotations

import os
import resource
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distmetrics.sinks.append import AppendFile


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """A disk that is full once a file of this process has `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_chunks_follow_each_other_after_the_header(tmp_path: Path) -> None:
    """The header stands once, before the first chunk, also when the file is opened again."""
    for chunk in (b"one\n", b"two\n"):
        file = AppendFile(tmp_path / "new" / "folder" / "log", header=b"head\n")
        file.append(chunk)
        file.close()
    assert file.path.read_bytes() == b"head\none\ntwo\n"


def test_no_file_before_the_first_chunk(tmp_path: Path) -> None:
    """Making the object makes no file."""
    file = AppendFile(tmp_path / "log")
    file.sync()
    file.close()
    assert not file.path.exists()


def test_full_disk_leaves_nothing_of_the_chunk(tmp_path: Path) -> None:
    """A chunk that fits only in part is not there at all, and the next one that fits is."""
    file = AppendFile(tmp_path / "log")
    file.append(b"a" * 90)
    with file_size_limit(100):
        with pytest.raises(OSError, match="too large"):
            file.append(b"b" * 20)
        assert file.path.read_bytes() == b"a" * 90
        file.append(b"c" * 5)
    file.append(b"d" * 20)
    assert file.path.read_bytes() == b"a" * 90 + b"c" * 5 + b"d" * 20


def test_torn_bytes_are_cut_before_the_next_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where even cutting fails, the next append cuts first, or fails and writes nothing."""
    file = AppendFile(tmp_path / "log")
    file.append(b"good")
    real = os.ftruncate

    def refuse(file: int, size: int) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(os, "ftruncate", refuse)
    with file_size_limit(6), pytest.raises(OSError, match="too large"):
        file.append(b"torn")
    assert file.path.read_bytes() == b"goodto"
    with pytest.raises(OSError, match="gone"):
        file.append(b"more")
    monkeypatch.setattr(os, "ftruncate", real)
    file.append(b"more")
    assert file.path.read_bytes() == b"goodmore"


def test_deleted_folder_comes_back(tmp_path: Path) -> None:
    """After the file's folder was deleted, the next chunk begins a new file with its header."""
    file = AppendFile(tmp_path / "run" / "log", header=b"head\n")
    file.append(b"lost\n")
    shutil.rmtree(tmp_path / "run")
    file.append(b"kept\n")
    file.sync()
    assert file.path.read_bytes() == b"head\nkept\n"


def test_closed_file_takes_no_more(tmp_path: Path) -> None:
    """After close, append raises; closing again does nothing."""
    file = AppendFile(tmp_path / "log")
    file.append(b"x")
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.append(b"y")


def test_file_mode_follows_the_umask(tmp_path: Path) -> None:
    """A new file may be read by those whom the umask lets."""
    before = os.umask(0o027)
    try:
        file = AppendFile(tmp_path / "log")
        file.append(b"x")
    finally:
        os.umask(before)
    assert file.path.stat().st_mode & 0o777 == 0o640
