"""What has been reduced so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.derivations import Derivations
from distmetrics.exchange.message import Row
from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.exchange.topology import Topology
from distmetrics.record import Value
from distmetrics.reduced.batch import Layout, batches
from distmetrics.reduced.row import Reduced, row_state
from distmetrics.reductions import State


class Results:
    """What has been reduced so far, the same on every rank.

    Args:
        topology: which ranks are replicas.
        derivations: the derived keys.
    """

    def __init__(self, topology: Topology, derivations: Derivations | None = None) -> None:
        self._topology = topology
        self._derivations = derivations
        self._totals: dict[str, dict[str, State]] = {}
        self._latest: dict[str, dict[str, Reduced | _Adopted]] = {}
        self._last: dict[str, Reduced] = {}
        self._labels: dict[str, int] = {}
        self._layouts: dict[str, Layout] = {}

    def add(self, rows: Iterable[Row], streams: Iterable[str] = ()) -> list[Reduced]:
        """Take in the rows of a round, in order; those that hold anything.

        Rows that come again, since a round was broken off, do not count twice in running totals.

        Args:
            rows: the merged rows.
            streams: the names of all streams that the ranks have agreed on.
        """
        derivations = self._derivations or None  # looked at now: keys may be declared meanwhile
        children = tuple(filter(None, map(prefix_of, streams))) if derivations else ()
        added = []
        seen = dict(self._labels)
        for batch in batches(rows, self._layouts):
            logged = np.flatnonzero(batch.present.any(axis=1)).tolist()
            for index, row in enumerate(batch.rows):
                name = row.stream.name
                self._labels[name] = max(row.label, seen.get(name, -1))
                if index not in logged:
                    continue
                again = row.label <= seen.get(name, -1)
                totals = self._running(row, batch.layout, again)
                reduced = Reduced(batch, index, self._topology, totals, derivations, children)
                self._last[name] = reduced
                self._note_latest(reduced, batch.layout, batch.valued[index])
                added.append(reduced)
        return added

    def totals(self, stream: str) -> dict[str, Any]:
        """The running totals of a stream, as plain values."""
        return {key: state.to_plain() for key, state in self._totals.get(stream, {}).items()}

    def last(self, stream: str, label: int | None = None) -> dict[str, Value]:
        """The values of the stream's last row; empty before the first, or if not of this label."""
        reduced = self._last.get(stream)
        if reduced is None or (label is not None and reduced.row.label != label):
            return {}
        return dict(reduced.values)

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
                    if key.startswith(prefix)
                    and _owner(keys, reduced.made_of.get(key, key[len(name) :])) is reduced
                }
        return found

    def continue_from(self, stream: str, label: int, totals: Mapping[str, State]) -> None:
        """Go on after rows that were reduced before: their last label, and their totals."""
        self._labels[stream] = label
        self._totals[stream] = dict(totals)

    def told(self) -> dict[str, Any]:
        """All of it as JSON-able values, for ranks that have missed a part."""
        return {
            "labels": self._labels,
            "totals": {stream: self.totals(stream) for stream in self._totals},
            "latest": {stream: _plain_rows(keys) for stream, keys in self._latest.items()},
        }

    def adopt(self, told: Mapping[str, Any]) -> None:
        """Replace all of it by what `told` gave on another rank."""
        self._labels = dict(told["labels"])
        self._totals = {
            stream: {key: State.from_plain(plain) for key, plain in totals.items()}
            for stream, totals in told["totals"].items()
        }
        self._latest = {
            stream: {
                key: adopted
                for row in rows
                for adopted in [_Adopted(row["step"], row["values"], row["made_of"])]
                for key in row["keys"]
            }
            for stream, rows in told["latest"].items()
        }

    def _running(self, row: Row, layout: Layout, again: bool) -> dict[str, State]:
        """The running totals up to this row, to which it is added unless it comes again."""
        cumulative = [key for key in layout.cumulative if row.counters[key.index].any()]
        if not cumulative or row.stream.name.startswith(COLLECTIVE):
            return {}  # a collective call stands for itself
        totals = self._totals.setdefault(row.stream.name, {})
        for key in cumulative:
            if again and key.name in totals:
                continue
            state = row_state(row, key)
            before = totals.get(key.name)
            totals[key.name] = state if before is None else before.merged(state)
        return {key.name: totals[key.name] for key in cumulative}

    def _note_latest(self, reduced: Reduced, layout: Layout, valued: NDArray[np.bool_]) -> None:
        latest = self._latest.setdefault(reduced.row.stream.name, {})
        names = [layout.keys[index].name for index in np.flatnonzero(valued).tolist()]
        prefix = reduced.row.stream.prefix
        names += [name.removeprefix(prefix) for name in reduced.derived]
        if reduced.row.late is not None:
            step = reduced.step
            names = [name for name in names if name not in latest or latest[name].step <= step]
        latest.update(dict.fromkeys(names, reduced))


@dataclass(frozen=True, eq=False)
class _Adopted:
    """A row of which another rank has told the values."""

    step: int
    values: Mapping[str, Value]
    made_of: Mapping[str, str]


def _plain_rows(keys: Mapping[str, Reduced | _Adopted]) -> list[dict[str, Any]]:
    """The rows that hold the latest values of keys, and which keys these are."""
    rows: dict[Reduced | _Adopted, list[str]] = {}
    for key, row in keys.items():
        rows.setdefault(row, []).append(key)
    return [
        {
            "step": row.step,
            "values": dict(row.values),
            "made_of": dict(row.made_of),
            "keys": names,
        }
        for row, names in rows.items()
    ]


def _owner(keys: Mapping[str, Reduced | _Adopted], name: str) -> Reduced | _Adopted | None:
    """The row that has the latest value of a key, or of what is said beside it."""
    return keys.get(name) or keys.get(name.removesuffix("/nonfinite"))
