"""Records as lines of strict JSON: the exact, local copy of all that was logged."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from distmetrics.errors import InvalidValue, in_words
from distmetrics.record import Record
from distmetrics.sinks.append import AppendFile
from distmetrics.sinks.contract import Run

_LOG = logging.getLogger("distmetrics")
_BLOCK = 1 << 16
_FIRST_FIELD = b'{"step": '


class JsonlSink:
    """One record a line, as `Record.to_json` gives it.

    Each call hands its lines to the operating system in one piece, all of them or none: there is
    never a torn line but the last, and that only where the process died in the middle of a write.
    A later run cuts such a torn line off before it goes on. `sync` waits for the disk.

    Args:
        path: the file; by default ``metrics.jsonl`` in the run directory.

    Example:
        >>> import tempfile
        >>> from distmetrics.record import Record
        >>> folder = tempfile.TemporaryDirectory()
        >>> sink = JsonlSink(f"{folder.name}/metrics.jsonl")
        >>> sink.open(Run(directory=None, name="example", registry=None))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        >>> sink.close()
        >>> Record.from_json(sink.path.read_bytes()).values
        {'loss': 0.25}
        >>> folder.cleanup()
    """

    name = "jsonl"
    direct = True

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._file: AppendFile | None = None
        self._lacking: set[str] = set()

    @property
    def needs_directory(self) -> bool:
        """Whether the file's place follows from the run directory."""
        return self._path is None

    @property
    def path(self) -> Path:
        """The file.

        Raises:
            InvalidValue: no path was given and the sink is not open.
        """
        if self._file is not None:
            return self._file.path
        if self._path is None:
            raise InvalidValue("this JsonlSink has no path yet: give it one, or open it with a run")
        return self._path

    @property
    def handle(self) -> Path:
        """The file's path."""
        return self.path

    def open(self, run: Run) -> None:
        """Open the file, and mend its last line if a crash tore it.

        Raises:
            InvalidValue: neither the sink nor the run has a place for the file.
            OSError: the file cannot be opened.
        """
        path = self._path
        if path is None:
            if run.directory is None:
                raise InvalidValue("JsonlSink has no file: give it a path, or the logger a run_dir")
            path = run.directory / "metrics.jsonl"
        file = AppendFile(path)
        file.open()
        with path.open("r+b") as content:
            _mend_last_line(content)
        self._file = file

    def write(self, record: Record) -> None:
        """Append one line."""
        self.write_many((record,))

    def write_many(self, records: Sequence[Record]) -> None:
        """Append one line a record, all of them or, with an `OSError`, none.

        A value that JSON cannot hold costs its key alone, which is told once.
        """
        lines = "".join(map(self._line, records))
        # UTF-8 has no lone surrogates; written as \udxxx they are escapes of JSON.
        self._opened().append(lines.encode("utf-8", "backslashreplace"))

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        self._opened().sync()

    def close(self) -> None:
        """Put all lines on the disk and close the file."""
        if self._file is not None:
            try:
                self._file.sync()
            finally:
                self._file.close()

    def _line(self, record: Record) -> str:
        """The line of a record, without what cannot be written."""
        try:
            return f"{record.to_json()}\n"
        except (TypeError, ValueError) as error:  # records that come after it must not wait for it
            missing = [key for key in record.values if not _is_writable(record, key)]
            if not self._lacking.issuperset(missing):
                self._lacking.update(missing)
                _LOG.warning(
                    "the line of step %d in metrics.jsonl lacks %s: %s",
                    record.step,
                    ", ".join(map(repr, missing)),
                    in_words(error),
                )
            values = {key: value for key, value in record.values.items() if key not in missing}
            return f"{replace(record, values=values).to_json()}\n"

    def _opened(self) -> AppendFile:
        if self._file is None:
            raise InvalidValue("this JsonlSink is not open; call open(run) before it is used")
        return self._file


def _is_writable(record: Record, key: str) -> bool:
    try:
        replace(record, values={key: record.values[key]}).to_json()
    except (TypeError, ValueError):
        return False
    return True


def _mend_last_line(content: BinaryIO) -> None:
    """End the file with a whole line.

    A whole record that lacks only its line feed gets one. A piece of a record is cut off, or its
    line would be no JSON; so are zeros, which a power failure leaves on some file systems. Any
    other text is not ours to cut: it gets a line feed.
    """
    size = content.seek(0, os.SEEK_END)
    start = _last_line_start(content, size)
    content.seek(start)
    tail = content.read().rstrip(b"\0")
    if start == size or _is_record(tail):
        keep, ending = start + len(tail), b"\n" if tail else b""
    elif tail.startswith(_FIRST_FIELD) or _FIRST_FIELD.startswith(tail):
        keep, ending = start, b""
    else:
        keep, ending = size, b"\n"
    content.truncate(keep)
    content.seek(keep)
    content.write(ending)


def _last_line_start(content: BinaryIO, size: int) -> int:
    """Where the text after the last line feed begins."""
    end = size
    while end > 0:
        start = max(0, end - _BLOCK)
        content.seek(start)
        found = content.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _is_record(line: bytes) -> bool:
    try:
        Record.from_json(line)
    except ValueError:  # UnicodeDecodeError is one too
        return False
    return True
