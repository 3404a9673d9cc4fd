"""Snapshots of calls, and what they add to the lanes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distmetrics import exact
from distmetrics.errors import DistmetricsError
from distmetrics.registry import Registry
from distmetrics.snapshot import Snapshot, Snapshotter
from distmetrics.window.fold import fold
from distmetrics.window.lanes import Slot


class Taker:
    """A `Snapshotter` that keeps what it is told.

    Attributes:
        notes: what a user is told once.
        reports: pairs of a key and why its value was left out.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        prefix: str = "",
        lenient: bool = False,
        fast: bool = True,
    ) -> None:
        self.notes: list[str] = []
        self.reports: list[tuple[str, DistmetricsError]] = []
        self._fast = fast
        self.snapshotter = Snapshotter(
            Registry() if registry is None else registry,
            prefix,
            (lambda key, error: self.reports.append((key, error))) if lenient else None,
            self.notes.append,
        )

    def take(self, outputs: Any, weight: Any = None) -> Snapshot | None:
        """A snapshot; key by key where there is to be no fast path."""
        if not self._fast:
            self.snapshotter._fast.clear()
        return self.snapshotter.take(outputs, weight)

    @property
    def learned(self) -> int:
        """How many forms of calls have a fast path."""
        return len(self.snapshotter._fast)

    def state(self, *snapshots: Snapshot | None) -> dict[str, Any]:
        """For each key what the snapshots add up to: sums, counters, maxes."""
        table = self.snapshotter.table
        slot = Slot(pending=[(snapshot, 0) for snapshot in snapshots if snapshot is not None])
        fold([slot], table)
        if slot.lanes is None:
            return {}
        lanes = slot.lanes.grown(table.extent())
        units = exact.decode(lanes.sums.digits, lanes.sums.lo)
        scaled = [unit << 32 * lanes.sums.lo for unit in units]
        return {
            key.name: (
                scaled[key.row : key.row + key.reduction.sums],
                lanes.counters[key.index].tolist(),
                lanes.maxes[key.field : key.field + key.reduction.maxes].tolist(),
            )
            for key in table
        }


def sums(taker: Taker, *calls: Mapping[str, Any]) -> dict[str, float]:
    """The first sum of every key after some calls."""
    state = taker.state(*[taker.take(call) for call in calls])
    return {key: rows[0] / 2**1088 for key, (rows, _, _) in state.items() if rows}
