"""Reductions that are sums, or made from sums of their own."""

from __future__ import annotations

import math

from distmetrics import exact
from distmetrics.reductions import many
from distmetrics.reductions.reduction import (
    Array,
    ReducedWindow,
    Reduction,
    Terms,
    names,
    parameters,
)
from distmetrics.reductions.state import Counter, Number, State


def count() -> Reduction:
    """The sum of all contributions for each step: Σx / steps of the window."""
    return Reduction(
        "count",
        sums=1,
        contribute=_plain_sum,
        finalize=_sum_per_step,
        many=many.sums_per_step,
        limit=State.limit,
        summable=True,
    )


def total() -> Reduction:
    """The running sum of all contributions since the run began."""
    return _running("total")


def axis() -> Reduction:
    """A running sum that charts may use as x-axis."""
    return _running("axis")


def _running(kind: str) -> Reduction:
    return Reduction(
        kind,
        sums=1,
        contribute=_plain_sum,
        finalize=lambda state, window: state.total(),
        limit=State.limit,
        cumulative=True,
        summable=True,
    )


def average(weight: str | None = None) -> Reduction:
    """The weighted mean: Σwx / Σw, one division at the end."""
    return Reduction(
        "average",
        parameters(weight=weight),
        names(weight),
        sums=2,
        contribute=_weighted_sum,
        finalize=_quotient,
        many=many.quotients,
        limit=State.limit,
        weighted=True,
    )


def pair_ratio() -> Reduction:
    """Σ numerators / Σ denominators of the pairs that are logged."""
    return Reduction(
        "ratio",
        sums=2,
        contribute=_pair_sum,
        finalize=_quotient,
        many=many.quotients,
        limit=State.limit,
        pairs=True,
    )


def l2_norm() -> Reduction:
    """The root of the sum of squares; over a window of many steps their root mean square."""
    return Reduction(
        "l2_norm",
        sums=1,
        contribute=lambda x, w: Terms(sums=((0, exact.product(x, x)),)),
        block=_squares_block,
        finalize=lambda state, window: math.sqrt(exact.quotient(state.total(), state.steps)),
        many=many.roots,
        limit=lambda state: math.nan if state.counters[Counter.NAN] else math.inf,
    )


def std(ddof: int | float = 0, weight: str | None = None) -> Reduction:
    """The standard deviation, evaluated exactly and rounded once.

    With W = Σw, S = Σwx, Q = Σwx² as exact sums: sqrt((W·Q - S²) / (W·(W - ddof))).
    """

    def finalize(state: State, window: ReducedWindow) -> Number:
        state = state.aligned()
        one = 1 << 32 * (exact.UNIT_LIMB - state.lo)
        squares, weights, values = state.units
        weights += one * state.counters[Counter.PLAIN]
        scale = float(ddof).as_integer_ratio()
        free = weights * scale[1] - one * scale[0]  # (W - ddof) times scale[1]
        if weights <= 0 or free <= 0:
            return math.nan
        # below zero only where squares have lost digits below the smallest float64
        spread = max(0, weights * squares - values * values)
        return exact.root_of_ratio(spread * scale[1], weights * free)

    return Reduction(
        "std",
        parameters(ddof=ddof, weight=weight),
        names(weight),
        sums=3,
        contribute=_moments,
        block=_moments_block,
        finalize=finalize,
        weighted=True,
    )


def _plain_sum(x: Array, w: Array | None) -> Terms:
    return Terms(sums=((0, x),))


def _weighted_sum(x: Array, w: Array | None) -> Terms:
    return Terms(sums=((0, x),) if w is None else ((0, exact.product(x, w)), (1, w)))


def _pair_sum(x: Array, w: Array | None) -> Terms:
    assert w is not None
    return Terms(sums=((0, x), (1, w)))


def _moments(x: Array, w: Array | None) -> Terms:
    squares = tuple((0, part) for part in exact.exact_terms(x, w, 2))
    values = tuple((2, part) for part in exact.exact_terms(x, w, 1))
    return Terms(sums=squares + values + (() if w is None else ((1, w),)))


def _squares_block(x: Array) -> Terms | None:
    found = exact.condensed_moments(x)
    return None if found is None else Terms(sums=((0, found[1]),))


def _moments_block(x: Array) -> Terms | None:
    found = exact.condensed_moments(x)
    return None if found is None else Terms(sums=((0, found[1]), (2, found[0])))


def _sum_per_step(state: State, window: ReducedWindow) -> Number:
    summed = state.total()
    if isinstance(summed, int) and summed % state.steps == 0:
        return summed // state.steps
    return exact.quotient(summed, state.steps)


def _quotient(state: State, window: ReducedWindow) -> Number | None:
    state = state.aligned()
    return exact.quotient(state.total(), state.weight())
