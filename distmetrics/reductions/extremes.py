"""The largest and the smallest contribution."""

from __future__ import annotations

import math

import numpy as np

from distmetrics import exact
from distmetrics.reductions import many
from distmetrics.reductions.reduction import Array, ReducedWindow, Reduction, Terms
from distmetrics.reductions.state import NOTHING, Counter, Number, State

_WIDE = 1 << 63
_FLOAT, _WITHIN, _ABOVE, _BELOW = range(4)
"""Fields: the largest float, and of ints the largest within 64 signed bits, above and below them.

An int64 image of a float leaves no room for larger ints than 2^53, hence fields of their own.
"""
_OFFSETS = {_WITHIN: 0, _ABOVE: _WIDE, _BELOW: -_WIDE}


def maximum() -> Reduction:
    """The largest contribution, a float where any was one. Ints beyond ±2^64 become float64."""
    return _extreme("maximum", 1)


def minimum() -> Reduction:
    """The smallest contribution, a float where any was one. Ints beyond ±2^64 become float64."""
    return _extreme("minimum", -1)


def _extreme(kind: str, sign: int) -> Reduction:
    """The largest of `sign` times each contribution; -0.0 lies below 0.0."""

    def contribute(x: Array, w: Array | None) -> Terms:
        if x.dtype.kind == "f":
            return Terms(maxes=((_FLOAT, exact.order_image(sign * x.astype(np.float64))),))
        if x.dtype.kind in "bi" or x.dtype.itemsize < 8:
            whole = x.astype(np.int64)
            if whole.size and whole.min() > NOTHING:  # which has no negative
                return Terms(maxes=((_WITHIN, sign * whole),))
        return Terms(maxes=_wide_fields([sign * int(value) for value in x]))

    def block(x: Array) -> Terms | None:
        found = _outermost_float(x, sign)
        return None if found is None else contribute(found, None)

    def finalize(state: State, window: ReducedWindow) -> Number:
        found = _outermost(state.maxes, sign)
        beyond = isinstance(found, float) and math.isinf(found)
        if state.counters[Counter.FLOATS] or beyond:
            return exact.quotient(found, 1)
        return int(found)

    def limit(state: State) -> Number:
        if state.counters[Counter.NAN]:
            return math.nan
        ahead, behind = Counter.POSITIVE_INFINITY, Counter.NEGATIVE_INFINITY
        if sign < 0:
            ahead, behind = behind, ahead
        if state.counters[ahead] or not state.counters[Counter.COUNT]:
            assert state.counters[ahead] or state.counters[behind]
            return sign * (math.inf if state.counters[ahead] else -math.inf)
        return float(_outermost(state.maxes, sign))  # beside an infinity, a float

    return Reduction(
        kind,
        maxes=4,
        contribute=contribute,
        block=block,
        finalize=finalize,
        many=lambda columns: many.largest_floats(columns, sign),
        limit=limit,
    )


def _outermost_float(x: Array, sign: int) -> Array | None:
    """The largest of many finite floats (times `sign`), but for a zero, which has two signs."""
    if x.dtype.kind != "f":
        return None
    low, high = x.min(), x.max()
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    found = high if sign > 0 else low
    return np.array([found], x.dtype) if found else None


def _wide_fields(values: list[int]) -> tuple[tuple[int, Array], ...]:
    fields = np.full((4, len(values)), NOTHING, np.int64)
    for position, value in enumerate(values):
        if -_WIDE < value < _WIDE:
            fields[_WITHIN, position] = value
        elif _WIDE <= value < 2 * _WIDE:
            fields[_ABOVE, position] = value - _WIDE
        elif -2 * _WIDE < value <= -_WIDE:
            fields[_BELOW, position] = value + _WIDE
        else:
            fields[_FLOAT, position] = int(exact.order_image(np.array(exact.quotient(value, 1))))
    return tuple(enumerate(fields))


def _outermost(maxes: list[int], sign: int) -> Number:
    found: list[Number] = [
        sign * (maxes[field] + offset)
        for field, offset in _OFFSETS.items()
        if maxes[field] != NOTHING
    ]
    if maxes[_FLOAT] != NOTHING:
        found.append(sign * float(exact.from_order_image(np.array([maxes[_FLOAT]]))[0]))
    choose = max if sign > 0 else min
    return choose(found, key=lambda value: (value, math.copysign(1, value)))
