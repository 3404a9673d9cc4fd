"""Values made many at a time have the bits of values finalized one by one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from distmetrics import exact, reductions
from distmetrics.reductions import NOTHING, Counter, Reduction, State
from distmetrics.reductions.many import Columns

FLOATS = st.one_of(
    st.floats(-2.0, 2.0),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 5e-324, 2.0**-1022, 1.7e308, 0.1]),
)
INTS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([2**53, 2**53 + 1, 2**53 - 1, 2**62, -(2**63), 2**64, -(2**70)]),
)
KINDS: dict[str, Reduction] = {
    "count": reductions.count(),
    "average": reductions.average(),
    "weighted average": reductions.average("w"),
    "ratio of pairs": reductions.ratio(),
    "l2_norm": reductions.l2_norm(),
    "maximum": reductions.maximum(),
    "minimum": reductions.minimum(),
}
NUMBERS = st.one_of(st.lists(FLOATS, max_size=6), st.lists(INTS, max_size=6))


class Contributions:
    """The lanes of some states of one reduction, filled as a fold fills them."""

    def __init__(self, reduction: Reduction, states: int) -> None:
        self.reduction = reduction
        self.sums = exact.zeros(reduction.sums * states)
        self.counters = np.zeros((states, len(Counter)), np.int64)
        self.maxes = np.full((states, reduction.maxes), NOTHING, np.int64)

    def add(self, state: int, values: list[Any], weights: list[Any] | None) -> None:
        """Contributions to one of the states; weights are numbers of one type, or None."""
        if not values:
            return
        x = _array(values)
        w = None if weights is None else _array(weights)
        counters = self.counters[state]
        counters[Counter.COUNT] += len(x)
        counters[Counter.FLOATS] += len(x) * (x.dtype.kind == "f")
        if w is None:
            counters[Counter.PLAIN] += len(x)
        else:
            counters[Counter.WEIGHT_FLOATS] += len(x) * (w.dtype.kind == "f")
        terms = self.reduction.contribute(x, w)
        for row, part in terms.sums:
            finite = np.array([isinstance(v, int) or math.isfinite(v) for v in part.tolist()])
            counters[Counter.POSITIVE_INFINITY] += np.count_nonzero(~finite)
            rows = np.full(finite.sum(), state * self.reduction.sums + row)
            exact.add(self.sums, rows, part[finite])
        for field, images in terms.maxes:
            self.maxes[state, field] = max(self.maxes[state, field], images.max())

    def made(self, steps: int) -> list[Any]:
        """The values made together, None where they were left to `finalize`."""
        assert self.reduction.many is not None
        states = len(self.counters)
        limbs = self.sums.digits.shape[1]
        digits = self.sums.digits.reshape(states, self.reduction.sums, limbs)
        columns = Columns(
            np.moveaxis(digits, 1, 0),
            self.sums.lo,
            self.counters.T,
            self.maxes.T,
            np.full(states, steps),
        )
        values, made = self.reduction.many(columns)
        return [
            value if right else None
            for value, right in zip(values.tolist(), made.tolist(), strict=True)
        ]

    def finalized(self, steps: int) -> list[Any]:
        """The values of the same states one by one."""
        units = exact.decode(self.sums.digits, self.sums.lo)
        width = self.reduction.sums
        states = [
            State(
                units[i * width : (i + 1) * width],
                self.sums.lo,
                counters,
                self.maxes[i].tolist(),
                steps,
            )
            for i, counters in enumerate(self.counters.tolist())
        ]
        return [self.reduction.value(state, None, "propagate") for state in states]  # type: ignore[arg-type]


def _array(values: list[Any]) -> Any:
    if isinstance(values[0], float):
        return np.array(values, np.float64)
    wide = any(abs(value) >= 2**63 for value in values)
    return np.array(values, object if wide else np.int64)


def same(one: Any, other: Any) -> bool:
    """Equal in type and in bits."""
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    return type(one) is type(other) and one == other


@settings(deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.lists(NUMBERS, min_size=1, max_size=5), st.data())
@example("average", [[5e-324], [0.0], [-0.0], [1.7e308, 1.7e308], [2**53 + 1]], None)
@example("count", [[1], [2], [0.5]], None)
def test_values_made_together_equal_those_made_one_by_one(
    kind: str, states: list[list[Any]], data: Any
) -> None:
    """Whatever is made in one go is what `finalize` gives, in bits and in type."""
    reduction = KINDS[kind]
    lanes = Contributions(reduction, len(states))
    for index, values in enumerate(states):
        weights = None
        if kind in ("weighted average", "ratio of pairs") and values:
            size = st.lists(FLOATS, min_size=len(values), max_size=len(values))
            whole = st.lists(st.integers(0, 2**40), min_size=len(values), max_size=len(values))
            weights = data.draw(st.one_of(size, whole))
            if not reduction.pairs:
                weights = [abs(weight) for weight in weights]
        lanes.add(index, values, weights)
    for made, finalized in zip(lanes.made(3), lanes.finalized(3), strict=True):
        if made is not None:
            assert same(made, finalized), (made, finalized)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_usual_values_are_made_together(kind: str) -> None:
    """Floats of usual size, and zeros, need no second look."""
    reduction = KINDS[kind]
    lanes = Contributions(reduction, 3)
    weights = [1.0, 2.0] if kind in ("weighted average", "ratio of pairs") else None
    for index, values in enumerate([[0.5, 0.25], [0.0, 0.0], [-3.0, 1e-5]]):
        lanes.add(index, values, weights)
    assert None not in lanes.made(2)


def test_usual_integers_are_made_together() -> None:
    """Counts stay ints where the quotient is whole; averages of ints are floats."""
    for kind, expected in (("count", [4, 0, 2.5]), ("average", [4.0, 0.0, 2.5])):
        lanes = Contributions(KINDS[kind], 3)
        for index, values in enumerate([[3, 5], [0, 0], [2, 3]]):
            lanes.add(index, values, None)
        assert [repr(value) for value in lanes.made(2)] == [repr(value) for value in expected]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("average", []),
        ("average", [5e-324]),
        ("average", [1.7e308, 1.7e308]),
        ("average", [2**53 + 1]),
        ("count", [2**62]),
        ("l2_norm", [1e200]),
        ("maximum", [3]),
    ],
)
def test_unusual_values_are_left_to_finalize(kind: str, values: list[Any]) -> None:
    """What float64 arithmetic might get wrong is marked as not made."""
    lanes = Contributions(KINDS[kind], 1)
    lanes.add(0, values, None)
    assert lanes.made(1) == [None]
