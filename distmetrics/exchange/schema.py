"""What all ranks have agreed on: the streams, their keys, and the place of each key in a message.

A schema changes by exchanged data alone, in the same round on every rank, so that the length of
every message follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from distmetrics import reductions
from distmetrics.comm.communicator import name_ranks
from distmetrics.reductions import Reduction
from distmetrics.registry import Metric
from distmetrics.snapshot.names import REMEDY, Conflict, Giver, Names
from distmetrics.snapshot.table import Key, KeyTable

Int64Array = NDArray[np.int64]
Declaration = dict[str, Any]


COLLECTIVE = "\x00"
"""Begins the names of streams to whose windows every rank contributes by a collective call."""


def prefix_of(stream: str) -> str:
    """What the keys of a stream begin with in a record."""
    return f"{stream}/" if stream and not stream.startswith(COLLECTIVE) else ""


def declare(key: Key) -> Declaration:
    """What a rank says of a key to the others."""
    return {
        "reduction": key.reduction.kind,
        "params": dict(key.reduction.params),
        "nonfinite": key.metric.nonfinite,
        "replicated_over": sorted(key.metric.replicated_over),
    }


def said(declaration: Declaration) -> str:
    """A declaration for people."""
    text = str(_reduction(declaration))
    if declaration["replicated_over"]:
        text += f" replicated over {', '.join(declaration['replicated_over'])}"
    return text if declaration["nonfinite"] == "propagate" else f"{text} skipping non-finite values"


def _reduction(declaration: Declaration) -> Reduction:
    return reductions.make(declaration["reduction"], **declaration["params"])


@dataclass
class StreamSchema:
    """What is agreed on a logger or child.

    Attributes:
        name: the child's name, "" for the logger itself.
        every: steps of a window; None: one window until a flush.
        pace: what any rank knows of its steps, as `Pace`.
        names: those that are given in the same records as its own; None: they need not be distinct.
        table: the agreed keys; their order is that of the messages.
        declarations: what was said of each key.
        aside: keys that were declared in two ways, or that give a name which another key gives;
            what is logged under them is left out.
        warned: keys whose replicas were found to differ.
    """

    name: str
    every: int | None
    pace: int = 0
    names: Names | None = None
    table: KeyTable = field(default_factory=KeyTable)
    declarations: dict[str, Declaration] = field(default_factory=dict)
    aside: set[str] = field(default_factory=set)
    warned: set[str] = field(default_factory=set)
    _seen: WeakKeyDictionary[KeyTable, int] = field(default_factory=WeakKeyDictionary, repr=False)
    _placed: WeakKeyDictionary[KeyTable, Placement] = field(
        default_factory=WeakKeyDictionary, repr=False
    )

    @property
    def prefix(self) -> str:
        """What its keys begin with in a record."""
        return prefix_of(self.name)

    def unknown(self, table: KeyTable) -> dict[str, Declaration]:
        """What a rank's table holds that is not agreed, or not as agreed."""
        # neither tables nor what is agreed ever lose a key: those that agreed once do so for good
        seen = self._seen.get(table, 0)
        found = {}
        for key in table.keys[seen:]:
            if key.name not in self.aside:
                declaration = declare(key)
                if self.declarations.get(key.name) != declaration:
                    found[key.name] = declaration
            if not found:
                self._seen[table] = key.index + 1
        return found

    def conflict(self, name: str, declaration: Declaration) -> Conflict | None:
        """What keeps a new key from giving its names in records; None: nothing does."""
        if self.names is None:
            return None
        return self.names.conflict(Giver(self.prefix, name, _reduction(declaration)))

    def add(self, name: str, declaration: Declaration) -> list[Giver]:
        """Agree on a key; the keys that yield their names to it."""
        reduction = _reduction(declaration)
        metric = Metric(
            name,
            reduction,
            nonfinite=declaration["nonfinite"],
            replicated_over=tuple(declaration["replicated_over"]),
        )
        self.table.add(name, metric, reduction)
        self.declarations[name] = declaration
        if self.names is None:
            return []
        return self.names.add(Giver(self.prefix, name, reduction))

    def placement(self, table: KeyTable) -> Placement:
        """Where the state of a rank's keys goes in a message."""
        placed = self._placed.get(table)
        if placed is None or not placed.covers(table, self):
            placed = self._placed[table] = Placement.of(table, self)
        return placed


@dataclass(frozen=True)
class Placement:
    """Indexes of a rank's own lanes, and of the same keys in the agreed order.

    Attributes:
        keys: of the counter lane.
        rows: of the sum lane.
        fields: of the max lane.
        tallies: for each of the rank's own tallies the agreed one, -1 for none.
        basis: the number of own keys, of agreed ones and of those set aside.
        plain: whether the rank's keys are the agreed ones, in the same order.
    """

    keys: tuple[Int64Array, Int64Array]
    rows: tuple[Int64Array, Int64Array]
    fields: tuple[Int64Array, Int64Array]
    tallies: Int64Array
    basis: tuple[int, int, int]
    plain: bool

    @classmethod
    def of(cls, table: KeyTable, schema: StreamSchema) -> Placement:
        """The placement of the keys that are agreed; others have none."""
        own = list(table)
        pairs = []
        for key in own:
            agreed = schema.table.get(key.name)
            if agreed is not None and key.name not in schema.aside:
                pairs.append((key, agreed))

        def spread(of: Sequence[tuple[int, int, int]]) -> tuple[Int64Array, Int64Array]:
            mine = [start + i for start, _, count in of for i in range(count)]
            theirs = [start + i for _, start, count in of for i in range(count)]
            return np.array(mine, np.int64), np.array(theirs, np.int64)

        tallies = np.full(table.extent_of(len(own)).tallies, -1, np.int64)
        for a, b in pairs:
            for i in range(a.reduction.tallies):
                tallies[a.tally + i] = b.tally + i
        return cls(
            spread([(a.index, b.index, 1) for a, b in pairs]),
            spread([(a.row, b.row, a.reduction.sums) for a, b in pairs]),
            spread([(a.field, b.field, a.reduction.maxes) for a, b in pairs]),
            tallies,
            (len(own), *_agreed_size(schema)),
            len(pairs) == len(own) == len(schema.table)
            and all(a.index == b.index for a, b in pairs),
        )

    def covers(self, table: KeyTable, schema: StreamSchema) -> bool:
        """Whether nothing was added to either since."""
        return self.basis == (len(table), *_agreed_size(schema))


