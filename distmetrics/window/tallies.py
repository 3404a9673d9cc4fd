"""One rank's tallies of a window: how many contributions fell into which bucket, kept sparse.

A tally is a map from buckets to counts that merges by addition. All tallies of a window share two
arrays, so that the memory of a window follows from the buckets that were met and from nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]

_BITS = 24
BUCKETS = 1 << _BITS
"""Buckets are below it."""
_DENSE = 4
"""Values for each bucket in their range from which on counting beats sorting, inverse."""


class BucketRange(NamedTuple):
    """The buckets ``[lo, hi)`` of a tally, in which all that are in use lie."""

    lo: int
    hi: int

    def union(self, other: BucketRange) -> BucketRange:
        """The span of both; an empty one adds nothing."""
        if other.hi <= other.lo:
            return self
        if self.hi <= self.lo:
            return other
        return BucketRange(min(self.lo, other.lo), max(self.hi, other.hi))


NO_BUCKETS = BucketRange(BUCKETS, 0)
"""The span of a tally that is not in use."""


@dataclass
class Tallies:
    """Counts by tally and bucket.

    Attributes:
        cells: int64, rising, each once: ``tally << 24 | bucket``.
        counts: int64, as long.
    """

    cells: Int64Array
    counts: Int64Array

    @classmethod
    def empty(cls) -> Tallies:
        """The identity: nothing was counted."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @classmethod
    def counted(cls, tallies: Int64Array, buckets: Int64Array) -> Tallies:
        """One for each pair of a tally and a bucket; pairs may come again."""
        cells = (tallies << _BITS) | buckets
        if not cells.size:
            return cls.empty()
        lo, hi = int(cells.min()), int(cells.max()) + 1
        if hi - lo <= _DENSE * cells.size:
            counts = np.bincount(cells - lo)
            used = np.flatnonzero(counts)
            return cls(used + lo, counts[used])
        return cls(*np.unique(cells, return_counts=True))

    @classmethod
    def of_one(cls, tally: int, buckets: Int64Array, counts: Int64Array) -> Tallies:
        """One tally's counts; buckets may come again, in any order."""
        if not buckets.size:
            return cls.empty()
        order = np.argsort(buckets, kind="stable")
        cells = (tally << _BITS) | buckets[order]
        return cls(*_grouped(cells, counts[order]))

    @classmethod
    def of(cls, counts: Mapping[int, Mapping[int, int]]) -> Tallies:
        """The tallies with these counts: by tally, then by bucket."""
        pairs = [
            (tally << _BITS | bucket, count)
            for tally, buckets in counts.items()
            for bucket, count in buckets.items()
        ]
        pairs.sort()
        return cls(
            np.array([cell for cell, _ in pairs], np.int64),
            np.array([count for _, count in pairs], np.int64),
        )

    def __bool__(self) -> bool:
        return bool(self.cells.size)

    def part(self, first: int, last: int) -> Tallies:
        """The tallies from `first` up to, not with, `last`, counted from 0 again."""
        start, stop = np.searchsorted(self.cells, (first << _BITS, last << _BITS))
        return Tallies(self.cells[start:stop] - (first << _BITS), self.counts[start:stop])

    def spans(self) -> Iterator[tuple[int, BucketRange]]:
        """Each tally that is in use, and its span."""
        tallies = self.cells >> _BITS
        starts = np.flatnonzero(np.diff(tallies, prepend=-1))
        stops = np.append(starts[1:], len(tallies)) - 1
        buckets = self.cells & (BUCKETS - 1)
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
            yield int(tallies[start]), BucketRange(int(buckets[start]), int(buckets[stop]) + 1)

    def places(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Tally, bucket and count of each cell."""
        return self.cells >> _BITS, self.cells & (BUCKETS - 1), self.counts


class Dense:
    """Tallies side by side in one array, as messages hold them: within their spans, zeros too.

    Args:
        spans: of each tally.
    """

    def __init__(self, spans: Sequence[BucketRange]) -> None:
        self.spans = list(spans)
        sizes = [max(0, span.hi - span.lo) for span in spans]
        self.ends = np.cumsum([0, *sizes], dtype=np.int64)
        self._first = self.ends[:-1] - np.array([span.lo for span in spans], np.int64)

    @property
    def width(self) -> int:
        """The number of buckets in all spans."""
        return int(self.ends[-1])

    def fill(self, array: Int64Array, tallies: Tallies, to: Int64Array) -> None:
        """Set the counts of some tallies in an array.

        Args:
            array: int64, of `width` zeros.
            tallies: the counts.
            to: for each tally its place among the spans, -1 for none.
        """
        mine, buckets, counts = tallies.places()
        theirs = to[mine]
        there = theirs >= 0
        array[self._first[theirs[there]] + buckets[there]] = counts[there]

    def part(self, array: Int64Array, first: int, count: int) -> list[dict[int, int]]:
        """The counts of some tallies, by bucket."""
        found = []
        for tally in range(first, first + count):
            counts = array[self.ends[tally] : self.ends[tally + 1]]
            used = np.flatnonzero(counts)
            buckets = (used + self.spans[tally].lo).tolist()
            found.append(dict(zip(buckets, counts[used].tolist(), strict=True)))
        return found

    def of(self, array: Int64Array, first: int, count: int) -> Int64Array:
        """The part of an array that holds some tallies, to be changed."""
        return array[self.ends[first] : self.ends[first + count]]


def summed(parts: Iterable[Tallies]) -> Tallies:
    """All counts of some tallies together."""
    known = [part for part in parts if part]
    if len(known) < 2:
        return known[0] if known else Tallies.empty()
    cells = np.concatenate([part.cells for part in known])
    counts = np.concatenate([part.counts for part in known])
    order = np.argsort(cells, kind="stable")
    return Tallies(*_grouped(cells[order], counts[order]))


def _grouped(cells: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rising cells, each once, with the sum of its counts."""
    starts = np.flatnonzero(np.diff(cells, prepend=-1))
    return cells[starts], np.add.reduceat(counts, starts)
