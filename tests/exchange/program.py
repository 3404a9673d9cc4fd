"""What the ranks of a schedule do, as plain data that Hypothesis shrinks and a failure prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

EDGES = [0.0, 2.0**36, 2.0**38, 2.0**39]
"""Ends of the bins of the keys that are histograms."""


class Log(NamedTuple):
    """Log keys to a stream; without keys a promise of nothing below the step."""

    stream: str
    step: int | None
    keys: tuple[str, ...]


class Burst(NamedTuple):
    """Log one key to each of `count` steps."""

    stream: str
    start: int
    count: int


class Flush(NamedTuple):
    """Close windows; with `wait` on all ranks."""

    stream: str
    step: int | None
    wait: bool = False


class Reduce(NamedTuple):
    """A synchronous reduction, on all ranks."""

    keys: tuple[str, ...]


class Close(NamedTuple):
    """The rank logs nothing more."""


Op = Log | Burst | Flush | Reduce | Close


@dataclass(frozen=True)
class Schedule:
    """A run of several ranks.

    Attributes:
        programs: for each rank what its training does, in order.
        every: of the logger.
        children: of each child.
        turns: who acts next, one byte for each act; then all in turn.
        most: windows that are reduced in one round, at most.
        clashing: children that are made with another `every` on odd ranks.
        patient: calls that need all ranks are waited for; else a rank may give one up.
        busy: while a thread of a rank waits for all ranks, others may log.
    """

    programs: tuple[tuple[Op, ...], ...]
    every: int | None = 1
    children: tuple[tuple[str, int | None], ...] = ()
    turns: bytes = b""
    most: int = 64
    clashing: tuple[str, ...] = ()
    patient: bool = True
    busy: bool = False

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return len(self.programs)

    def every_of(self, stream: str, rank: int) -> int | None:
        """The `every` with which a rank makes a stream."""
        every = dict(self.children)[stream] if stream else self.every
        if stream in self.clashing and rank % 2:
            return 7 if every is None else every + 1
        return every
