"""Rank 0's end of the way: records to the sinks, each kept from harming the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distmetrics.record import Record
from distmetrics.rundir import METRICS
from distmetrics.sinks import IsolatedSink, JsonlSink, NamedSink, Run, Sink, SinkStats
from distmetrics.sinks.isolated import failure
from distmetrics.spool.merge import carried_over, read_rows

PATIENCE = 1.0
"""Seconds that the worker gives a sink that lags but moves, so that windows gather before it."""
CAPACITY = 4096
"""Records that wait for one sink, at most."""
CLOSING = 10.0
"""Seconds that a sink has to close, if it does not ask for more."""
KEPT = 10_000
"""Records that wait for the disk of ``metrics.jsonl``, at most."""
LOG = "jsonl"


class Writer:
    """The sinks of a run. Used from the worker's thread, but for `handle` and `stats`.

    Args:
        sinks: the sinks by name, besides the JSONL file.
        run: what the sinks are told.
        report: receives what a user should know.
        remember: receives what finds the sinks' own runs again, whenever it has changed.
        restore: writes again what has been deleted of the run directory.
    """

    def __init__(
        self,
        sinks: Sequence[NamedSink],
        run: Run,
        report: Callable[[str], object],
        remember: Callable[[Mapping[str, Any]], object] = lambda states: None,
        restore: Callable[[], object] = lambda: None,
    ) -> None:
        self._run = run
        self._report = report
        self._remember = remember
        self._restore = restore
        self._states: dict[str, Any] = dict(run.state)
        self._direct: dict[str, Sink] = {}
        self._isolated: dict[str, IsolatedSink] = {}
        self._log = None if run.directory is None else JsonlSink()
        self._log_is_open = False
        self._writing = threading.RLock()
        self._closed = False
        self._unwritten: list[Record] = []
        self._unsynced = False
        for name, sink in sinks:
            if getattr(sink, "direct", False):
                self._direct[name] = sink
            else:
                self._isolated[name] = IsolatedSink(sink, report, name=name, capacity=CAPACITY)
        self._first_step: int | None = None
        self._complete: Mapping[str, int] = {}
        self._opened = False
        self._opening = threading.Lock()
        self._failed: set[str] = set()
        names = [*self._direct, *([] if self._log is None else [LOG])]
        self._written = dict.fromkeys(names, 0)
        self._errors = dict.fromkeys(names, 0)
        self._lost = 0
        self.last_step = -1

    @property
    def committed(self) -> bool:
        """Whether every record is in ``metrics.jsonl``, through to the disk."""
        return not self._unwritten and not self._unsynced

    def go_on(self, first_step: int, complete: Mapping[str, int]) -> None:
        """Tell, before the first record, where a resumed run goes on.

        Args:
            first_step: of the logger's first window.
            complete: for each stream the label below which earlier attempts have written all; empty
                where they have written all there is.
        """
        self._first_step, self._complete = first_step, complete

    def open(self, first: Record | None = None) -> None:
        """Open the sinks, once; they open at the first record, or when a handle is asked for."""
        with self._opening:  # the worker writes only to what is open
            if not self._opened:
                self._open(first)
                self._opened = True

    def _open(self, first: Record | None) -> None:
        run = self._run
        if run.attempt and first is not None:
            known = first.first_step if self._first_step is None else self._first_step
            # the steps of a child may be its own
            begin = known if first.logger else min(known, first.first_step)
            run = replace(run, resumed_from=begin)
        if self._log is not None:
            self._try(LOG, "opening", self._open_log)
        for name, sink in self._direct.items():
            mine = _for_sink(run, name)
            if not self._try(name, "opening", lambda s=sink, r=mine: s.open(r)):  # type: ignore[misc]
                self._failed.add(name)
        for name, isolated in self._isolated.items():
            isolated.open(_for_sink(run, name))

    def write(self, records: Sequence[Record]) -> None:
        """Hand the records to every sink, in order; once it is closed, to none."""
        with self._writing:
            if not self._closed and (records or not self.committed):
                self._write(records)

    def _write(self, records: Sequence[Record]) -> None:
        records = [*self._carried_over(records), *records]
        self.open(records[0] if records else None)
        self._write_log(records)
        if not records:
            return
        for name, sink in self._direct.items():
            if name not in self._failed:
                self._write_direct(name, sink, _copies(records))
        for isolated in self._isolated.values():
            isolated.write_many(_copies(records))
            if isolated.stats()["queued"] > CAPACITY // 2:
                self._await(isolated)
        self.last_step = max(self.last_step, *(record.step for record in records))
        self._note_states()

    def _carried_over(self, records: Sequence[Record]) -> list[Record]:
        """What comes before the first record of a run that was resumed within a window."""
        folder, marks = self._run.directory, self._complete
        if not (records and marks and self._first_step is not None and folder is not None):
            return []
        self._complete = {}
        rows = read_rows(folder / METRICS)
        return carried_over(rows, self._run.attempt, self._first_step, marks)

    def drain(self, timeout: float) -> None:
        """Give the sinks up to `timeout` seconds to take what they were handed."""
        deadline = time.monotonic() + timeout
        for isolated in self._isolated.values():
            isolated.drain(max(0.0, deadline - time.monotonic()))

    def close(self, timeout: float | None) -> None:
        """Close every sink; those that take too long are left behind.

        Args:
            timeout: seconds for all of them; None: as long as each may take.
        """
        if not self._opened:
            return
        began = time.monotonic()
        # in a thread, since a disk may hang
        closing = threading.Thread(target=self._close_files, name="distmetrics-close", daemon=True)
        closing.start()
        for isolated in self._isolated.values():
            isolated.begin_to_close()
        limit = CLOSING if timeout is None else timeout
        closing.join(limit)
        if closing.is_alive():
            self._report(f"the files of the run did not close within {limit:g} s; left behind")
        for isolated in self._isolated.values():
            limit = getattr(isolated.sink, "close_timeout", CLOSING)
            limit = limit if timeout is None else min(limit, timeout)
            isolated.close(round(max(0.1, began + limit - time.monotonic()), 1))

    def _close_files(self) -> None:
        with self._writing:
            self._write_log(())
            self._closed = True
            self._note_states()
            if self._log is not None and self._log_is_open:
                self._try(LOG, "closing", self._log.close)
            for name, sink in self._direct.items():
                if name not in self._failed:
                    self._try(name, "closing", sink.close)
            if self._unwritten:
                self._report(
                    f"{len(self._unwritten)} records could not be written to metrics.jsonl of "
                    f"{self._run.directory}; once there is room `distmetrics merge` writes those "
                    "that the spools hold, which stats()['spooled_step'] tells"
                )

    def handle(self, name: str) -> Any:
        """The sink's own handle; None where there is no such sink."""
        sink: Any = self._isolated.get(name) or self._direct.get(name)
        if name == LOG:
            sink = self._log
        if sink is None:
            return None
        self.open()
        return getattr(sink, "handle", None)

    def stats(self) -> dict[str, SinkStats]:
        """For each sink: queued, written, dropped, errors."""
        direct = {
            name: SinkStats(
                queued=len(self._unwritten) if name == LOG else 0,
                written=written,
                dropped=self._lost if name == LOG else 0,
                errors=self._errors[name],
            )
            for name, written in self._written.items()
        }
        return direct | {name: sink.stats() for name, sink in self._isolated.items()}

    def _write_log(self, records: Sequence[Record]) -> None:
        """Append to ``metrics.jsonl``; what the disk does not take waits, up to a bound."""
        log = self._log
        if log is None or not (records or not self.committed):
            return
        self._unwritten += records
        waiting = self._unwritten

        def write() -> None:
            self._open_log()
            self._restore()
            if waiting:
                self._unsynced = True
                log.write_many(waiting)
                self._written[LOG] += len(waiting)
                self._unwritten = []
            log.sync()
            self._unsynced = False

        doing = f"writing step {waiting[-1].step}" if waiting else "waiting for the disk"
        if not self._try(LOG, doing, write) and len(self._unwritten) > KEPT:
            if not self._lost:
                self._report(
                    f"{self._run.directory}/metrics.jsonl cannot be written and {KEPT} records "
                    f"wait: the oldest, of step {waiting[0].step}, is lost; further losses are "
                    "counted in stats()"
                )
            self._lost += len(waiting) - KEPT
            self._unwritten = waiting[-KEPT:]

    def _open_log(self) -> None:
        """Open the JSONL file, where it is not open yet."""
        if self._log is not None and not self._log_is_open:
            self._log.open(self._run)
            self._log_is_open = True

    def _note_states(self) -> None:
        """Remember what finds the sinks' own runs again after a restart."""
        states: dict[str, Any] = {}
        for name, sink in {**self._direct, **self._isolated}.items():
            state = getattr(sink, "state", None)
            if state is not None:
                states[name] = state()
        states = {name: state for name, state in states.items() if state}
        if states and states != self._states:
            self._states = states
            self._remember(states)

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
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything, SystemExit too
            self._errors[name] += 1
            if self._errors[name] == 1:
                self._report(failure(name, doing, error))
            return False
        return True


def _copies(records: Sequence[Record]) -> list[Record]:
    """The records for one sink, which may do with their values what it likes."""
    return [replace(record, values=dict(record.values)) for record in records]


def _for_sink(run: Run, name: str) -> Run:
    """The run with the state of this sink alone."""
    return replace(run, state=run.state.get(name, {}))
