"""One rank's state of all keys in one window: a few arrays, whatever the number of keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.exact import Limbs
from distmetrics.reductions import NOTHING, Counter
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot.table import Extent, Key, KeyTable
from distmetrics.window.tallies import Tallies, summed

Array = NDArray[Any]
Int64Array = NDArray[np.int64]


@dataclass
class Lanes:
    """The state of the first `len(counters)` keys of a table.

    Attributes:
        sums: exact rows, `Reduction.sums` for each key.
        counters: int64, shape (keys, len(Counter)).
        maxes: int64, `Reduction.maxes` fields for each key.
        tallies: sparse, `Reduction.tallies` for each key.
    """

    sums: Limbs
    counters: Int64Array
    maxes: Int64Array
    tallies: Tallies

    @classmethod
    def empty(cls, extent: Extent) -> Lanes:
        """The identity: nobody contributed."""
        return cls(
            exact.zeros(extent.rows),
            np.zeros((extent.keys, len(Counter)), np.int64),
            np.full(extent.fields, NOTHING, np.int64),
            Tallies.empty(),
        )

    def grown(self, extent: Extent) -> Lanes:
        """The same state with room for keys that the table has gained."""
        if len(self.counters) == extent.keys:
            return self
        grown = Lanes.empty(extent)
        digits = np.zeros((extent.rows, self.sums.digits.shape[1]), np.int64)
        digits[: self.sums.rows] = self.sums.digits
        grown.sums = Limbs(self.sums.lo, digits)
        grown.counters[: len(self.counters)] = self.counters
        grown.maxes[: len(self.maxes)] = self.maxes
        grown.tallies = self.tallies
        return grown

    def merge(self, later: Lanes, table: KeyTable) -> None:
        """Add the lanes of later calls of this rank; both cover the same keys."""
        exact.merge(self.sums, later.sums)
        self.counters = self.counters + later.counters
        merged = np.maximum(self.maxes, later.maxes)
        for key in table.keys[: len(self.counters)]:
            if key.reduction.keeps_last:
                fields = slice(key.field, key.field + key.reduction.maxes)
                step = fields.stop - 2
                newer = later.maxes[step] >= self.maxes[step]
                merged[fields] = (later if newer else self).maxes[fields]
        self.maxes = merged
        self.tallies = summed((self.tallies, later.tallies))

    def total(self, key: Key) -> int | float | None:
        """This rank's own sum of a key; None where it has none."""
        if key.index >= len(self.counters) or not self.counters[key.index, Counter.COUNT]:
            return None
        row = exact.take(self.sums, slice(key.row, key.row + 1))
        return exact.to_float(exact.decode(row.digits, row.lo)[0], row.lo)


@dataclass
class Slot:
    """Contributions that are reduced to one row: snapshots to be folded, and their lanes so far."""

    pending: list[tuple[Snapshot, int]] = field(default_factory=list)
    waiting: int = 0
    lanes: Lanes | None = None
