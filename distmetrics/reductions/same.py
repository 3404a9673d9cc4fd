"""A value on which all ranks should agree."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from distmetrics import exact
from distmetrics.reductions.reduction import Array, ReducedWindow, Reduction, Terms
from distmetrics.reductions.state import NOTHING, Counter, Number, State

_VALUE, _VALUE_NEGATED, _REST, _REST_NEGATED, SAME_STEP, _STEP_NEGATED = range(6)
"""Fields: the value as a float, and what an int is above it; the step; and their negatives."""
_NAN_IMAGE = int(exact.order_image(np.array([np.inf]))[0]) + 1
_MOST_REST = 1 << 62


def same() -> Reduction:
    """A value that all ranks should agree on: the last step's.

    The value and its step travel with their negatives: the largest and the smallest are equal
    exactly where all ranks agree, which costs no collective (see `disputed`). Ints are exact up to
    ±2^115.
    """

    def contribute(x: Array, w: Array | None) -> Terms:
        image, rest = _float_images(x) if x.dtype.kind == "f" else _integer_images(x)
        return Terms(
            maxes=(
                (_VALUE, image),
                (_VALUE_NEGATED, -image),
                (_REST, rest),
                (_REST_NEGATED, -rest),
            )
        )

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        if state.maxes[SAME_STEP] == NOTHING:
            return None
        value = same_value(state.maxes)
        return float(value) if state.counters[Counter.FLOATS] else value

    return Reduction(
        "same", maxes=6, contribute=contribute, finalize=finalize, keeps_last=True, scalar=True
    )


def disputed(maxes: Sequence[int]) -> bool:
    """Whether ranks gave a `same` key different values, or their last ones at different steps."""
    return maxes[SAME_STEP] != NOTHING and any(
        maxes[field] != -maxes[field + 1] for field in (_VALUE, _REST, SAME_STEP)
    )


def same_value(maxes: Sequence[int]) -> Number:
    """The value that the fields hold; of a float that is whole an int."""
    if maxes[_VALUE] == _NAN_IMAGE:
        return math.nan
    value = float(exact.from_order_image(np.array([maxes[_VALUE]]))[0])
    negative_zero = value == 0 and math.copysign(1, value) < 0
    return int(value) + maxes[_REST] if value.is_integer() and not negative_zero else value


def _float_images(x: Array) -> tuple[Array, Array]:
    floats = x.astype(np.float64)
    nan = np.isnan(floats)
    image = exact.order_image(np.where(nan, 0.0, floats))
    image[nan] = _NAN_IMAGE
    return image, np.zeros(len(x), np.int64)


def _integer_images(x: Array) -> tuple[Array, Array]:
    near = [exact.quotient(int(value), 1) for value in x]
    rest = [
        min(max(int(value) - int(float_), -_MOST_REST), _MOST_REST) if math.isfinite(float_) else 0
        for value, float_ in zip(x, near, strict=True)
    ]
    return exact.order_image(np.array(near, np.float64)), np.array(rest, np.int64)
