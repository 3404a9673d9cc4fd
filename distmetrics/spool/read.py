"""Reading spools back: each rank's windows, keys and watermarks, as far as lines are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distmetrics import reductions
from distmetrics.errors import DistmetricsError
from distmetrics.registry import Metric
from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.codec import decode_windows
from distmetrics.spool.journal import segments
from distmetrics.spool.lines import read_lines
from distmetrics.window.stream import Window


@dataclass
class SpooledStream:
    """What a rank has spooled of a stream.

    Attributes:
        every: steps of a window; None: one window until a flush.
        table: the rank's keys.
        windows: the closed windows, by label.
        totals: the running totals with which the attempt began, as plain values.
        holes: pairs of labels: windows above the first, through the second, may have been lost.
    """

    every: int | None
    table: KeyTable = field(default_factory=KeyTable)
    windows: dict[int, Window] = field(default_factory=dict)
    totals: Mapping[str, Any] = field(default_factory=dict)
    holes: list[tuple[int, int]] = field(default_factory=list)
    last: int | None = None

    def follow(self, last: int, within: bool) -> None:
        """Take note of the last label before a line.

        Args:
            last: the label.
            within: whether the line follows on others of its segment, or on damaged ones; else what
                is missing was committed and deleted, as that happens to whole segments.
        """
        if within and self.last is not None and last > self.last:
            self.holes.append((self.last, last))
        self.last = last if self.last is None else max(self.last, last)


@dataclass
class SpooledRank:
    """What a rank has spooled in an attempt.

    Attributes:
        streams: its streams, by name.
        watermarks: for each stream the label below which the rank has added all there is; also of
            streams that it has not made.
        damaged: whether a line was torn or damaged.
    """

    streams: dict[str, SpooledStream] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    damaged: bool = False

    def lacks(self, name: str, label: int) -> bool:
        """Whether a window may have had more than what was read."""
        if self.watermarks.get(name, 0) <= label:
            return True
        stream = self.streams.get(name)
        return stream is not None and any(first < label <= last for first, last in stream.holes)

    def passed(self, name: str, written: int) -> int:
        """The label below which all there is was read, or is at most `written`."""
        mark = self.watermarks.get(name, 0)
        stream = self.streams.get(name)
        holes = [] if stream is None else stream.holes
        return min([mark, *(max(first, written) + 1 for first, last in holes if last > written)])


def read_spool(folder: Path, run: str = "") -> dict[int, dict[int, SpooledRank]]:
    """What a run has in a spool's folder: attempt to rank to what that rank has spooled.

    Lines are data: nothing in them is executed. Those that are torn or damaged are left out, and
    what they may have held is noted.
    """
    found: dict[int, dict[int, SpooledRank]] = {}
    for rank, attempt, path in segments(folder, run):
        spooled = found.setdefault(attempt, {}).setdefault(rank, SpooledRank())
        for line in read_lines(path):
            try:
                whole = line is not None and _take(spooled, line)
            except (KeyError, IndexError, TypeError, ValueError, DistmetricsError):
                whole = False
            spooled.damaged |= not whole
    return found


def _take(rank: SpooledRank, line: Mapping[str, Any]) -> bool:
    """Take in a line; whether it could be."""
    kind = line["kind"]
    if kind == "watermarks":
        for name, last in line["last"].items():
            rank.streams[name].follow(last, within=True)
        for name, mark in line["marks"].items():
            rank.watermarks[name] = max(rank.watermarks.get(name, 0), mark)
        return True
    if kind == "stream":
        stream = rank.streams.setdefault(line["stream"], SpooledStream(line["every"]))
        stream.totals = line["totals"]
        stream.follow(line["last"], rank.damaged)
        return True
    stream = rank.streams[line["stream"]]
    if kind == "keys":
        if line["first"] > len(stream.table):
            return False
        for name, declaration in line["keys"]:
            add_declared(stream.table, name, declaration)
        return True
    windows = decode_windows(line, stream.table)
    stream.follow(line["after"], within=True)
    stream.windows |= windows
    stream.last = max(windows, default=-1) if stream.last is None else max(stream.last, *windows)
    return bool(kind == "windows")


def add_declared(table: KeyTable, name: str, declaration: Mapping[str, Any]) -> None:
    """Add a key to a table as it was declared."""
    reduction = reductions.make(declaration["reduction"], **declaration["params"])
    metric = Metric(
        name,
        reduction,
        nonfinite=declaration["nonfinite"],
        replicated_over=tuple(declaration["replicated_over"]),
    )
    table.add(name, metric, reduction)
