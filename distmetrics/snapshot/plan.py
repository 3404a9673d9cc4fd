"""What a snapshot holds, and how its columns reach the lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.errors import InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.snapshot.table import Key

Array = NDArray[Any]
Place = tuple[Any, int]
"""The dtype of an array of a snapshot, and a column in it."""


@dataclass(frozen=True, eq=False)
class Route:
    """How columns of one array of a snapshot reach the lanes: one reduction, one dtype.

    Attributes:
        reduction: what turns them into terms.
        keys: the index of each column's key.
        values: the array that holds the values, and the columns in it.
        weights: the same for the weights; None where each weighs 1.
        floats: whether the values are floats, not integers.
        weight_floats: whether the weights are floats.
    """

    reduction: Reduction
    keys: tuple[Key, ...]
    values: tuple[int, tuple[int, ...]]
    weights: tuple[int, tuple[int, ...]] | None
    floats: bool
    weight_floats: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """What the arrays of a snapshot hold. Snapshots of one plan are folded together."""

    routes: tuple[Route, ...]


@dataclass
class Snapshot:
    """The copied values of one call.

    Attributes:
        plan: what the arrays hold.
        arrays: one for each dtype, one-dimensional: the columns one after another.
        sizes: for each array the lengths of its columns; None where every column is one number.
        staged: False while some arrays still wait on a device (see `distmetrics.snapshot.staging`).
    """

    plan: Plan
    arrays: list[Any]
    sizes: list[list[int]] | None
    staged: bool = True


def make_plan(columns: list[tuple[Key, Place, Place | None]], order: Mapping[Any, int]) -> Plan:
    """One route for each combination of reduction and dtypes."""
    groups: dict[Any, list[tuple[Key, Place, Place | None]]] = {}
    for key, values, weights in columns:
        kind = (key.reduction.contribute, values[0], None if weights is None else weights[0])
        groups.setdefault(kind, []).append((key, values, weights))
    return Plan(
        tuple(
            Route(
                group[0][0].reduction,
                tuple(key for key, _, _ in group),
                (order[dtype], tuple(values[1] for _, values, _ in group)),
                None
                if weight_dtype is None
                else (order[weight_dtype], tuple(w[1] for _, _, w in group if w is not None)),
                _is_float(dtype),
                weight_dtype is not None and _is_float(weight_dtype),
            )
            for (_, dtype, weight_dtype), group in groups.items()
        )
    )


def check_weights(name: str, weights: Array) -> None:
    """Raise `InvalidValue` unless all weights are finite and not negative."""
    right = weights >= 0
    if weights.dtype.kind == "f":
        right &= weights < np.inf
    if not right.all():
        wrong = weights[~right.astype(bool)][0]
        raise InvalidValue(
            f"key {name!r}: a weight is {wrong}; weights are finite and not negative"
        )


def _is_float(dtype: Any) -> bool:
    if isinstance(dtype, tuple):
        return bool(dtype[0].is_floating_point)
    return bool(dtype.kind == "f")
