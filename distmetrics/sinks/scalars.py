"""A record's numbers, for back ends that draw numbers."""

from __future__ import annotations

import math

from distmetrics.record import Record, Scalar


def scalars(record: Record) -> dict[str, Scalar]:
    """The record's numbers by key, all within float64: larger integers are infinite.

    Histograms are left out, as each back end has a kind of its own for them.

    Example:
        >>> values = {"n": 10**400, "loss": 0.5, "hist": {"edges": [0, 1], "counts": [3]}}
        >>> scalars(Record(step=9, first_step=0, window=9, time=0.0, values=values))
        {'n': inf, 'loss': 0.5}
    """
    return {
        key: value if isinstance(value, float) else _bounded(value)
        for key, value in record.values.items()
        if not isinstance(value, dict)
    }


def _bounded(value: int) -> Scalar:
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value
