"""A stream that is fed by hand, and what its windows hold."""

from __future__ import annotations

from typing import Any

from distmetrics.registry import Registry
from distmetrics.snapshot import Snapshot
from distmetrics.window.lanes import Slot
from distmetrics.window.stream import Stream, Window
from tests.snapshot.taking import Taker


class Feed:
    """A stream with a count `n`.

    Attributes:
        stream: what is fed.
        closed: its closed windows so far, by label.
    """

    def __init__(self, every: int | None, promised: int = 0) -> None:
        registry = Registry()
        registry.count("n*")
        self._taker = Taker(registry)
        table = self._taker.snapshotter.table
        self.stream = Stream("", every, table, promised, 0.0)
        self.closed: dict[int, Window] = {}

    def snapshot(self, **values: int) -> Snapshot:
        """A snapshot of counts."""
        taken = self._taker.take(values)
        assert taken is not None
        return taken

    def log(self, step: int | None, n: int) -> None:
        """Log `n`."""
        self.stream.log(step, self.snapshot(n=n), 0.0)

    def take(self) -> dict[int, Window]:
        """The windows closed since the last call."""
        closed = self.stream.take_closed()
        self.closed |= closed
        return closed

    def counted(self, window: Window) -> tuple[int | float | None, dict[int, Any]]:
        """What a window holds of `n`: in its own steps, and in each late one."""
        return self._total(window.main), {step: self._total(s) for step, s in window.late.items()}

    def _total(self, slot: Slot) -> int | float | None:
        key = self.stream.table.get("n")
        return None if slot.lanes is None or key is None else slot.lanes.total(key)
