"""Many merged states made values at once, for the usual ones; they equal `finalize` in bits.

A value is marked as not made where it would take more than float64 arithmetic: sums beyond 2^53 of
integers, subnormal results, NaN. Those are finalized one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.reductions.state import NOTHING, Counter

Array = NDArray[Any]
_EXACT = float(1 << 53)
_LEAST_NORMAL = 2.0**-1022


class Columns(NamedTuple):
    """The merged lanes of many keys of one reduction, in one window or several.

    Attributes:
        sums: digits, int64, shape (`Reduction.sums`, states, limbs).
        lo: the lowest limb of the digits.
        counters: int64, shape (len(Counter), states).
        maxes: int64, shape (`Reduction.maxes`, states).
        steps: int64, the steps of each state's window.
    """

    sums: Array
    lo: int
    counters: Array
    maxes: Array
    steps: Array


class Made(NamedTuple):
    """Values, and which of them were made."""

    values: Array
    made: NDArray[np.bool_]


def quotients(columns: Columns) -> Made:
    """Row 0 over row 1 and the plain contributions; see `State.total` and `State.weight`."""
    above = exact.to_floats(columns.sums[0], columns.lo)
    plain = columns.counters[Counter.PLAIN]
    weighted = columns.counters[Counter.WEIGHT_FLOATS] > 0
    weights = columns.sums[1]
    made = ~weighted | (plain == 0)
    below = plain.astype(np.float64)
    if weights.any():
        whole, read = exact.to_int64s(weights, columns.lo)
        below = np.where(weighted, exact.to_floats(weights, columns.lo), whole + plain)
        made &= weighted | read
    return _divided(columns, above, below, made)


def sums_per_step(columns: Columns) -> Made:
    """Row 0 over the steps of the window; an int where it is a whole one of ints."""
    floats = columns.counters[Counter.FLOATS] > 0
    values = np.zeros(len(floats), object)
    made = np.zeros(len(floats), bool)
    if floats.any():
        above = exact.to_floats(columns.sums[0], columns.lo)
        values, made = _divided(columns, above, columns.steps.astype(np.float64), floats)
    if not floats.all():
        whole, read = exact.to_int64s(columns.sums[0], columns.lo)
        each, rest = np.divmod(whole, columns.steps)
        divided = np.where(rest == 0, each.astype(object), (whole / columns.steps).astype(object))
        ints = _usual(columns) & ~floats & read & ((rest == 0) | (np.abs(whole) < _EXACT))
        values = np.where(ints, divided, values)
        made |= ints
    return Made(values, made)


def roots(columns: Columns) -> Made:
    """The root of row 0 over the steps of the window."""
    above = exact.to_floats(columns.sums[0], columns.lo)
    everywhere = np.ones(len(above), bool)
    values, made = _divided(columns, above, columns.steps.astype(np.float64), everywhere)
    return Made(np.sqrt(np.where(made, values, 0.0)), made)


def largest_floats(columns: Columns, sign: int) -> Made:
    """The maximum of `sign` times each contribution, where all are floats, times `sign`."""
    found, *ints = columns.maxes
    made = _usual(columns) & (columns.counters[Counter.FLOATS] > 0) & (found != NOTHING)
    for field in ints:
        made &= field == NOTHING
    return Made(sign * exact.from_order_image(np.where(made, found, 0)), made)


def _usual(columns: Columns) -> NDArray[np.bool_]:
    """Where there are contributions, all of them finite."""
    nonfinite = columns.counters[Counter.NAN : Counter.NEGATIVE_INFINITY + 1].any(axis=0)
    return np.asarray((columns.counters[Counter.COUNT] > 0) & ~nonfinite)


def _divided(columns: Columns, above: Array, below: Array, where: Array) -> Made:
    """The quotients of two sums, each rounded to float64.

    Of integers they are right where both are below 2^53, hence exact.
    """
    counters = columns.counters
    ints = (counters[Counter.FLOATS] == 0) & (counters[Counter.WEIGHT_FLOATS] == 0)
    zero = (above.view(np.int64) == 0) & (below > 0)
    with np.errstate(all="ignore"):
        values = above / below
        sizes = np.abs(values)
        made = where & _usual(columns) & (np.abs(below) >= _LEAST_NORMAL)
        made &= ((sizes >= _LEAST_NORMAL) & np.isfinite(sizes)) | zero
        made &= ~ints | ((np.abs(above) < _EXACT) & (np.abs(below) < _EXACT))
    return Made(values, made)
