"""One stream's agreed windows as arrays that all ranks add up, and the rows that these give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.exchange.schema import StreamSchema
from distmetrics.exchange.topology import Topology
from distmetrics.reductions import NOTHING, Counter
from distmetrics.snapshot.table import Key, KeyTable
from distmetrics.window.lanes import Lanes
from distmetrics.window.steps import Steps
from distmetrics.window.stream import Window
from distmetrics.window.tallies import BucketRange, Dense

Int64Array = NDArray[np.int64]


class Agreed(NamedTuple):
    """A window that is reduced in this round, and the late steps that travel with it."""

    stream: StreamSchema
    label: int
    late: tuple[int, ...]


class Span(NamedTuple):
    """The steps of a window that any rank logged: the first, the last and how many."""

    first: int
    last: int
    size: int

    @classmethod
    def of(cls, steps: Steps) -> Span:
        """The span of a set of steps."""
        return cls(steps.first, steps.last, len(steps)) if steps else NO_STEPS


NO_STEPS = Span(-1, -1, 0)


@dataclass
class Row:
    """The merged lanes of one record: a window, or a late step that travels with it.

    Attributes:
        stream: what is agreed on its logger or child.
        label: the window's label.
        late: the late step; None for the window itself.
        steps: the steps that any rank logged.
        lo: the lowest limb of `digits`.
        digits: int64, shape (rows of the table, limbs).
        counters: int64, shape (keys, len(Counter)).
        maxes: int64, one for each field of the table.
        tallies: int64, the counts of the tallies within the spans of `dense`.
        dense: where which tally lies in them.
    """

    stream: StreamSchema
    label: int
    late: int | None
    steps: Span
    lo: int
    digits: Int64Array
    counters: Int64Array
    maxes: Int64Array
    tallies: Int64Array
    dense: Dense

    def tallies_of(self, key: Key) -> list[dict[int, int]]:
        """The counts of a key's tallies, by bucket."""
        return self.dense.part(self.tallies, key.tally, key.reduction.tallies)


# the fields of the max lane that tell the steps of a window
DIGEST, DIGEST_NEGATED, LAST, FIRST_NEGATED, COUNT = range(5)


