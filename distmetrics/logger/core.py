"""What the scopes of one logger share: the queue to the worker, the worker, and what it tells."""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.comm import LaunchEnv
from distmetrics.comm.communicator import connect, current, name_ranks
from distmetrics.errors import (
    DeclarationConflict,
    DistmetricsError,
    DistmetricsWarning,
    InvalidValue,
    NotInitialized,
    PeerTimeoutError,
    RunDirError,
)
from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.exchange.topology import Mesh, Topology
from distmetrics.logger.clock import Clock
from distmetrics.logger.startup import agree_on_start
from distmetrics.record import Value
from distmetrics.reductions import make
from distmetrics.registry import Registry
from distmetrics.rundir import Resume, RunDirectory
from distmetrics.sinks import Run, SinkSpec, make_sinks
from distmetrics.snapshot import Snapshotter
from distmetrics.snapshot.staging import Staging
from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.journal import Journal
from distmetrics.window.stream import step_of
from distmetrics.worker.checkpoint import STATE, check, totals_of
from distmetrics.worker.streams import (
    Ended,
    Event,
    Flushed,
    Logged,
    Opened,
    Restored,
    Streams,
    Ticket,
)
from distmetrics.worker.worker import Worker
from distmetrics.worker.writer import Writer

if TYPE_CHECKING:
    from distmetrics.logger.scope import Scope

_LOG = logging.getLogger("distmetrics")
DISABLED = "DISTMETRICS_DISABLED"
CLOSING = 30.0
"""Seconds that sinks have to close."""
LEAVING = 4.0
"""Seconds that a logger takes to leave when the training has failed, at most."""


