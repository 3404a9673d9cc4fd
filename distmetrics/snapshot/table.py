"""The keys of a logger or child as this process has met them, with their places in the lanes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from distmetrics.errors import DeclarationConflict
from distmetrics.reductions import Reduction
from distmetrics.registry import Metric
from distmetrics.snapshot.names import Giver, Names


@dataclass(frozen=True)
class Key:
    """A key and where its state lies.

    Attributes:
        name: as used in the call, without the child's prefix.
        metric: what the registry says of it.
        reduction: how its contributions combine.
        index: its row in the counter lane.
        row: its first row in the sum lane.
        field: its first field in the max lane.
        tally: its first tally.
        full: its name in records and messages, with the child's prefix.
    """

    name: str
    metric: Metric
    reduction: Reduction
    index: int
    row: int
    field: int
    tally: int
    full: str = ""


class Extent(NamedTuple):
    """How large the lanes of some keys are."""

    rows: int
    keys: int
    fields: int
    tallies: int


class KeyTable:
    """An append-only table of keys: what was appended never moves.

    The training thread appends and the worker reads what it finds, without a lock.

    Args:
        prefix: what the keys begin with in records.
        names: those that are given in the same records as these keys, by the keys of other tables
            too; None: names need not be distinct.
    """

    def __init__(self, prefix: str = "", names: Names | None = None) -> None:
        self.prefix = prefix
        self._names = names
        self.keys: list[Key] = []
        self._by_name: dict[str, Key] = {}
        self.rows = 0
        self.fields = 0
        self.tallies = 0

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)

    def extent(self) -> Extent:
        """How large the lanes of all keys are, at one moment.

        The attributes read one after another may be of two moments.
        """
        return self.extent_of(len(self.keys))

    def extent_of(self, keys: int) -> Extent:
        """How large the lanes of the first keys are."""
        if not keys:
            return Extent(0, 0, 0, 0)
        last = self.keys[keys - 1]
        kind = last.reduction
        rows, fields, tallies = kind.sums, kind.maxes, kind.tallies
        return Extent(last.row + rows, keys, last.field + fields, last.tally + tallies)

    def get(self, name: str) -> Key | None:
        """The key of this name, None if it is not in the table."""
        return self._by_name.get(name)

    def check(self, name: str, reduction: Reduction, entering: Names | None = None) -> None:
        """Raise where a key cannot enter the table, or be what it is in there.

        Args:
            name: the key.
            reduction: as which it comes.
            entering: the names of new keys that are about to enter; a new key's are added.

        Raises:
            DeclarationConflict: the table has the key with another reduction, or a value of
                another key comes back under a name that this one gives.
        """
        known = self._by_name.get(name)
        if known is None:
            if self._names is not None:
                giver = Giver(self.prefix, name, reduction)
                self._names.check(giver)
                if entering is not None:
                    entering.check(giver)
                    entering.add(giver)
        elif known.reduction != reduction:
            raise DeclarationConflict(
                f"key {self.prefix + name!r} was declared as {known.reduction} and now comes as "
                f"{reduction}; a key has one declaration: rename one of them"
            )

    def add(self, name: str, metric: Metric, reduction: Reduction) -> Key:
        """The key of this name, appended where it is new.

        Raises:
            DeclarationConflict: as of `check`.
        """
        self.check(name, reduction)
        known = self._by_name.get(name)
        if known is not None:
            return known
        full = self.prefix + name
        places = (len(self.keys), self.rows, self.fields, self.tallies)
        key = Key(name, metric, reduction, *places, full)
        self.rows += reduction.sums
        self.fields += reduction.maxes
        self.tallies += reduction.tallies
        if self._names is not None:
            self._names.add(Giver(self.prefix, name, reduction))
        self._by_name[name] = key
        self.keys.append(key)
        return key
