"""The usual call in one stroke: the same keys with scalars of the same types as before.

What counts here is the number of calls that give the interpreter lock away, since a worker
thread may take it for milliseconds: one `torch.stack` for each dtype, whatever the number of keys.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distmetrics.snapshot.plan import Place, Plan, Snapshot, check_weights, make_plan
from distmetrics.snapshot.table import Key, KeyTable

_dtype_of = operator.attrgetter("dtype")
_size_of = operator.methodcaller("numel")
_TENSORS = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True)
class _Stack:
    """The values of a call that share a dtype: one array of the snapshot."""

    pick: Callable[[list[Any]], tuple[Any, ...]]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    widen: bool

    def take(self, values: list[Any]) -> Any:
        """The values as one new array or device tensor; None where they are not as learned."""
        picked = self.pick(values)
        if tuple(map(_dtype_of, picked)) != self.dtypes:
            return None
        try:
            stacked = torch.stack(picked)
        except (RuntimeError, TypeError):  # shapes, devices or layouts differ
            return None
        if stacked.device != self.device or stacked.numel() != len(picked):
            return None
        if stacked.layout is not torch.strided:
            return None
        if stacked.requires_grad:  # cheaper than no_grad around each call
            stacked = stacked.detach()
        if stacked.dim() != 1:
            stacked = stacked.reshape(-1)
        if self.widen:
            stacked = stacked.float()
        return stacked.numpy() if self.device.type == "cpu" else stacked


@dataclass(frozen=True)
class _Numbers:
    """The Python numbers of a call: floats, or bools and ints."""

    pick: Callable[[list[Any]], tuple[Any, ...]]
    dtype: type[np.generic]

    def take(self, values: list[Any]) -> NDArray[Any] | None:
        """The values as one new array; None where an int needs more than 64 bits."""
        try:
            return np.array(self.pick(values), self.dtype)
        except OverflowError:
            return None


@dataclass(frozen=True)
class FastPath:
    """How to take the snapshot of a call whose keys and types are those of an earlier one.

    Attributes:
        types: the types of the values, the weight of the call last.
        weighted: whether the call had a weight.
        parts: one for each array of the snapshot.
        plan: what the arrays hold.
        weights: arrays on the host that hold weights: array, columns, names of their keys.
        skipped: positions of tensors that are ignored as long as they are no scalars.
        staged: whether all arrays are on the host.
    """

    types: tuple[type, ...]
    weighted: bool
    parts: tuple[_Stack | _Numbers, ...]
    plan: Plan
    weights: tuple[tuple[int, NDArray[np.int64], tuple[str, ...]], ...]
    skipped: Callable[[list[Any]], tuple[Any, ...]] | None
    staged: bool

    def take(self, values: list[Any], weight: Any) -> Snapshot | None:
        """The snapshot; None where a value is not as learned, so that the call goes key by key.

        Raises:
            InvalidValue: a weight is negative or not finite.
        """
        if weight is not None:
            values.append(weight)
        if (weight is not None) is not self.weighted or tuple(map(type, values)) != self.types:
            return None
        if self.skipped is not None and 1 in map(_size_of, self.skipped(values)):
            return None
        arrays = []
        for part in self.parts:
            array = part.take(values)
            if array is None:
                return None
            arrays.append(array)
        for position, columns, names in self.weights:
            weights = arrays[position]
            if isinstance(weights, np.ndarray):
                _check(weights[columns], names)
        return Snapshot(self.plan, arrays, None, self.staged)

    @classmethod
    def learn(
        cls,
        names: tuple[str, ...],
        values: list[Any],
        weight: Any,
        table: KeyTable,
        ignored: Container[str] = (),
    ) -> FastPath | None:
        """The fast path for calls like this one, which went key by key; None where there is none.

        Args:
            names: the keys of the call.
            values: their values.
            weight: the weight of the call.
            table: the keys that are logged.
            ignored: keys that the registry ignores, whatever comes under them.
        """
        if weight is not None:
            values = [*values, weight]
        kinds = [_kind(value) for value in values]
        if any(kind is None for kind in kinds):  # `in` compares, and to NumPy None is float64
            return None
        used, skipped = _used(names, values, kinds, table, weight is not None, ignored)
        if used is None or skipped is None:
            return None
        groups: dict[Any, list[int]] = {}
        for position in sorted({p for _, value, w in used for p in (value, w) if p is not None}):
            groups.setdefault(kinds[position], []).append(position)

        def place(position: int) -> Place:
            return kinds[position], groups[kinds[position]].index(position)

        columns = [(key, place(v), None if w is None else place(w)) for key, v, w in used]
        order = {kind: index for index, kind in enumerate(groups)}
        return cls(
            tuple(map(type, values)),
            weight is not None,
            tuple(_part(kind, positions, len(values)) for kind, positions in groups.items()),
            make_plan(columns, order),
            _weights(columns, order),
            _picker(skipped, len(values)) if skipped else None,
            all(isinstance(kind, np.dtype) or kind[1].type == "cpu" for kind in groups),
        )


_Used = list[tuple[Key, int, int | None]]


def _used(
    names: tuple[str, ...],
    values: list[Any],
    kinds: list[Any],
    table: KeyTable,
    weighted: bool,
    ignored: Container[str],
) -> tuple[_Used | None, list[int] | None]:
    """The keys with the positions of their value and weight; and the tensors that are ignored."""
    used: _Used = []
    skipped = []
    for position, name in enumerate(names):
        key = table.get(name)
        if key is None or name in ignored:
            if isinstance(values[position], torch.Tensor) and name not in ignored:
                skipped.append(position)
            continue
        if kinds[position] is _OTHER:
            return None, None
        weight = None
        if key.reduction.weighted:
            named = key.reduction.params.get("weight")
            weight = names.index(named) if named in names else len(names) if weighted else None
            if weight is not None and kinds[weight] is _OTHER:
                return None, None
        used.append((key, position, weight))
    for key in table:  # those that are made from others, and take their values
        if key.reduction.takes in names:
            position = names.index(key.reduction.takes)
            if kinds[position] is _OTHER:
                return None, None
            used.append((key, position, None))
    return used, skipped


_OTHER = "other"


def _kind(value: Any) -> Any:
    """What can share an array: a dtype on a device, or a kind of Python number."""
    if type(value) in _TENSORS:
        if value.numel() != 1 or value.layout is not torch.strided or value.is_complex():
            return _OTHER
        return value.dtype, value.device
    if type(value) is float:
        return np.dtype(np.float64)
    if type(value) in (int, bool):
        return np.dtype(np.int64)
    return _OTHER if isinstance(value, str | list | tuple | dict) else None


def _part(kind: Any, positions: list[int], width: int) -> _Stack | _Numbers:
    pick = _picker(positions, width)
    if isinstance(kind, np.dtype):
        return _Numbers(pick, kind.type)
    dtype, device = kind
    widen = dtype.is_floating_point and dtype not in (torch.float32, torch.float64)
    return _Stack(pick, (dtype,) * len(positions), device, widen)


def _picker(positions: list[int], width: int) -> Callable[[list[Any]], tuple[Any, ...]]:
    if positions == list(range(width)):
        return tuple
    if len(positions) == 1:
        only = positions[0]
        return lambda values: (values[only],)
    return operator.itemgetter(*positions)


def _weights(
    columns: list[tuple[Key, Place, Place | None]], order: dict[Any, int]
) -> tuple[tuple[int, NDArray[np.int64], tuple[str, ...]], ...]:
    found: dict[int, list[tuple[int, str]]] = {}
    for key, _, place in columns:
        if place is not None:
            found.setdefault(order[place[0]], []).append((place[1], key.full))
    return tuple(
        (array, np.array([c for c, _ in pairs], np.int64), tuple(name for _, name in pairs))
        for array, pairs in found.items()
    )


def _check(weights: NDArray[Any], names: tuple[str, ...]) -> None:
    # one look at all of them; only where something is wrong is the key looked for
    if not (weights.min() >= 0 and weights.max() < np.inf):
        for name, weight in zip(names, weights, strict=True):
            check_weights(name, np.array([weight]))