class Core:
    """The parts of a logger on one rank, put together.

    See `distmetrics.logger.Logger` for the arguments.
    """

    def __init__(
        self,
        registry: Registry,
        run_dir: Path | None,
        sinks: str | Sequence[SinkSpec],
        every: int | None,
        *,
        mesh: Mesh | None,
        config: Mapping[str, Any],
        resume: Resume,
        lenient: bool,
        on_step_regress: str,
        peer_timeout: float,
        start_timeout: float,
        notice_after: float,
        raise_lost: bool,
        spool_dir: Path | None,
    ) -> None:
        self.registry = registry
        self.lenient = lenient
        self.disabled = os.environ.get(DISABLED, "") not in ("", "0")
        self.lock = threading.RLock()
        self.clock = Clock()
        self.staging = Staging()
        self.told: deque[str | DistmetricsError] = deque()
        self._on_step_regress = on_step_regress
        self._peer_timeout = peer_timeout
        self._notice_after = notice_after
        self._closed = False
        self._regressed = False
        self._waited = 0.0
        self._bad: dict[str, int] = {}
        self._scopes: dict[str, Snapshotter] = {}
        self._streams = Streams(None, self.warn)
        self._reduced = itertools.count()
        self._states = itertools.count()
        self._entered: dict[str, Scope] = {}
        self._past: dict[str, Any] = {}
        self._saved: dict[str, Any] = {}
        self._logged = False
        self._root_high: Callable[[], int] = lambda: -1
        self._pid = os.getpid()
        if self.disabled:
            return
        named = make_sinks(sinks, run_dir)
        _check_process_group()
        communicator = connect(peer_timeout, start_timeout, notice_after, self.warn)
        self._directory: RunDirectory | None = None
        try:
            self._topology = Topology(communicator.rank, communicator.world_size, mesh)
            start = agree_on_start(
                communicator,
                registry,
                run_dir,
                every,
                config,
                self._topology.recorded(),
                resume,
            )
            self._directory = start.directory
            self._past = start.past
            _check_replicas(registry, self._topology)
            self._streams = Streams(self._journal(spool_dir, start.attempt), self.warn)
        except BaseException:
            communicator.close()
            raise
        self._writer = None
        if communicator.rank == 0:
            name = "distmetrics" if run_dir is None else run_dir.resolve().name
            found = {} if start.directory is None else start.directory.sinks
            run = Run(
                run_dir,
                name,
                registry,
                config,
                communicator.world_size,
                start.attempt,
                state=found,
            )
            self._writer = Writer(named, run, self.warn, self._remember)
        self._worker = Worker(
            self._streams,
            communicator,
            self._topology,
            self._writer,
            self.told.append,
            start.attempt,
            raise_lost=raise_lost,
        )
        self._worker.start()
        atexit.register(self._close_at_exit)

    def _journal(self, folder: Path | None, attempt: int) -> Journal | None:
        """This rank's spool; None where there is none, or it cannot be made."""
        if folder is None:
            return None
        try:
            return Journal(folder, self._topology.rank, attempt)
        except OSError as error:
            self.warn(
                f"the spool {str(folder)!r} cannot be made ({error.strerror or error}): windows "
                "that are not reduced yet are lost if this process dies"
            )
            return None

    def _remember(self, sinks: Mapping[str, Any]) -> None:
        """Keep what finds the sinks' own runs again after a restart."""
        if self._directory is not None:
            try:
                self._directory.remember(sinks)
            except RunDirError as error:
                self.warn(str(error))

    # --- the training thread's side ---

    def open(self, name: str, every: int | None) -> Snapshotter:
        """A new stream; what takes its snapshots."""
        known = self._scopes.get(name)
        if known is not None:
            return known
        snapshotter = Snapshotter(
            self.registry, prefix_of(name), self.lenient, self.note, self.report_bad, self._prefixes
        )
        self._scopes[name] = snapshotter
        self.push(Opened(name, every, snapshotter.table, self.clock.now()))
        return snapshotter

    def push(self, event: Event) -> None:
        """Hand an event to the worker."""
        if not self.disabled:
            self._logged |= isinstance(event, Logged)
            self._streams.push(event)

    def check_open(self) -> None:
        """Raise where the logger is closed."""
        if self._closed:
            raise DistmetricsError("this logger is closed; make a new one to log more")

    def regress(self, step: int, high: int) -> None:
        """What a step lower than an earlier one is."""
        text = (
            f"step {step} comes after step {high}: it is logged under its own step, together with "
            "the window of now"
        )
        if self._on_step_regress == "error":
            raise InvalidValue(
                f"step {step} comes after step {high}, and on_step_regress='error'; "
                "pass rising steps, or on_step_regress='warn'"
            )
        if self._on_step_regress == "warn" and not self._regressed:
            self._regressed = True
            self.warn(text)

    def wait(self, ticket: Ticket, step: int, call: str) -> dict[str, Value]:
        """The values that a collective call waits for."""
        self._worker.wake()
        began = time.monotonic()
        noticed = False
        while not ticket.done.wait(0.05 if noticed else min(0.05, self._notice_after)):
            waited = time.monotonic() - began
            if self._worker.failure is not None and not ticket.done.wait(1.0):
                raise self._worker.failure
            if waited >= self._peer_timeout:
                raise self._absent(ticket, step, call, waited)
            if not noticed and waited >= self._notice_after and ticket.absent:
                noticed = True
                self.warn(f"{call} waits for {_ranks_and_steps(ticket.absent)}")
        self._waited += time.monotonic() - began
        if ticket.error is not None:
            raise ticket.error
        return ticket.values

    def _absent(self, ticket: Ticket, step: int, call: str, waited: float) -> PeerTimeoutError:
        self._waited += waited
        absent = dict(ticket.absent)
        if ticket in self._streams.waiting:
            self._streams.waiting.remove(ticket)
        keys = self._streams.keys_of(ticket.stream)
        logged = f" (keys {', '.join(map(repr, keys[:4]))})" if keys else ""
        who = _ranks_and_steps(absent) if absent else "some ranks"
        return PeerTimeoutError(
            f"{call} at step {step}{logged}: {who} did not call it within "
            f"peer_timeout={self._peer_timeout:g} s; every rank must call it",
            tuple(absent),
        )

    # --- checkpoints ---

    def state(self) -> dict[str, Any]:
        """The state to go on from; see `Logger.state_dict`."""
        if self.disabled:
            return {}
        with self.lock:
            self.check_open()
            self.open(STATE, None)
            self.staging.copy()
            ticket = Ticket(STATE)
            self.push(Flushed(STATE, next(self._states), self.clock.now(), ticket))
        state = self.wait(ticket, self._root_high(), "state_dict")
        self.tell()
        return state

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; see `Logger.load_state_dict`."""
        if self.disabled:
            return
        check(state)
        with self.lock:
            self.check_open()
            if self._logged:
                raise InvalidValue(
                    "load_state_dict comes after something was logged; load the state first"
                )
            self._past = {}
            self._saved = dict(state["streams"])
            for scope in self._entered.values():
                self._restore(scope)

    def enter(self, scope: Scope) -> None:
        """A scope was made; it goes on where a state or an earlier attempt left its stream."""
        self._entered[scope.name] = scope
        if not self.disabled:
            self._restore(scope)

    def _restore(self, scope: Scope) -> None:
        saved = self._saved.get(scope.name)
        past = self._past.get(scope.name)
        if saved is not None:
            table = self._scopes[scope.name].table
            for part in saved["open"]:
                for name, entry in part["keys"].items():
                    self._declare(table, name, prefix_of(scope.name), entry["declaration"])
            self._worker.results.continue_from(scope.name, -1, totals_of(saved))
            self.push(Restored(scope.name, saved, self._topology, self.clock.now()))
            scope.restore(saved["latest"], step_of(saved["watermark"]))
        elif past is not None:
            self._worker.results.continue_from(scope.name, -1, totals_of(past))
            scope.restore(past["latest"], 0)

    def _declare(
        self, table: KeyTable, name: str, prefix: str, declaration: Mapping[str, Any]
    ) -> None:
        """Put a key of a state into a table, unless the registry says otherwise of it."""
        metric = self.registry.resolve(name, prefix)
        reduction = make(declaration["reduction"], **declaration["params"])
        if metric.source == "declared" and metric.reduction != reduction:
            raise DeclarationConflict(
                f"key {prefix + name!r} is {reduction} in the state and registered as "
                f"{metric.reduction}; load the state with the registry it was taken with"
            )
        table.add(name, metric, reduction)

    def reduce(self, outputs: Mapping[str, Any], weight: Any) -> dict[str, Value]:
        """One reduction of `outputs` over all ranks."""
        if self.disabled:
            return {}
        name = f"{COLLECTIVE}reduce"
        with self.lock:
            self.check_open()
            snapshotter = self.open(name, None)
            snapshot = snapshotter.take(outputs, weight)
            call = next(self._reduced)
            if snapshot is not None:
                if not snapshot.staged:
                    self.staging.add(snapshot)
                self.push(Logged(name, None, snapshot, False, self.clock.now()))
            self.staging.copy()
            ticket = Ticket(name)
            self.push(Flushed(name, call, self.clock.now(), ticket))
        values = self.wait(ticket, self._root_high(), "reduce")
        self.tell()
        return values

    def latest(self, prefix: str) -> dict[str, Value]:
        """The latest values of keys with a prefix."""
        return {} if self.disabled else self._worker.results.latest(prefix)

    def follow(self, root_high: Callable[[], int]) -> None:
        """Tell where the logger's own latest step is found."""
        self._root_high = root_high

    def reached(self) -> int:
        """The latest step of the logger itself, -1 before the first."""
        return self._root_high()

    def handle(self, name: str) -> Any:
        """A sink's own handle."""
        return None if self.disabled or self._writer is None else self._writer.handle(name)

    def stats(self) -> dict[str, Any]:
        """Counters; see `Logger.stats`."""
        sinks = {} if self.disabled or self._writer is None else self._writer.stats()
        return {
            "rounds": 0 if self.disabled else self._worker.rounds,
            "queued": self._streams.backlog(),
            "written": sum(sink["written"] for sink in sinks.values()),
            "dropped": sum(sink["dropped"] for sink in sinks.values()),
            "sink_errors": sum(sink["errors"] for sink in sinks.values()),
            "spooled_step": self._streams.spooled_step,
            "written_step": -1 if not sinks or self._writer is None else self._writer.last_step,
            "waited_s": self._waited,
            "bad_values": sum(self._bad.values()),
            "sinks": sinks,
        }

    # --- what a user should know ---

    def note(self, text: str) -> None:
        """Something worth knowing once; on rank 0."""
        if not self.disabled and self._topology.rank == 0:
            _LOG.info(text)

    def warn(self, text: str) -> None:
        """Something to warn of at the training thread's next call."""
        self.told.append(text)

    def report_bad(self, key: str, error: DistmetricsError) -> None:
        """A value that is left out of a call that is logged otherwise."""
        self._bad[key] = self._bad.get(key, 0) + 1
        if self._bad[key] == 1:
            self.warn(f"{error} (left out; further ones of this key are counted in stats())")

    def tell(self) -> None:
        """Warn of what was told, and raise the errors."""
        errors: list[DistmetricsError] = []
        while self.told:
            what = self.told.popleft()
            if isinstance(what, str):
                warnings.warn(what, DistmetricsWarning, stacklevel=3)
            elif self.lenient:
                warnings.warn(str(what), DistmetricsWarning, stacklevel=3)
            else:
                errors.append(what)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            kind = type(errors[0])
            raise kind("\n".join(map(str, errors)))

    # --- the end ---

    def close(self, timeout: float | None) -> None:
        """Close; see `Logger.close`."""
        if self._end():
            if not self._worker.join(timeout):
                self.warn(
                    f"close(timeout={timeout:g}) did not wait for the other ranks: "
                    f"{self._streams.backlog()} closed windows of this rank are not reduced"
                )
                self._worker.abandon()
            self._shut(CLOSING)
        self.tell()

    def leave(self) -> None:
        """Close within seconds, waiting for nobody: the training has failed."""
        if self._end():
            self._worker.join(LEAVING / 2)
            self._worker.abandon()
            self._shut(LEAVING / 2)

    def _end(self) -> bool:
        with self.lock:
            if self._closed or self.disabled or os.getpid() != self._pid:
                self._closed = True
                return False
            self._closed = True
            self.staging.copy()
            self.push(Ended(self.clock.now()))
        self._worker.wake()
        return True

    def _shut(self, timeout: float) -> None:
        if self._writer is not None:
            self._writer.close(timeout)
        if self._directory is not None:
            self._directory.close()
        atexit.unregister(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(self._peer_timeout)

    def _prefixes(self) -> list[str]:
        return [prefix for prefix in map(prefix_of, self._scopes) if prefix]


def _check_process_group() -> None:
    import torch.distributed as dist

    if current() is not None or (dist.is_available() and dist.is_initialized()):
        return
    env = LaunchEnv.detect()
    if env.world_size > 1:
        raise NotInitialized(
            f"this is rank {env.rank} of {env.world_size} processes, but torch.distributed is not "
            "initialised; call dm.setup_distributed() before making a Logger"
        )


def _check_replicas(registry: Registry, topology: Topology) -> None:
    for metric in registry:
        topology.check(metric.replicated_over, metric.pattern)


def _ranks_and_steps(absent: Mapping[int, int]) -> str:
    last = ", ".join(
        f"rank {rank}: {'none' if step < 0 else step}" for rank, step in list(absent.items())[:8]
    )
    return f"{name_ranks(list(absent))} (last steps: {last})"
