"""What a reduction shows to be in doubt, and what the ranks tell each other to settle it.

Whether there is a doubt is seen in merged lanes, hence alike on every rank; only then does it
cost a collective.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from distmetrics import exact
from distmetrics.comm.communicator import name_ranks
from distmetrics.exchange.message import Message, Span
from distmetrics.exchange.topology import Topology
from distmetrics.reductions import NOTHING, SAME_STEP, State, disputed, same_value
from distmetrics.snapshot.table import Key
from distmetrics.window.labels import step_of
from distmetrics.window.steps import Steps, union

Warnings = list[tuple[str, str]]
"""Pairs of a key and what was found of it."""


class Doubt(Protocol):
    """Something that the merged lanes leave open.

    Attributes:
        nothing: what `mine` is on a rank that has no data.
    """

    nothing: ClassVar[Any]

    def mine(self) -> Any:
        """What this rank has to say of it, JSON-able."""

    def settle(self, told: Sequence[Any], topology: Topology) -> Warnings:
        """Settle it with what every rank has said, in rank order; what a user should know."""


@dataclass
class StepsDiffer:
    """Ranks logged different steps of a window: which did any rank log?"""

    message: Message
    position: int
    nothing: ClassVar[Any] = []

    def mine(self) -> Any:
        steps = self.message.steps(self.position)
        return [] if steps is None else steps.runs

    def settle(self, told: Sequence[Any], topology: Topology) -> Warnings:
        steps = union(Steps(runs) for runs in told)
        self.message.spans[self.position] = Span.of(steps)
        return []


@dataclass
class ValuesDiffer:
    """A value that should be the same differs, or ranks logged it last at different steps."""

    message: Message
    position: int
    key: Key
    nothing: ClassVar[Any] = None

    def mine(self) -> Any:
        lanes = self.message.lanes(self.position)
        own = self.message.own(self.key.name)
        if lanes is None or own is None or own.index >= len(lanes.counters):
            return None
        if not self.message.counts(self.key):
            return None
        fields = lanes.maxes[own.field : own.field + own.reduction.maxes].tolist()
        return None if fields[SAME_STEP] == NOTHING else fields

    def settle(self, told: Sequence[Any], topology: Topology) -> Warnings:
        last = max(fields[SAME_STEP] for fields in told if fields is not None)
        found = {
            rank: fields
            for rank, fields in enumerate(told)
            if fields is not None and fields[SAME_STEP] == last
        }
        chosen = min(found)
        merged = self.message.fields(self.position, self.key.field, self.key.reduction.maxes)
        merged[:] = found[chosen]
        given = {rank: repr(same_value(fields)) for rank, fields in found.items()}
        differ = [rank for rank in given if given[rank] != given[chosen]]
        if not differ:
            return []
        name = self.message.stream.prefix + self.key.name
        values = ", ".join(f"rank {rank}: {given[rank]}" for rank in [chosen, *differ][:8])
        text = (
            f"key {name!r} should be the same on all ranks and differs on {name_ranks(differ)} at "
            f"step {last} ({values}); rank {chosen}'s is logged: set it alike on every rank, or "
            "declare it otherwise, per_rank say"
        )
        return [(name, text)]


@dataclass
class ReplicasDiffer:
    """Ranks that should hold the same value of a key do not."""

    message: Message
    position: int
    key: Key
    nothing: ClassVar[Any] = (0, None)

    def mine(self) -> Any:
        digest = self.message.digest(self.position, self.key.name)
        return digest, _own_value(self.message, self.position, self.key) if digest else None

    def settle(self, told: Sequence[Any], topology: Topology) -> Warnings:
        name = self.message.stream.prefix + self.key.name
        dimensions = self.key.metric.replicated_over
        differ: dict[int, int] = {}
        only: dict[int, int] = {}
        for first, *others in topology.replicas(dimensions):
            wrong = [rank for rank in others if told[rank][0] != told[first][0]]
            (differ if told[first][0] else only).update(dict.fromkeys(wrong, first))
        over = f"key {name!r} is replicated over {', '.join(map(repr, dimensions))}"
        at = f"at step {self._step()}"
        texts = []
        if differ:
            texts.append(
                f"{over}, but {name_ranks(list(differ))} logged something else than the replica "
                f"that counts (the first of each set) {at}{_values(differ, told)}; log the same on "
                "all replicas, or declare the key without replicated_over= if each has data of its "
                "own"
            )
        if only:
            texts.append(
                f"{over}, but {name_ranks(list(only))} logged it while the replica that counts "
                f"(the first of each set) did not: what they logged is left out, first {at}"
                f"{_values(only, told)}; log the key on all replicas"
            )
        return [(name, text) for text in texts]

    def _step(self) -> int:
        """The last step that any rank logged of what is in doubt."""
        label, late = self.message.slots[self.position]
        span = self.message.spans[self.position]
        return late if late is not None else span.last if span.size else step_of(label)


def _values(wrong: Mapping[int, int], told: Sequence[Any]) -> str:
    """What some ranks logged, and the replicas that count for them, as far as it can be shown."""
    ranks = dict.fromkeys(rank for pair in list(wrong.items())[:4] for rank in reversed(pair))
    values = [
        f"rank {rank}: {told[rank][1] if told[rank][0] else 'nothing'}"
        for rank in ranks
        if told[rank][1] is not None or not told[rank][0]
    ]
    return f" ({', '.join(values)})" if values else ""


def _own_value(message: Message, position: int, key: Key) -> str | None:
    """The value of this rank's own part of a key, for people; None where that says little."""
    lanes, own = message.lanes(position), message.own(key.name)
    reduction = key.reduction
    if lanes is None or own is None or reduction.virtual or reduction.tallies:
        return None
    rows = exact.take(lanes.sums, slice(own.row, own.row + reduction.sums))
    steps = message.steps(position)
    one = message.stream.every is None or not steps
    state = State(
        exact.decode(rows.digits, rows.lo),
        rows.lo,
        lanes.counters[own.index].tolist(),
        lanes.maxes[own.field : own.field + reduction.maxes].tolist(),
        1 if one or steps is None else len(steps),
    )
    return repr(reduction.value(state, _ALONE, key.metric.nonfinite))


class _Alone:
    """A window seen by a key that needs no other."""

    def total(self, key: str) -> None:
        return None

    def holders(self, key: str) -> int:
        return 1


_ALONE = _Alone()


def find_doubts(messages: Sequence[Message]) -> list[Doubt]:
    """What the merged lanes of a round leave open, in an order that all ranks share."""
    doubts: list[Doubt] = []
    for message in messages:
        doubts += [StepsDiffer(message, position) for position in message.doubted_steps()]
        for key in message.stream.table:
            if key.reduction.kind == "same":
                doubts += [
                    ValuesDiffer(message, position, key)
                    for position in range(len(message.slots))
                    if disputed(message.fields(position, key.field, key.reduction.maxes).tolist())
                ]
        doubts += _replica_doubts(message)
    return doubts


def _replica_doubts(message: Message) -> list[Doubt]:
    found: list[Doubt] = []
    for position, index in np.argwhere(message.balances() != 0).tolist():
        key = message.stream.table.keys[index]
        if key.name not in message.stream.warned:
            message.stream.warned.add(key.name)
            found.append(ReplicasDiffer(message, position, key))
    return found
