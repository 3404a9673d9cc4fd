"""A record's numbers, and a configuration's entries, for back ends that take flat ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """A nested configuration as TensorBoard takes it: ``{"optimizer.lr": 0.1}``.

    What is no number, bool or text becomes its text; None is left out.

    >>> flat({"optimizer": {"lr": 0.1, "betas": [0.9, 0.99]}, "seed": None})
    {'optimizer.lr': 0.1, 'optimizer.betas': '[0.9, 0.99]'}
    """
    found: dict[str, bool | int | float | str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= flat(value, f"{name}.")
        elif isinstance(value, bool | int | float | str):
            found[name] = value
        elif value is not None:
            found[name] = str(value)
    return found


def _bounded(value: int) -> Scalar:
    try:
        float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    return value
