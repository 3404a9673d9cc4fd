"""One rank's spool: closed windows on disk from before they are offered until they are committed.

A spool is a sequence of segments. Each begins with what is needed to read it (streams, keys,
watermarks), so that a segment can be deleted as soon as rank 0 has committed all its windows.

Every line that tells of a stream also tells the label of the last window before it, so that a
reader sees where a damaged line has taken windows away.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from distmetrics.exchange.schema import declare
from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.codec import decode_windows, encode_windows
from distmetrics.spool.lines import from_line, to_line
from distmetrics.window.stream import Window

SEGMENT = 1 << 22
"""Bytes of a segment, from which on a new one is begun."""
SHARE = 32
"""A long spool has segments of this part of it, so that few files are open."""
BATCH = 64
"""Windows in one line, at most."""
SUFFIX = ".spool"
_NAME = re.compile(r"(?P<run>[0-9a-z]*)\.rank(?P<rank>\d+)\.(?P<attempt>\d+)\.\d+\.spool")


@dataclass(eq=False)
class _Segment:
    """A file of the spool and the highest label that it holds of each stream."""

    path: Path
    file: BinaryIO
    size: int = 0
    labels: dict[str, int] = field(default_factory=dict)

    def covered(self, positions: Mapping[str, int]) -> bool:
        """Whether all its windows have been committed."""
        return all(label <= positions.get(name, -1) for name, label in self.labels.items())

    def delete(self) -> None:
        self.file.close()
        self.path.unlink(missing_ok=True)


class Place(NamedTuple):
    """Where a line with windows lies."""

    segment: _Segment
    offset: int
    size: int


@dataclass
class _Stream:
    """What the segments say of a stream."""

    every: int | None
    table: KeyTable
    totals: Mapping[str, Any]
    declared: int = 0
    last: int = -1
    watermark: int | None = None


class Journal:
    """Writes one rank's spool. Used from one thread at a time.

    Args:
        folder: the spool's folder; made where it does not exist.
        rank: this rank.
        attempt: of the run.
        run: the run's own name, so that several may share a folder.

    Raises:
        OSError: the folder or the first segment cannot be made.
    """

    def __init__(self, folder: Path, rank: int, attempt: int = 0, run: str = "") -> None:
        self.folder = folder
        self._stem = f"{run}.rank{rank:05d}.{attempt:04d}"
        self._streams: dict[str, _Stream] = {}
        self._segments: list[_Segment] = []
        self._number = 0
        self._begin()

    def add_stream(
        self, name: str, every: int | None, table: KeyTable, totals: Mapping[str, Any]
    ) -> None:
        """Declare a stream before its first window, and again where its totals are others.

        Args:
            name: the stream's.
            every: steps of a window; None: one window until a flush.
            table: the rank's keys.
            totals: the running totals with which this attempt began, as plain values.
        """
        stream = self._streams.get(name)
        if stream is None:
            stream = _Stream(every, table, totals)
        elif stream.totals is totals:
            return
        self._write(_stream_line(name, replace(stream, totals=totals)))
        stream.totals = totals
        self._streams[name] = stream

    def add(self, name: str, windows: Mapping[int, Window]) -> dict[int, Place]:
        """Append sealed windows, one to `BATCH`, in order; where each can be read again.

        Raises:
            OSError: the disk does not take them; the file is as it was before.
        """
        self._declare(name)
        stream = self._streams[name]
        place = self._write(encode_windows(name, windows) | {"after": stream.last})
        stream.last = max(stream.last, *windows)
        place.segment.labels[name] = stream.last
        return dict.fromkeys(windows, place)

    def mark(self, watermarks: Mapping[str, int]) -> None:
        """Append the watermarks that have risen: what the rank will add nothing to any more."""
        risen = {
            name: mark
            for name, mark in watermarks.items()
            if name not in self._streams or self._streams[name].watermark != mark
        }
        if risen:
            self._write(self._marks_line(risen))
            for name, mark in risen.items():
                if name in self._streams:
                    self._streams[name].watermark = mark

    def load(self, place: Place, name: str) -> dict[int, Window]:
        """The windows of a line; also where the file has been deleted meanwhile.

        Raises:
            OSError: the line is damaged, or cannot be read.
        """
        line = from_line(os.pread(place.segment.file.fileno(), place.size, place.offset))
        if line is None:
            raise OSError(f"the spool's line at {place.offset} of {place.segment.path} is damaged")
        return decode_windows(line, self._streams[name].table)

    def release(self, positions: Mapping[str, int]) -> None:
        """Delete the segments whose windows have all been committed.

        Raises:
            OSError: a segment cannot be deleted, or the next one cannot be begun.
        """
        held = sum(segment.size for segment in self._segments)
        if self._segments[-1].size > max(SEGMENT, held // SHARE):
            self._begin()
        for segment in self._segments[:-1]:
            if segment.covered(positions):
                self._segments.remove(segment)
                segment.delete()

    @property
    def deleted(self) -> bool:
        """Whether somebody has deleted the file that is written to."""
        return os.fstat(self._segments[-1].file.fileno()).st_nlink == 0

    def begin_anew(self) -> None:
        """Go on in a new segment, in a new folder where the old one is gone.

        Raises:
            OSError: it cannot be made.
        """
        self._begin()

    def close(self, committed: bool) -> None:
        """Close the spool; delete it where everything has been committed."""
        for segment in self._segments:
            if committed:
                segment.delete()
            else:
                segment.file.close()
        if committed:
            with contextlib.suppress(OSError):  # other ranks have theirs in it still
                self.folder.rmdir()

    def _declare(self, name: str) -> None:
        """Append the keys that the stream's table has gained."""
        stream = self._streams[name]
        keys = stream.table.keys[stream.declared :]
        if keys:
            said = [(key.name, declare(key)) for key in keys]
            self._write({"kind": "keys", "stream": name, "first": stream.declared, "keys": said})
            stream.declared += len(keys)

    def _begin(self) -> None:
        """Begin a segment with what is needed to read it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self._stem}.{self._number:06d}{SUFFIX}"
        segment = _Segment(path, path.open("x+b", buffering=0))
        self._number += 1
        self._segments.append(segment)
        declared = {name: stream.declared for name, stream in self._streams.items()}
        try:
            for name, stream in self._streams.items():
                stream.declared = 0
                self._write(_stream_line(name, stream))
                self._declare(name)
            marks = {n: s.watermark for n, s in self._streams.items() if s.watermark is not None}
            if marks:
                self._write(self._marks_line(marks))
        except OSError:
            self._segments.remove(segment)  # the one before goes on
            segment.delete()
            for name, count in declared.items():
                self._streams[name].declared = count
            raise

    def _marks_line(self, marks: Mapping[str, int]) -> dict[str, Any]:
        last = {name: self._streams[name].last for name in marks if name in self._streams}
        return {"kind": "watermarks", "marks": dict(marks), "last": last}

    def _write(self, value: dict[str, Any]) -> Place:
        """Append a line and hand it to the operating system, so that it outlives the process."""
        segment = self._segments[-1]
        line = to_line(value)
        segment.file.seek(segment.size)
        written = 0
        try:
            while written < len(line):
                written += segment.file.write(line[written:])
        except OSError:
            segment.file.truncate(segment.size)  # no torn line before the last
            raise
        place = Place(segment, segment.size, len(line))
        segment.size += len(line)
        return place


def _stream_line(name: str, stream: _Stream) -> dict[str, Any]:
    """What a reader has to know of a stream."""
    return {
        "kind": "stream",
        "stream": name,
        "every": stream.every,
        "totals": dict(stream.totals),
        "last": stream.last,
    }


def segments(folder: Path, run: str = "") -> Iterator[tuple[int, int, Path]]:
    """The segments of a run in a spool's folder: rank, attempt, path; as they were written."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        match = _NAME.fullmatch(path.name)
        if match is not None and match["run"] == run:
            yield int(match["rank"]), int(match["attempt"]), path
