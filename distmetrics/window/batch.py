"""The lanes of several windows while snapshots are folded into them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.reductions import NOTHING, Counter
from distmetrics.snapshot.table import Extent
from distmetrics.window.lanes import Lanes
from distmetrics.window.tallies import Tallies

Array = NDArray[Any]


class Batch:
    """The lanes of several slots as single arrays."""

    def __init__(self, slots: int, extent: Extent) -> None:
        self.rows, self.keys, self.fields, self.each = extent
        self.sums = exact.zeros(slots * self.rows)
        self.counters = np.zeros((slots * self.keys, len(Counter)), np.int64)
        self.maxes = np.full(slots * self.fields, NOTHING, np.int64)
        self.moments = np.full(slots * self.fields, NOTHING, np.int64)
        self.tallies: list[Tallies] = []
        self.few: list[tuple[int, Array]] = []

    def add_few(self) -> None:
        """Add what blocks were condensed to: rows of `sums`, and some values for each."""
        for dtype in {values.dtype for _, values in self.few}:
            pairs = [pair for pair in self.few if pair[1].dtype == dtype]
            rows = np.repeat([row for row, _ in pairs], [len(values) for _, values in pairs])
            exact.add(self.sums, rows, np.concatenate([values for _, values in pairs]))

    def part(self, position: int, tallies: Tallies) -> Lanes:
        """One slot's lanes.

        Args:
            position: the slot's.
            tallies: those of all slots, one slot after another.
        """
        return Lanes(
            exact.take(self.sums, slice(position * self.rows, (position + 1) * self.rows)),
            self.counters[position * self.keys : (position + 1) * self.keys],
            self.maxes[position * self.fields : (position + 1) * self.fields],
            tallies.part(position * self.each, (position + 1) * self.each),
        )
