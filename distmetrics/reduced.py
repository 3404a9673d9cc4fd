"""From merged lanes to logged values: a row's values, running totals, the latest of each key."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from distmetrics import exact
from distmetrics.exchange.message import Row
from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.exchange.topology import Topology
from distmetrics.record import Record, Value
from distmetrics.reductions import Counter, Number, State
from distmetrics.snapshot.table import Key
from distmetrics.window.stream import ordinal_of, step_of


class Reduced:
    """The values of one merged row; decoded when they are asked for.

    Args:
        row: the merged lanes.
        topology: which ranks are replicas.
        totals: the states of running totals up to and with this row, by key.
    """

    def __init__(self, row: Row, topology: Topology, totals: Mapping[str, State]) -> None:
        self.row = row
        self._topology = topology
        self._totals = totals

    @cached_property
    def values(self) -> dict[str, Value]:
        """Every key that anybody logged, with the child's prefix, and its value."""
        found: dict[str, Value] = {}
        stream = self.row.stream
        nonfinite: dict[str, Value] = {}
        for key in stream.table.keys[: len(self._states)]:
            if key.name in stream.aside:
                continue
            state = self._states[key.index]
            if not (key.reduction.virtual or state.present):
                continue
            name = stream.prefix + key.name
            merged = self._totals.get(key.name, state)
            rest = _Rest(self, key.metric.nonfinite == "skip")
            value = key.reduction.value(merged, rest, key.metric.nonfinite)
            if value is not None:
                found[name] = value
            if state.nonfinite and not key.reduction.virtual:
                nonfinite[f"{name}/nonfinite"] = state.nonfinite
        return found | nonfinite

    def state(self, key: str) -> State | None:
        """The merged state of a key, under the name used in the call; None: nobody logged it."""
        known = self.row.stream.table.get(key)
        if known is None or known.index >= len(self._states) or key in self.row.stream.aside:
            return None
        state = self._states[known.index]
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

    @cached_property
    def _states(self) -> list[State]:
        return row_states(self.row)


def row_states(row: Row) -> list[State]:
    """The states of the keys that a row covers, in the order of its table."""
    steps = 1 if row.stream.every is None else max(1, row.steps.size)
    units = exact.decode(row.digits, row.lo)
    counters = row.counters.tolist()
    maxes = row.maxes.tolist()
    return [
        State(
            units[key.row : key.row + key.reduction.sums],
            row.lo,
            counters[key.index],
            maxes[key.field : key.field + key.reduction.maxes],
            steps,
        )
        for key in row.stream.table.keys[: len(counters)]
    ]


@dataclass(frozen=True)
class _Rest:
    """A row as it is seen by a key that is made from other keys."""

    row: Reduced
    skip: bool

    def total(self, key: str) -> Number | None:
        return self.row.total(key, self.skip)

    def holders(self, key: str) -> int:
        return self.row.holders(key)


class Results:
    """What has been reduced so far, the same on every rank.

    Args:
        topology: which ranks are replicas.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._totals: dict[str, dict[str, State]] = {}
        self._latest: dict[str, dict[str, Reduced]] = {}
        self._last: dict[str, Reduced] = {}
        self._labels: dict[str, int] = {}

    def add(self, rows: Iterable[Row]) -> list[Reduced]:
        """Take in the rows of a round, in order; those that hold anything.

        Rows that come again, since a round was broken off, do not count twice in running totals.
        """
        added = []
        seen = dict(self._labels)
        for row in rows:
            self._labels[row.stream.name] = max(row.label, seen.get(row.stream.name, -1))
            if not row.counters[:, : Counter.REPLICA].any():
                continue
            again = row.label <= seen.get(row.stream.name, -1)
            reduced = Reduced(row, self._topology, self._running(row, again))
            self._last[row.stream.name] = reduced
            self._note_latest(reduced)
            added.append(reduced)
        return added

    def totals(self, stream: str) -> dict[str, Any]:
        """The running totals of a stream, as plain values."""
        return {key: state.to_plain() for key, state in self._totals.get(stream, {}).items()}

    def last(self, stream: str) -> dict[str, Value]:
        """The values of the stream's last row; empty before the first."""
        reduced = self._last.get(stream)
        return {} if reduced is None else dict(reduced.values)

    def latest(self, prefix: str) -> dict[str, Value]:
        """The latest value of every key that begins with the prefix."""
        found: dict[str, Value] = {}
        for stream, keys in list(self._latest.items()):
            if stream.startswith(COLLECTIVE):
                continue
            name = prefix_of(stream)
            for reduced in dict.fromkeys(list(keys.values())):
                found |= {
                    key: value
                    for key, value in reduced.values.items()
                    if key.startswith(prefix) and keys.get(key[len(name) :]) in (reduced, None)
                }
        return found

    def continue_from(self, stream: str, label: int, totals: Mapping[str, State]) -> None:
        """Go on after rows that were reduced before: their last label, and their totals."""
        self._labels[stream] = label
        self._totals[stream] = dict(totals)

    def _running(self, row: Row, again: bool) -> dict[str, State]:
        """The running totals up to this row, to which it is added unless it comes again."""
        cumulative = [
            key
            for key in row.stream.table.keys[: len(row.counters)]
            if key.reduction.cumulative and row.counters[key.index].any()
        ]
        if not cumulative:
            return {}
        totals = self._totals.setdefault(row.stream.name, {})
        for key in cumulative:
            if again and key.name in totals:
                continue
            state = _state(row, key)
            before = totals.get(key.name)
            totals[key.name] = state if before is None else before.merged(state)
        return {key.name: totals[key.name] for key in cumulative}

    def _note_latest(self, reduced: Reduced) -> None:
        row = reduced.row
        latest = self._latest.setdefault(row.stream.name, {})
        for key in row.stream.table.keys[: len(row.counters)]:
            logged = key.reduction.virtual or row.counters[key.index, : Counter.REPLICA].any()
            if logged and (row.late is None or key.name not in latest):
                latest[key.name] = reduced


def _state(row: Row, key: Key) -> State:
    digits = row.digits[key.row : key.row + key.reduction.sums]
    fields = row.maxes[key.field : key.field + key.reduction.maxes]
    counters = row.counters[key.index].tolist()
    return State(exact.decode(digits, row.lo), row.lo, counters, fields.tolist())