class Message:
    """One rank's lanes of the windows of one stream that are reduced in a round.

    Args:
        stream: what is agreed on the stream.
        agreed: the windows, oldest first.
        windows: this rank's closed windows by label; it may lack some.
        table: this rank's keys.
        limbs: the limbs ``[lo, hi)`` that travel.
        spans: the buckets of each agreed tally that travel.
        topology: which ranks are replicas.
    """

    def __init__(
        self,
        stream: StreamSchema,
        agreed: list[Agreed],
        windows: Mapping[int, Window],
        table: KeyTable,
        limbs: tuple[int, int],
        spans: Sequence[BucketRange],
        topology: Topology,
    ) -> None:
        self.stream = stream
        self.slots: list[tuple[int, int | None]] = [
            (window.label, late) for window in agreed for late in (*window.late, None)
        ]
        self._windows = windows
        self._lo, hi = limbs
        self._topology = topology
        self._table = table
        self._placement = stream.placement(table)
        self._replicated = self._keys_with_replicas()
        count, keys = len(self.slots), len(stream.table)
        self._digits = np.zeros((count, stream.table.rows, hi - self._lo), np.int64)
        self._counters = np.zeros((count, keys, len(Counter)), np.int64)
        self._dense = Dense(spans)
        self._tallies = np.zeros((count, self._dense.width), np.int64)
        self._fields = np.full((count, stream.table.fields), NOTHING, np.int64)
        self._steps = np.full((count, 5), NOTHING, np.int64)
        for position in range(count):
            self._fill(position)

    # --- this rank's part ---

    def _fill(self, position: int) -> None:
        lanes = self.lanes(position)
        if lanes is not None:
            dense = exact.dense(lanes.sums, self._lo, self._lo + self._digits.shape[2])
            if self._placement.plain and len(lanes.counters) == self._counters.shape[1]:
                self._digits[position] = dense
                self._counters[position] = lanes.counters
                self._fields[position] = lanes.maxes
            else:
                mine, theirs = self._covered(lanes)
                self._digits[position, theirs.rows] = dense[mine.rows]
                self._counters[position, theirs.keys] = lanes.counters[mine.keys]
                self._fields[position, theirs.fields] = lanes.maxes[mine.fields]
            self._dense.fill(self._tallies[position], lanes.tallies, self._placement.tallies)
            self._mark_replicas(position)
        steps = self.steps(position)
        if steps:
            digest = steps.digest()
            self._steps[position] = (digest, -digest, steps.last, -steps.first, len(steps))

    def lanes(self, position: int) -> Lanes | None:
        """This rank's own lanes of a slot."""
        label, late = self.slots[position]
        window = self._windows.get(label)
        if window is None:
            return None
        slot = window.main if late is None else window.late.get(late)
        return None if slot is None else slot.lanes

    def steps(self, position: int) -> Steps | None:
        """The steps that this rank logged in a slot's window; None for a late step."""
        label, late = self.slots[position]
        window = self._windows.get(label)
        return None if window is None or late is not None else window.steps

    def own(self, name: str) -> Key | None:
        """This rank's own entry of a key."""
        return self._table.get(name)

    def _covered(self, lanes: Lanes) -> tuple[_Indexes, _Indexes]:
        """Where the lanes' keys lie in the lanes, and where in the message."""
        sizes = (len(lanes.counters), lanes.sums.rows, len(lanes.maxes))
        pairs = (self._placement.keys, self._placement.rows, self._placement.fields)
        within = [mine < size for (mine, _), size in zip(pairs, sizes, strict=True)]
        mine = [pair[0][keep] for pair, keep in zip(pairs, within, strict=True)]
        theirs = [pair[1][keep] for pair, keep in zip(pairs, within, strict=True)]
        return _Indexes(*mine), _Indexes(*theirs)

    def _mark_replicas(self, position: int) -> None:
        """Leave one replica's part; the others' hashes add up to zero where they agree with it."""
        for key, group in self._replicated:
            digest = self.digest(position, key.name)
            if group[0] == self._topology.rank:
                balance = (len(group) - 1) * digest
            else:
                balance = -digest
                self._digits[position, key.row : key.row + key.reduction.sums] = 0
                self._counters[position, key.index] = 0
                self._dense.of(self._tallies[position], key.tally, key.reduction.tallies)[:] = 0
                self._fields[position, key.field : key.field + key.reduction.maxes] = NOTHING
            self._counters[position, key.index, Counter.REPLICA] = balance

    def _keys_with_replicas(self) -> list[tuple[Key, list[int]]]:
        """Keys that other ranks hold too, and this rank's set of replicas."""
        found = []
        for key in self.stream.table:
            dimensions = key.metric.replicated_over
            if dimensions and key.name not in self.stream.aside:
                group = self._topology.group_of(dimensions)
                if len(group) > 1:
                    found.append((key, group))
        return found

    def counts(self, key: Key) -> bool:
        """Whether this rank's part of an agreed key counts: no other replica's stands for it."""
        groups = [group for other, group in self._replicated if other.name == key.name]
        return all(group[0] == self._topology.rank for group in groups)

    def digest(self, position: int, name: str) -> int:
        """A hash below 2^40 of this rank's own state of a key; 0 where it has none.

        Integers and floats of the same value have the same one.
        """
        lanes, key = self.lanes(position), self._table.get(name)
        if lanes is None or key is None or key.index >= len(lanes.counters):
            return 0
        counters = lanes.counters[key.index]
        if not counters.any():
            return 0
        counters = counters.copy()
        counters[[Counter.FLOATS, Counter.WEIGHT_FLOATS]] = 0
        rows = exact.take(lanes.sums, slice(key.row, key.row + key.reduction.sums))
        units = [unit << 32 * rows.lo for unit in exact.decode(rows.digits, rows.lo)]
        fields = lanes.maxes[key.field : key.field + key.reduction.maxes]
        # what is told apart by rank differs by the rank alone
        shared = 0 if key.reduction.at_rank else key.reduction.tallies
        tallies = lanes.tallies.part(key.tally, key.tally + shared)
        told = (units, counters, fields, tallies.cells, tallies.counts)
        text = repr([list(map(int, part)) for part in told]).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=5).digest(), "little")

    # --- the arrays that travel ---

    def sums(self) -> Int64Array:
        """What the SUM is taken of."""
        parts = (self._digits, self._counters, self._tallies)
        return np.concatenate([part.reshape(-1) for part in parts])

    def maxes(self) -> Int64Array:
        """What the MAX is taken of."""
        return np.concatenate([self._fields.reshape(-1), self._steps.reshape(-1)])

    def take(self, sums: Int64Array, maxes: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Take this message's part of the results from their beginning; the rest of both."""
        self._digits, sums = _split(sums, self._digits)
        self._counters, sums = _split(sums, self._counters)
        self._tallies, sums = _split(sums, self._tallies)
        self._fields, maxes = _split(maxes, self._fields)
        self._steps, maxes = _split(maxes, self._steps)
        self.spans = [self._span(position) for position in range(len(self.slots))]
        return sums, maxes

    # --- the merged result ---

    def _span(self, position: int) -> Span:
        late = self.slots[position][1]
        if late is not None:
            return Span(late, late, 1)
        steps = self._steps[position]
        if steps[COUNT] == NOTHING:
            return NO_STEPS
        return Span(-int(steps[FIRST_NEGATED]), int(steps[LAST]), int(steps[COUNT]))

    def doubted_steps(self) -> list[int]:
        """The slots of whose window ranks logged different steps."""
        differ = self._steps[:, DIGEST] != -self._steps[:, DIGEST_NEGATED]
        logged = self._steps[:, COUNT] != NOTHING
        return [int(position) for position in np.flatnonzero(differ & logged)]

    def fields(self, position: int, start: int, count: int) -> Int64Array:
        """Merged fields of a slot, to be read or replaced."""
        return self._fields[position, start : start + count]

    def balances(self) -> Int64Array:
        """For each slot and key, zero where the replicas agree."""
        balances: Int64Array = self._counters[:, :, Counter.REPLICA]
        return balances

    def rows(self) -> Iterator[Row]:
        """The merged rows, in the order in which they are written."""
        for position, (label, late) in enumerate(self.slots):
            yield Row(
                self.stream,
                label,
                late,
                self.spans[position],
                self._lo,
                self._digits[position],
                self._counters[position],
                self._fields[position],
                self._tallies[position],
                self._dense,
            )


class _Indexes(NamedTuple):
    keys: Int64Array
    rows: Int64Array
    fields: Int64Array


def _split(flat: Int64Array, like: Int64Array) -> tuple[Int64Array, Int64Array]:
    return flat[: like.size].reshape(like.shape), flat[like.size :]
