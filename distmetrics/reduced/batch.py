"""The values of many rows made together: what costs is the number of calls, not of values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.exchange.message import Row
from distmetrics.exchange.schema import StreamSchema
from distmetrics.reductions import Counter
from distmetrics.reductions.many import Columns
from distmetrics.reductions.reduction import Many
from distmetrics.snapshot.table import Key

Array = NDArray[Any]

LATER = object()
"""Stands for a value that is finalized by itself."""


@dataclass(frozen=True)
class _Group:
    """Keys whose values are made by the same function, and their places in the lanes."""

    many: Many
    keys: Array
    rows: Array
    fields: Array


class Layout:
    """The first keys of a stream, as its rows hold them.

    Args:
        stream: what is agreed on it.
        count: the number of keys.
    """

    def __init__(self, stream: StreamSchema, count: int) -> None:
        self.keys: list[Key] = stream.table.keys[:count]
        self.names = [stream.prefix + key.name for key in self.keys]
        self.virtual = np.array([key.reduction.virtual for key in self.keys], bool)
        self.needs = {
            key.index: _needs(key, self.keys) for key in self.keys if key.reduction.virtual
        }
        self.cumulative = [key for key in self.keys if key.reduction.cumulative]
        self.aside = [key.index for key in self.keys if key.name in stream.aside]
        self.groups = _groups(self.keys)
        self._stream = stream
        self._set_aside = len(stream.aside)

    def fits(self, row: Row) -> bool:
        """Whether a row is laid out like this."""
        return (
            row.stream is self._stream
            and len(row.counters) == len(self.keys)
            and len(row.stream.aside) == self._set_aside
        )


class Batch:
    """Rows of one layout whose arrays have the same shape: those of a stream in a round.

    Args:
        layout: their keys.
        rows: the rows, at least one.
    """

    def __init__(self, layout: Layout, rows: Sequence[Row]) -> None:
        self.layout = layout
        self.rows = rows

    @cached_property
    def present(self) -> NDArray[np.bool_]:
        """For each row and key whether anybody logged it."""
        return np.asarray(self._counters[:, :, : Counter.REPLICA].any(axis=2))

    @cached_property
    def valued(self) -> NDArray[np.bool_]:
        """For each row and key whether there is something to make a value of."""
        valued = self.present.copy()
        for index, needs in self.layout.needs.items():
            valued[:, index] = False if needs is None else self.present[:, needs].all(axis=1)
        return valued

    @cached_property
    def values(self) -> list[list[Any]]:
        """For each row and key its value, None for none, `LATER` where it is not made here."""
        found = np.full(self.present.shape, LATER, object)
        found[~(self.present | self.layout.virtual)] = None
        digits = np.array([row.digits for row in self.rows])
        maxes = np.array([row.maxes for row in self.rows])
        steps = np.array([steps_of(row) for row in self.rows], np.int64)
        for group in self.layout.groups:
            width = len(group.keys)
            columns = Columns(
                _states_side_by_side(digits[:, group.rows]),
                self.rows[0].lo,
                np.moveaxis(self._counters[:, group.keys], 2, 0).reshape(len(Counter), -1),
                _states_side_by_side(maxes[:, group.fields]),
                np.repeat(steps, width),
            )
            values, made = group.many(columns)
            before = found[:, group.keys].reshape(-1)
            found[:, group.keys] = np.where(made, values.astype(object), before).reshape(-1, width)
        found[:, self.layout.aside] = None
        listed: list[list[Any]] = found.tolist()
        return listed

    @cached_property
    def _counters(self) -> Array:
        return np.array([row.counters for row in self.rows])


def batches(rows: Iterable[Row], layouts: dict[str, Layout]) -> Iterator[Batch]:
    """The rows in their order, as many together as are alike; `layouts` is kept from call to call.

    Args:
        rows: of any streams.
        layouts: by stream; brought up to date.
    """
    for _, group in itertools.groupby(rows, lambda row: (id(row.stream), row.lo, row.digits.shape)):
        alike = list(group)
        name = alike[0].stream.name
        if name not in layouts or not layouts[name].fits(alike[0]):
            layouts[name] = Layout(alike[0].stream, len(alike[0].counters))
        yield Batch(layouts[name], alike)


def _needs(key: Key, keys: Sequence[Key]) -> list[int] | None:
    """The keys without which a virtual key has no value; None where one is not there."""
    indexes = {other.name: other.index for other in keys}
    own = [] if key.reduction.takes is None else [key.name]
    parts = [name for name in key.reduction.refers if name != key.reduction.takes]
    found = [indexes.get(name) for name in own + parts]
    return None if None in found else [index for index in found if index is not None]


def steps_of(row: Row) -> int:
    """In how many steps of a row's window any rank logged anything."""
    return 1 if row.stream.every is None else max(1, row.steps.size)


def _states_side_by_side(lanes: Array) -> Array:
    """Lanes of shape (rows, lanes, keys, ...) as (lanes, rows times keys, ...)."""
    moved = np.moveaxis(lanes, 1, 0)
    return moved.reshape(moved.shape[0], moved.shape[1] * moved.shape[2], *moved.shape[3:])


def _groups(keys: Sequence[Key]) -> list[_Group]:
    """The keys that are made values together."""
    alike: dict[Any, list[Key]] = {}
    for key in keys:
        reduction = key.reduction
        if reduction.many is not None:
            alike.setdefault((reduction.kind, reduction.sums, reduction.maxes), []).append(key)
    groups = []
    for (_, sums, maxes), members in alike.items():
        many = members[0].reduction.many
        assert many is not None
        rows = [key.row + i for i in range(sums) for key in members]
        fields = [key.field + i for i in range(maxes) for key in members]
        groups.append(
            _Group(
                many,
                np.array([key.index for key in members], np.intp),
                np.array(rows, np.intp).reshape(sums, len(members)),
                np.array(fields, np.intp).reshape(maxes, len(members)),
            )
        )
    return groups
