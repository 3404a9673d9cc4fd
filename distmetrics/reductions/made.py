"""Reductions that are made from the sums of other keys; nobody logs a value under theirs."""

from __future__ import annotations

import math

import numpy as np

from distmetrics import exact
from distmetrics.reductions.reduction import (
    Array,
    LocalWindow,
    ReducedWindow,
    Reduction,
    Terms,
    names,
    parameters,
)
from distmetrics.reductions.state import NOTHING, Number, State
from distmetrics.reductions.sums import pair_ratio


def ratio(numerator: str | None = None, denominator: str | None = None) -> Reduction:
    """Σ numerator / Σ denominator: of two other keys, or (without names) of pairs."""
    if numerator is None and denominator is None:
        return pair_ratio()
    if numerator is None or denominator is None:
        raise TypeError("a ratio of keys needs both numerator and denominator")

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        above, below = window.total(numerator), window.total(denominator)
        return None if above is None or below is None else exact.quotient(above, below)

    return Reduction(
        "ratio",
        parameters(numerator=numerator, denominator=denominator),
        names(numerator, denominator),
        finalize=finalize,
        virtual=True,
    )


def rate(of: str, seconds: str | None = None, per_device: bool = False) -> Reduction:
    """The sum of key `of` for each second of the slowest rank.

    The seconds are those of key `seconds` if given, else the wall time between the ends of the
    windows without pauses. `per_device` divides by the ranks that hold data of their own.
    """

    def at_close(window: LocalWindow) -> list[int]:
        spent = window.seconds if seconds is None else window.total()
        return [NOTHING if spent is None else int(exact.order_image(np.array([float(spent)]))[0])]

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        counted = window.total(of)
        if counted is None or state.maxes[0] == NOTHING:
            return None
        if state.nonfinite:
            return math.nan  # some of the seconds
        spent = float(exact.from_order_image(np.array([state.maxes[0]]))[0])
        return exact.quotient(counted, spent * (window.holders(of) if per_device else 1))

    return Reduction(
        "rate",
        parameters(of=of, seconds=seconds, per_device=per_device),
        names(of, seconds),
        "extensive",
        sums=0 if seconds is None else 1,
        maxes=1,
        contribute=_sum,
        finalize=finalize,
        at_close=at_close,
        virtual=True,
        takes=seconds,
    )


def _sum(x: Array, w: Array | None) -> Terms:
    return Terms(sums=((0, x),))