def _agreed_size(schema: StreamSchema) -> tuple[int, int]:
    return len(schema.table), len(schema.aside)


class Schema:
    """The agreed streams, in the order of the messages.

    Args:
        distinct: whether the names that keys give must be: where whole records are made of them.
    """

    def __init__(self, distinct: bool = True) -> None:
        self._streams: dict[str, StreamSchema] = {}
        self._names = Names() if distinct else None
        self.aside: set[str] = set()

    def __iter__(self) -> Iterator[StreamSchema]:
        return (stream for stream in self._streams.values() if stream.name not in self.aside)

    def get(self, name: str) -> StreamSchema | None:
        """The stream of this name, None where it is not agreed yet."""
        return self._streams.get(name)

    def learn(self, said_by: Sequence[Mapping[str, Any]]) -> list[str]:
        """Take in what every rank said, in rank order; the conflicts, as texts.

        Args:
            said_by: for each rank its streams: name to ``{"every", "pace", "keys"}``.
        """
        conflicts = []
        for name in dict.fromkeys(name for said in said_by for name in said):
            given = {rank: said[name] for rank, said in enumerate(said_by) if name in said}
            conflicts += self._learn_stream(name, given)
        return conflicts

    def state(self) -> list[dict[str, Any]]:
        """All that is agreed, JSON-able."""
        return [
            {
                "name": stream.name,
                "every": stream.every,
                "pace": stream.pace,
                "keys": stream.declarations,
                "aside": sorted(stream.aside),
                "stream_aside": stream.name in self.aside,
            }
            for stream in self._streams.values()
        ]

    def unite(self, states: Sequence[Sequence[Mapping[str, Any]]]) -> None:
        """Agree on all that any rank had agreed on before a round was broken off.

        The order of a rank that got further continues that of the others.
        """
        for state in states:
            for said in state:
                stream = self._made(said["name"], said["every"])
                stream.pace |= said["pace"]
                stream.aside |= set(said["aside"])
                for key, declaration in said["keys"].items():
                    if key not in stream.declarations:
                        stream.add(key, declaration)
                if said["stream_aside"]:
                    self.aside.add(stream.name)

    def _made(self, name: str, every: int | None) -> StreamSchema:
        """The stream of this name, made where it is new."""
        if name not in self._streams:
            names = self._names
            if names is not None and name.startswith(COLLECTIVE):
                names = Names()  # what a collective call returns stands for itself
            self._streams[name] = StreamSchema(name, every, names=names)
        return self._streams[name]

    def _learn_stream(self, name: str, given: Mapping[int, Mapping[str, Any]]) -> list[str]:
        if name in self.aside:
            return []
        every: dict[Any, list[int]] = {}
        for rank, stream in given.items():
            every.setdefault(stream["every"], []).append(rank)
        known = self._streams.get(name)
        if known is not None:
            every.setdefault(known.every, [])
        if len(every) > 1:
            self.aside.add(name)
            ways = "; ".join(
                f"every={value} ({name_ranks(ranks) if ranks else 'agreed before'})"
                for value, ranks in every.items()
            )
            return [f"child {name!r} was made in two ways: {ways}; it is set aside"]
        if known is None:
            known = self._made(name, next(iter(every)))
        for stream in given.values():
            known.pace |= stream["pace"]
        conflicts = []
        for key in dict.fromkeys(key for stream in given.values() for key in stream["keys"]):
            ranks = {rank: s["keys"][key] for rank, s in given.items() if key in s["keys"]}
            conflicts += self._learn_key(known, key, ranks)
        return conflicts

    def _learn_key(
        self, stream: StreamSchema, key: str, ranks: Mapping[int, Declaration]
    ) -> list[str]:
        ways: list[tuple[Declaration, list[int]]] = []
        if key in stream.declarations:
            ways.append((stream.declarations[key], []))
        for rank, declaration in ranks.items():
            for way, by in ways:
                if way == declaration:
                    by.append(rank)
                    break
            else:
                ways.append((declaration, [rank]))
        if len(ways) == 1:
            declaration, by = ways[0]
            return [] if key in stream.declarations else self._enter(stream, key, declaration, by)
        stream.aside.add(key)
        texts = "; ".join(
            f"{said(way)} ({name_ranks(by) if by else 'agreed before'})" for way, by in ways
        )
        text = (
            f"key {stream.prefix + key!r} was declared in two ways: {texts}; it is set aside, the "
            "other keys go on: declare it alike on every rank"
        )
        return [text]

    def _enter(
        self, stream: StreamSchema, key: str, declaration: Declaration, ranks: Sequence[int]
    ) -> list[str]:
        """Agree on a new key, or set it aside; why, as a text."""
        found = stream.conflict(key, declaration)
        if found is not None:
            stream.aside.add(key)
            if found.yields:
                return []
            text = f"{found.text} ({name_ranks(ranks)}), which is set aside, the other keys go on"
            return [f"{text}: {REMEDY}"]
        for giver in stream.add(key, declaration):
            self._streams[giver.prefix.removesuffix("/")].aside.add(giver.name)
        return []
