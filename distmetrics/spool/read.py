"""Reading spools back: each rank's windows, keys and watermarks, as far as lines are whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distmetrics import reductions
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
    """

    every: int | None
    table: KeyTable = field(default_factory=KeyTable)
    windows: dict[int, Window] = field(default_factory=dict)


@dataclass
class SpooledRank:
    """What a rank has spooled in an attempt.

    Attributes:
        streams: its streams, by name.
        watermarks: for each stream the label below which the rank has added all there is; also of
            streams that it has not made.
    """

    streams: dict[str, SpooledStream] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)


def read_spool(folder: Path) -> dict[int, dict[int, SpooledRank]]:
    """What is in a spool's folder: attempt to rank to what that rank has spooled.

    Lines are data: nothing in them is executed. A torn or damaged line ends its segment.
    """
    found: dict[int, dict[int, SpooledRank]] = {}
    for rank, attempt, path in segments(folder):
        spooled = found.setdefault(attempt, {}).setdefault(rank, SpooledRank())
        for _, line in read_lines(path):
            _take(spooled, line)
    return found


def _take(rank: SpooledRank, line: Mapping[str, Any]) -> None:
    kind = line["kind"]
    if kind == "stream":
        rank.streams.setdefault(line["stream"], SpooledStream(line["every"]))
    elif kind == "keys":
        stream = rank.streams[line["stream"]]
        for name, declaration in line["keys"]:
            add_declared(stream.table, name, declaration)
    elif kind == "windows":
        stream = rank.streams[line["stream"]]
        stream.windows |= decode_windows(line, stream.table)
    elif kind == "watermarks":
        for name, mark in line["marks"].items():
            rank.watermarks[name] = max(rank.watermarks.get(name, 0), mark)


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
