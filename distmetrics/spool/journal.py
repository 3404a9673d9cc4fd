"""One rank's spool: closed windows on disk from before they are offered until they are committed.

A spool is a sequence of segments. Each begins with what is needed to read it (streams, keys,
watermarks), so that a segment can be deleted as soon as rank 0 has committed all its windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from distmetrics.exchange.schema import declare
from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.codec import decode_windows, encode_windows
from distmetrics.spool.lines import from_line, to_line
from distmetrics.window.stream import Window

SEGMENT = 1 << 22
"""Bytes of a segment, from which on a new one is begun."""
BATCH = 64
"""Windows in one line, at most."""
SUFFIX = ".spool"


class Place(NamedTuple):
    """Where a line with windows lies."""

    segment: Path
    offset: int


@dataclass
class _Segment:
    """A file of the spool and the highest label that it holds of each stream."""

    path: Path
    size: int = 0
    labels: dict[str, int] = field(default_factory=dict)

    def covered(self, positions: Mapping[str, int]) -> bool:
        """Whether all its windows have been committed."""
        return all(label <= positions.get(name, -1) for name, label in self.labels.items())


class Journal:
    """Writes one rank's spool. Used from one thread at a time.

    Args:
        folder: the spool's folder; made where it does not exist.
        rank: this rank.
        attempt: of the run.

    Raises:
        OSError: the folder or the first segment cannot be made.
    """

    def __init__(self, folder: Path, rank: int, attempt: int = 0) -> None:
        self._folder = folder
        self._stem = f"rank{rank:05d}.{attempt:04d}"
        self._streams: dict[str, tuple[int | None, KeyTable]] = {}
        self._declared: dict[str, int] = {}
        self._marks: dict[str, int] = {}
        self._segments: list[_Segment] = []
        self._number = 0
        self._file: BinaryIO | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._begin()

    def add_stream(self, name: str, every: int | None, table: KeyTable) -> None:
        """Declare a stream, once, before its first window."""
        if name not in self._streams:
            self._streams[name] = (every, table)
            self._write({"kind": "stream", "stream": name, "every": every})
            self._declared[name] = 0

    def add(self, stream: str, windows: Mapping[int, Window]) -> dict[int, Place]:
        """Append sealed windows; where each can be read again."""
        self._declare(stream)
        places: dict[int, Place] = {}
        labels = sorted(windows)
        for start in range(0, len(labels), BATCH):
            part = {label: windows[label] for label in labels[start : start + BATCH]}
            place = self._write(encode_windows(stream, part))
            places |= dict.fromkeys(part, place)
            segment = self._segments[-1]
            segment.labels[stream] = max(segment.labels.get(stream, -1), *part)
        return places

    def mark(self, watermarks: Mapping[str, int]) -> None:
        """Append the watermarks that have risen: what the rank will add nothing to any more."""
        risen = {name: mark for name, mark in watermarks.items() if self._marks.get(name) != mark}
        if risen:
            self._marks |= risen
            self._write({"kind": "watermarks", "marks": risen})

    def load(self, place: Place, stream: str) -> dict[int, Window]:
        """The windows of a line."""
        with place.segment.open("rb") as file:
            file.seek(place.offset)
            line = from_line(file.readline())
        if line is None:
            raise OSError(f"the spool line at {place.offset} of {place.segment.name} is damaged")
        return decode_windows(line, self._streams[stream][1])

    def release(self, positions: Mapping[str, int]) -> None:
        """Delete the segments whose windows have all been committed."""
        if self._segments[-1].size > SEGMENT:
            self._begin()
        kept = []
        for segment in self._segments[:-1]:
            if segment.covered(positions):
                segment.path.unlink(missing_ok=True)
            else:
                kept.append(segment)
        self._segments = [*kept, self._segments[-1]]

    def close(self, committed: bool) -> None:
        """Close the spool; delete it where everything has been committed."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if committed:
            for segment in self._segments:
                segment.path.unlink(missing_ok=True)

    def _declare(self, stream: str) -> None:
        """Append the keys that the stream's table has gained."""
        table = self._streams[stream][1]
        keys = table.keys[self._declared[stream] :]
        if keys:
            self._write(
                {
                    "kind": "keys",
                    "stream": stream,
                    "keys": [(key.name, declare(key)) for key in keys],
                }
            )
            self._declared[stream] += len(keys)

    def _begin(self) -> None:
        """Begin a segment with what is needed to read it."""
        if self._file is not None:
            self._file.close()
        path = self._folder / f"{self._stem}.{self._number:06d}{SUFFIX}"
        self._number += 1
        self._file = path.open("xb", buffering=0)
        self._segments.append(_Segment(path))
        for name, (every, _) in self._streams.items():
            self._write({"kind": "stream", "stream": name, "every": every})
            self._declared[name] = 0
            self._declare(name)
        if self._marks:
            self._write({"kind": "watermarks", "marks": self._marks})

    def _write(self, value: dict[str, Any]) -> Place:
        """Append a line and hand it to the operating system, so that it outlives the process."""
        assert self._file is not None
        segment = self._segments[-1]
        line = to_line(value)
        written = 0
        try:
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(segment.size)  # no torn line before the last
            self._file.seek(segment.size)
            raise
        place = Place(segment.path, segment.size)
        segment.size += len(line)
        return place


def segments(folder: Path) -> Iterator[tuple[int, int, Path]]:
    """The segments in a spool's folder: rank, attempt, path; in the order they were written."""
    for path in sorted(folder.glob(f"rank*{SUFFIX}")):
        rank, attempt, _ = path.name[len("rank") : -len(SUFFIX)].split(".")
        yield int(rank), int(attempt), path
