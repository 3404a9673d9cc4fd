"""What a reduction shows to be in doubt, and what the ranks tell each other to settle it.

Whether there is a doubt is seen in merged lanes, hence alike on every rank; only then does it
cost a collective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from distmetrics.comm.communicator import name_ranks
from distmetrics.exchange.message import Message, Span
from distmetrics.exchange.topology import Topology
from distmetrics.reductions import NOTHING, SAME_STEP, disputed, same_value
from distmetrics.snapshot.table import Key
from distmetrics.window.stream import Steps, union

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
            f"key {name!r} should be the same on all ranks and differs on {name_ranks(differ)} "
            f"({values}); rank {chosen}'s is logged"
        )
        return [(name, text)]


@dataclass
class ReplicasDiffer:
    """Ranks that should hold the same value of a key do not."""

    message: Message
    position: int
    key: Key
    nothing: ClassVar[Any] = 0

    def mine(self) -> Any:
        return self.message.digest(self.position, self.key.name)

    def settle(self, told: Sequence[Any], topology: Topology) -> Warnings:
        name = self.message.stream.prefix + self.key.name
        dimensions = self.key.metric.replicated_over
        differ: list[int] = []
        only: list[int] = []
        for first, *others in topology.replicas(dimensions):
            wrong = [rank for rank in others if told[rank] != told[first]]
            (differ if told[first] else only).extend(wrong)
        over = f"key {name!r} is replicated over {', '.join(map(repr, dimensions))}"
        texts = []
        if differ:
            texts.append(
                f"{over}, but {name_ranks(differ)} logged something else than the replica that "
                "counts (the first of each set)"
            )
        if only:
            texts.append(
                f"{over}, but {name_ranks(only)} logged it while the replica that counts (the "
                "first of each set) did not: what they logged is left out"
            )
        return [(name, text) for text in texts]


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
