"""Rank 0's end of the way: records to the sinks, each kept from harming the others."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from distmetrics.record import Record
from distmetrics.sinks import IsolatedSink, JsonlSink, NamedSink, Run, Sink, SinkStats

PATIENCE = 1.0
"""Seconds that the worker gives a sink that lags but moves, so that windows gather before it."""
CAPACITY = 4096


class Writer:
    """The sinks of a run. Used from the worker's thread, but for `handle` and `stats`.

    Args:
        sinks: the sinks by name, besides the JSONL file.
        run: what the sinks are told.
        report: receives what a user should know.
    """

    def __init__(
        self, sinks: Sequence[NamedSink], run: Run, report: Callable[[str], object]
    ) -> None:
        self._run = run
        self._report = report
        self._direct: dict[str, Sink] = {}
        self._isolated: dict[str, IsolatedSink] = {}
        if run.directory is not None:
            self._direct["jsonl"] = JsonlSink()
        for name, sink in sinks:
            if getattr(sink, "direct", False):
                self._direct[name] = sink
            else:
                self._isolated[name] = IsolatedSink(sink, report, name=name, capacity=CAPACITY)
        self._opened = False
        self._failed: set[str] = set()
        self._written = dict.fromkeys(self._direct, 0)
        self._errors = dict.fromkeys(self._direct, 0)
        self.last_step = -1

    def open(self) -> None:
        """Open the sinks, once; they open at the first record."""
        if self._opened:
            return
        self._opened = True
        for name, sink in self._direct.items():
            if not self._try(name, "opening", lambda sink=sink: sink.open(self._run)):  # type: ignore[misc]
                self._failed.add(name)
        for isolated in self._isolated.values():
            isolated.open(self._run)

    def write(self, records: Sequence[Record]) -> None:
        """Hand the records to every sink, in order."""
        if not records:
            return
        self.open()
        for name, sink in self._direct.items():
            if name not in self._failed:
                self._write_direct(name, sink, records)
        for isolated in self._isolated.values():
            isolated.write_many(records)
            if isolated.stats()["queued"] > CAPACITY // 2:
                self._await(isolated)
        self.last_step = max(self.last_step, *(record.step for record in records))

    def drain(self, timeout: float) -> None:
        """Give the sinks up to `timeout` seconds to take what they were handed."""
        deadline = time.monotonic() + timeout
        for isolated in self._isolated.values():
            isolated.drain(max(0.0, deadline - time.monotonic()))

    def close(self, timeout: float) -> None:
        """Close every sink; those that take longer than `timeout` seconds are left behind."""
        if not self._opened:
            return
        for name, sink in self._direct.items():
            if name not in self._failed:
                self._try(name, "closing", sink.close)
        deadline = time.monotonic() + timeout
        for isolated in self._isolated.values():
            isolated.close(max(0.1, deadline - time.monotonic()))

    def handle(self, name: str) -> Any:
        """The sink's own handle; None where there is no such sink."""
        sink = self._isolated.get(name) or self._direct.get(name)
        if sink is None:
            return None
        self.open()
        return getattr(sink, "handle", None)

    def stats(self) -> dict[str, SinkStats]:
        """For each sink: queued, written, dropped, errors."""
        direct = {
            name: SinkStats(
                queued=0, written=self._written[name], dropped=0, errors=self._errors[name]
            )
            for name in self._direct
        }
        return direct | {name: sink.stats() for name, sink in self._isolated.items()}

    def _write_direct(self, name: str, sink: Sink, records: Sequence[Record]) -> None:
        many = getattr(sink, "write_many", None)
        if many is not None:
            if self._try(name, f"writing step {records[-1].step}", lambda: many(records)):
                self._written[name] += len(records)
            return
        for record in records:
            if self._try(name, f"writing step {record.step}", lambda r=record: sink.write(r)):  # type: ignore[misc]
                self._written[name] += 1

    def _await(self, sink: IsolatedSink) -> None:
        """Wait while a sink that lags gets on; one that stands still is not waited for."""
        deadline = time.monotonic() + PATIENCE
        queued = sink.stats()["queued"]
        while queued > CAPACITY // 2 and time.monotonic() < deadline:
            sink.drain(PATIENCE / 10)
            now = sink.stats()["queued"]
            if now >= queued:
                return
            queued = now

    def _try(self, name: str, doing: str, action: Callable[[], object]) -> bool:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - a sink may raise anything
            self._errors[name] += 1
            if self._errors[name] == 1:
                self._report(
                    f"sink {name!r} failed in {doing}: {type(error).__name__}: {error}; the "
                    "training and the other sinks go on, further errors are counted in stats()"
                )
            return False
        return True
