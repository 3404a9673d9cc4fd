"""One value for each rank: memory in use, time in the data loader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from distmetrics import exact
from distmetrics.reductions.reduction import Array, ReducedWindow, Reduction, Terms
from distmetrics.reductions.state import NOTHING, Counter, Number, State

MOST_RANKS = 64
"""Ranks that have keys of their own; the smallest and largest value are those of all."""

_VALUE, _STEP, _STEP_NEGATED = range(3)
_NAN_IMAGE = int(exact.order_image(np.array([np.inf]))[0]) + 1


def per_rank() -> Reduction:
    """Each rank's value, that of its last step in the window, with the extremes of all ranks.

    The keys are ``k/rank0``, ``k/rank1``, ... for the ranks that logged it, up to rank 63, and
    ``k/min``, ``k/max``, ``k/argmax`` of all ranks: the rank with the largest value, the lowest of
    equals. With a NaN among them min and max are NaN, and argmax is its rank, as in NumPy. Values
    are those of float64, ints where all are.

    A rank's value is the count of the bucket that bears its number, to which no other rank adds.
    """

    def contribute(x: Array, w: Array | None) -> Terms:
        floats = exact.widened(x)
        nan = np.isnan(floats)
        images = exact.order_image(np.where(nan, 0.0, floats))
        images[nan] = _NAN_IMAGE
        return Terms(maxes=((_VALUE, images),))

    def at_rank(fields: Sequence[int], rank: int) -> Iterator[tuple[int, int, int]]:
        if fields[_STEP] != NOTHING:
            image = fields[_VALUE]
            yield 0, rank, image + (image >= 0)  # never 0, which is no count

    def finalize(state: State, window: ReducedWindow) -> dict[str, Number] | None:
        counts = state.tallies[0]
        values = {rank: _value(counts[rank], state) for rank in sorted(counts)}
        if not values:
            return None
        found = {f"rank{rank}": value for rank, value in values.items() if rank < MOST_RANKS}
        unknown = [rank for rank, value in values.items() if math.isnan(value)]
        if unknown:
            return found | {"min": math.nan, "max": math.nan, "argmax": unknown[0]}
        largest = max(values, key=lambda rank: values[rank])
        return found | {"min": min(values.values()), "max": values[largest], "argmax": largest}

    return Reduction(
        "per_rank",
        scaling="per_rank",
        maxes=3,
        tallies=1,
        contribute=contribute,
        finalize=finalize,
        at_rank=at_rank,
        ends=(*(f"rank{rank}" for rank in range(MOST_RANKS)), "min", "max", "argmax"),
        keeps_last=True,
        scalar=True,
    )


def _value(count: int, state: State) -> Number:
    image = count - (count > 0)
    if image == _NAN_IMAGE:
        return math.nan
    found = float(exact.from_order_image(np.array([image]))[0])
    return found if state.counters[Counter.FLOATS] or math.isinf(found) else int(found)
