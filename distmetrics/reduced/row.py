"""The values of one row."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from distmetrics import exact
from distmetrics.derivations import Derivations
from distmetrics.exchange.message import Row
from distmetrics.exchange.topology import Topology
from distmetrics.record import Record, Value
from distmetrics.reduced.batch import LATER, Batch, steps_of
from distmetrics.reductions import Counter, Finalized, Number, State
from distmetrics.snapshot.table import Key
from distmetrics.window.labels import ordinal_of, step_of


class Reduced:
    """The values of one merged row; made when they are asked for.

    Attributes:
        row: the merged lanes.
        made_of: the key, under its name in the call, of each of `values` that is one of several
            which a key gives, once these are made.

    Args:
        batch: the row among others like it.
        index: its place there.
        topology: which ranks are replicas.
        totals: the states of running totals up to and with this row, by key.
        derivations: the derived keys.
        children: the prefixes of all children.
    """

    def __init__(
        self,
        batch: Batch,
        index: int,
        topology: Topology,
        totals: Mapping[str, State],
        derivations: Derivations | None = None,
        children: tuple[str, ...] = (),
    ) -> None:
        self.row = batch.rows[index]
        self._batch = batch
        self._index = index
        self._topology = topology
        self._totals = totals
        self._derivations = derivations
        self._children = children
        self._states: dict[str, State] = {}
        self.made_of: dict[str, str] = {}

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every key that anybody logged, or that is derived, and its value.

        Keys bear the child's prefix.
        """
        return self._own_values | self.derived

    @cached_property
    def derived(self) -> dict[str, Value]:
        """The derived keys, as in `values`."""
        if self._derivations is None:
            return {}
        return self._derivations.of(self._own_values, self.row.stream.prefix, self._children)

    @cached_property
    def _own_values(self) -> dict[str, Value]:
        found: dict[str, Value] = {}
        layout = self._batch.layout
        for key, name in zip(layout.keys, layout.names, strict=True):
            value = self.value_of(key)
            if key.reduction.ends and isinstance(value, dict):
                parts = {f"{name}/{end}": part for end, part in value.items()}
                self.made_of |= dict.fromkeys(parts, key.name)
                found |= parts
            elif value is not None:
                found[name] = value
        return found | self._nonfinite()

    def value_of(self, key: Key) -> Finalized | None:
        """The value of a key that the row covers; None: it has none."""
        known = self._batch.values[self._index][key.index]
        return self._finalized(key) if known is LATER else known

    def _finalized(self, key: Key) -> Finalized | None:
        state = self._state(key)
        merged = self._totals.get(key.name, state)
        rest = _Rest(self, key.metric.nonfinite == "skip")
        return key.reduction.value(merged, rest, key.metric.nonfinite)

    def _nonfinite(self) -> dict[str, Value]:
        """How many values of a key were NaN or infinite, for keys that had any."""
        counters = self.row.counters[:, Counter.NAN : Counter.NEGATIVE_INFINITY + 1]
        if not counters.any():
            return {}
        layout = self._batch.layout
        return {
            f"{layout.names[index]}/nonfinite": count
            for index, count in enumerate(counters.sum(axis=1).tolist())
            if count and not layout.virtual[index] and index not in layout.aside
        }

    def state(self, key: str) -> State | None:
        """The merged state of a key, under the name used in the call; None: nobody logged it."""
        known = self.row.stream.table.get(key)
        covered = len(self._batch.layout.keys)
        if known is None or known.index >= covered or key in self.row.stream.aside:
            return None
        state = self._state(known)
        return state if state.present else None

    def total(self, key: str, skip: bool = False) -> Number | None:
        """The sum of a key in this row, under the name used in the call; None: nobody logged it.

        Args:
            key: of a reduction that is a sum.
            skip: leave NaN and infinities out, even where the key's own declaration does not.
        """
        known, state = self.row.stream.table.get(key), self.state(key)
        if known is None or state is None:
            return None
        if state.nonfinite and not (skip or known.metric.nonfinite == "skip"):
            return state.limit()
        return state.total() if state.counters[Counter.COUNT] else math.nan

    def holders(self, key: str) -> int:
        """How many ranks hold data of their own for the key."""
        known = self.row.stream.table.get(key)
        return self._topology.holders(() if known is None else known.metric.replicated_over)

    @property
    def step(self) -> int:
        """The step that the record bears."""
        return self.row.steps.last if self.row.steps.size else step_of(self.row.label)

    def record(self, world_size: int, attempt: int, missing_ranks: Iterable[int] = ()) -> Record:
        """The record of this row."""
        row = self.row
        exact_totals = {
            row.stream.prefix + key: state.to_plain()
            for key, state in self._totals.items()
            if not isinstance(self.values.get(row.stream.prefix + key), int)
        }
        return Record(
            step=self.step,
            first_step=row.steps.first if row.steps.size else self.step,
            window=step_of(row.label),
            time=time.time(),
            values=self.values,
            world_size=world_size,
            attempt=attempt,
            logger=row.stream.name or None,
            late=row.late is not None,
            missing_ranks=tuple(missing_ranks),
            repeat=ordinal_of(row.label),
            exact=exact_totals,
        )

    def _state(self, key: Key) -> State:
        if key.name not in self._states:
            self._states[key.name] = row_state(self.row, key)
        return self._states[key.name]


def row_state(row: Row, key: Key) -> State:
    """The state of a key that a row covers."""
    digits = row.digits[key.row : key.row + key.reduction.sums]
    fields = row.maxes[key.field : key.field + key.reduction.maxes]
    return State(
        exact.decode(digits, row.lo),
        row.lo,
        row.counters[key.index].tolist(),
        fields.tolist(),
        steps_of(row),
        row.tallies_of(key),
    )


def row_states(row: Row) -> list[State]:
    """The states of the keys that a row covers, in the order of its table."""
    return [row_state(row, key) for key in row.stream.table.keys[: len(row.counters)]]


@dataclass(frozen=True)
class _Rest:
    """A row as it is seen by a key that is made from other keys."""

    row: Reduced
    skip: bool

    def total(self, key: str) -> Number | None:
        return self.row.total(key, self.skip)

    def holders(self, key: str) -> int:
        return self.row.holders(key)
