"""One key's merged state, and what of it every reduction can ask."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distmetrics import exact

Number = int | float
NOTHING = int(np.iinfo(np.int64).min)
"""The identity of the max lane."""


class Counter(enum.IntEnum):
    """The columns of the counter lane."""

    COUNT = 0
    """finite contributions"""
    FLOATS = 1
    """of them, those whose value is a float"""
    PLAIN = 2
    """of them, those without a weight, each of which weighs 1"""
    WEIGHT_FLOATS = 3
    """of them, those whose weight (or denominator) is a float"""
    NAN = 4
    POSITIVE_INFINITY = 5
    NEGATIVE_INFINITY = 6
    REPLICA = 7
    """balance of the replicas' hashes: zero where all replicas agree"""


@dataclass
class State:
    """One key's merged state in one window (or, for a running total, in all so far).

    Attributes:
        units: the exact rows as integers in units of 2^(32·lo - 1088).
        lo: the absolute index of the lowest limb of `units`.
        counters: indexed by `Counter`.
        maxes: the max lane.
        steps: in how many steps of the window any rank logged anything to this logger.
        tallies: bucket to count, for each tally.
    """

    units: list[int]
    lo: int
    counters: list[int]
    maxes: list[int]
    steps: int = 1
    tallies: list[dict[int, int]] = field(default_factory=list)

    @property
    def present(self) -> bool:
        """Whether anybody contributed."""
        return self.counters[Counter.COUNT] > 0 or self.nonfinite > 0

    @property
    def nonfinite(self) -> int:
        """How many contributions were NaN or infinite."""
        return sum(self.counters[Counter.NAN : Counter.NEGATIVE_INFINITY + 1])

    def total(self) -> Number:
        """The sum of row 0: exact where every part was an integer, else rounded once."""
        ints = not self.counters[Counter.FLOATS] and not self.counters[Counter.WEIGHT_FLOATS]
        return self._number(self.units[0], ints)

    def weight(self) -> Number:
        """The weight of all contributions: row 1 and 1 for each plain contribution."""
        units = self.units[1] + self._one() * self.counters[Counter.PLAIN]
        return self._number(units, not self.counters[Counter.WEIGHT_FLOATS])

    def aligned(self) -> State:
        """The same state in units that divide 1."""
        shift = 32 * (self.lo - exact.UNIT_LIMB)
        if shift <= 0:
            return self
        units = [unit << shift for unit in self.units]
        return State(units, exact.UNIT_LIMB, self.counters, self.maxes, self.steps)

    def merged(self, other: State) -> State:
        """This state and a later one as one: how running totals go on."""
        lo = min(self.lo, other.lo)
        mine = [unit << 32 * (self.lo - lo) for unit in self.units]
        theirs = [unit << 32 * (other.lo - lo) for unit in other.units]
        return State(
            [a + b for a, b in zip(mine, theirs, strict=True)],
            lo,
            [a + b for a, b in zip(self.counters, other.counters, strict=True)],
            [max(a, b) for a, b in zip(self.maxes, other.maxes, strict=True)],
            self.steps + other.steps,
        )

    def limit(self) -> float:
        """What a sum with NaN or infinite parts tends to."""
        up = self.counters[Counter.POSITIVE_INFINITY]
        down = self.counters[Counter.NEGATIVE_INFINITY]
        if self.counters[Counter.NAN] or (up and down):
            return math.nan
        return math.inf if up else -math.inf

    @classmethod
    def of_int(cls, total: int) -> State:
        """The state of a sum that is this integer."""
        counters = [0] * len(Counter)
        counters[Counter.COUNT] = counters[Counter.PLAIN] = 1
        return cls([total], exact.UNIT_LIMB, counters, [])

    def to_plain(self) -> dict[str, Any]:
        """The state as plain Python values; exact sums, which may be long, as hex strings."""
        return {
            "units": [hex(unit) for unit in self.units],
            "lo": self.lo,
            "counters": list(self.counters),
            "maxes": list(self.maxes),
            "steps": self.steps,
            "tallies": [[list(pair) for pair in tally.items()] for tally in self.tallies],
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> State:
        """The state that `to_plain` wrote."""
        units = [int(unit, 16) for unit in plain["units"]]
        tallies = [dict(pairs) for pairs in plain["tallies"]]
        counters, maxes, steps = plain["counters"], plain["maxes"], plain["steps"]
        return cls(units, plain["lo"], counters, maxes, steps, tallies)

    def _one(self) -> int:
        shift = 32 * (exact.UNIT_LIMB - self.lo)
        if shift < 0:
            raise AssertionError("a state with plain contributions is aligned first")
        return 1 << shift

    def _number(self, units: int, ints: bool) -> Number:
        return exact.to_int(units, self.lo) if ints else exact.to_float(units, self.lo)
