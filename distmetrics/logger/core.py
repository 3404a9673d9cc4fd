"""What the scopes of one logger share: the way to the worker, calls that wait for it, the end."""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import DistmetricsError, InvalidValue, PeerLostError, PeerTimeoutError
from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.logger.absence import REDUCE, absence, last_steps
from distmetrics.logger.checkpoints import Checkpoints
from distmetrics.logger.clock import Clock
from distmetrics.logger.notices import Notices
from distmetrics.logger.parts import Options, Parts, assemble
from distmetrics.logger.sigterm import Sigterm
from distmetrics.record import Value
from distmetrics.registry import Registry
from distmetrics.snapshot import Snapshotter
from distmetrics.snapshot.names import Names
from distmetrics.snapshot.staging import Staging
from distmetrics.worker.checkpoint import STATE
from distmetrics.worker.events import Ended, Event, Flushed, Logged, Opened, Ticket
from distmetrics.worker.saved import check

if TYPE_CHECKING:
    from distmetrics.logger.scope import Scope

DISABLED = "DISTMETRICS_DISABLED"
NOT_DISABLED = ("", "0", "false", "no", "off")
"""Values of this variable, in any case, with which loggers work as always."""
CLOSING = 1.0
"""Seconds that sinks have to close at least, however short `close` is to wait."""
LEAVING = 4.0
"""Seconds that a logger takes to leave when the training has failed, at most."""
PARTING = 2.0
"""Seconds in which a rank that does not wait for the others leaves them."""
_WAY = 0.0002
"""Seconds that a flush takes where windows begin to crowd."""
_POLL = 0.05
"""Seconds between looks at the worker while a call waits."""


class Core:
    """A logger's parts on one rank and what its training thread does with them.

    Args:
        registry: what each key means.
        options: what the logger is made of.
        lenient: report bad values instead of raising.
        on_step_regress: "warn", "error" or "accept".
    """

    def __init__(
        self, registry: Registry, options: Options, lenient: bool, on_step_regress: str
    ) -> None:
        self.forked = False
        self.disabled = os.environ.get(DISABLED, "").strip().lower() not in NOT_DISABLED
        self.lock = threading.RLock()
        self.clock = Clock()
        self.staging = Staging()
        self.notices = Notices(lenient)
        self._registry = registry
        self._lenient = lenient
        self._peer_timeout = options.peer_timeout
        self._notice_after = options.notice_after
        self._on_step_regress = on_step_regress
        self._closed = False
        self._regressed = False
        self._logged = False
        self._waited = 0.0
        self._noted_closed: set[int] = set()
        self._snapshotters: dict[str, Snapshotter] = {}
        self._names = Names()
        self._scopes: list[Scope] = []
        self._calls: dict[str, Iterator[int]] = defaultdict(itertools.count)
        self._reached: Callable[[], int] = lambda: -1
        if not self.disabled:
            self._sigterm: Sigterm | None = None
            self._parts: Parts = assemble(registry, options, self.notices)
            self._checkpoints = Checkpoints(registry, self._parts)
            atexit.register(self._close_at_exit)
            if options.handle_sigterm:
                self._sigterm = Sigterm(self.rescue)
            _open.add(self)

    # --- the way to the worker ---

    def open(self, name: str, every: int | None) -> Snapshotter:
        """What takes the snapshots of a stream, which is made where it is new."""
        snapshotter = self._snapshotters.get(name)
        if snapshotter is None:
            snapshotter = self._snapshotters[name] = Snapshotter(
                self._registry,
                prefix_of(name),
                self.notices.add_bad_value if self._lenient else None,
                self.notices.note,
                self._prefixes,
                Names() if name.startswith(COLLECTIVE) else self._names,
            )
            self.push(Opened(name, every, snapshotter.table, self.clock.now()))
        return snapshotter

    def enter(self, scope: Scope) -> None:
        """A scope was made; it goes on where a state or an earlier attempt left its stream."""
        self._scopes.append(scope)
        if not self.disabled:
            table = self._snapshotters[scope.name].table
            self._checkpoints.enter(scope, table, self.clock.now())

    def follow(self, reached: Callable[[], int]) -> None:
        """Tell where the logger's own latest step is found."""
        self._reached = reached

    def reached(self) -> int:
        """The latest step of the logger itself, -1 before the first."""
        return self._reached()

    def push(self, event: Event) -> None:
        """Hand an event to the worker."""
        if not self.disabled:
            self._logged |= isinstance(event, Logged)
            self._parts.streams.push(event)

    def say_why(self) -> None:
        """Tell, once, why the logger does nothing, unless that was asked for."""
        if self.forked:
            self.forked = False
            self.notices.say(
                "this process was forked from the one that made the logger, to which the logger "
                "belongs: what is logged here is left out. Return it to the parent and log it there"
            )

    def become_forked(self) -> None:
        """This process is a child of the logger's own one: it has none of the threads."""
        self.forked = self.disabled = True
        self.lock = threading.RLock()  # a thread of the parent may have held it
        self.notices = Notices(self._lenient)  # what waits there is for the parent
        atexit.unregister(self._close_at_exit)

    def spool_soon(self) -> None:
        """Take what was flushed to the spool at once."""
        self._parts.worker.spool_soon()

    def give_way(self) -> None:
        """Give this rank's own threads a moment, where windows are flushed faster than they work.

        Else memory would grow with every flush. Other ranks and disks are not waited for.
        """
        crowd = self._parts.streams.crowd
        if crowd > 1:
            time.sleep(min(_WAY * crowd**2, 10 * _WAY))

    def check_open(self) -> None:
        """Raise where the logger is closed."""
        if self._closed:
            raise DistmetricsError("this logger is closed; make a new one to log more")

    def regress(self, step: int, high: int) -> None:
        """What a step lower than an earlier one is."""
        if self._on_step_regress == "error":
            raise InvalidValue(
                f"step {step} comes after step {high}, and on_step_regress='error'; "
                "pass rising steps, or on_step_regress='warn'"
            )
        if self._on_step_regress == "warn" and not self._regressed:
            self._regressed = True
            self.notices.add(
                f"step {step} comes after step {high}: it is logged under its own step, together "
                "with the window of now"
            )

    # --- calls that wait for all ranks ---

    def reduce(self, outputs: Mapping[str, Any], weight: Any) -> dict[str, Value]:
        """One reduction of `outputs` over all ranks; see `Logger.reduce`."""
        if self.disabled:
            self.say_why()
            return {}
        with self.lock:
            self.check_open()
            snapshot = self.open(REDUCE, None).take(outputs, weight)
            if snapshot is not None:
                if not snapshot.staged:
                    self.staging.add(snapshot)
                self.push(Logged(REDUCE, None, snapshot, False, self.clock.now()))
            ticket = self._meet(REDUCE)
        values = self._values(ticket, "reduce")
        self._note_closed(ticket.closed)
        return values

    def state(self) -> dict[str, Any]:
        """The state to go on from; see `Logger.state_dict`."""
        if self.disabled:
            self.say_why()
            return {}
        with self.lock:
            self.check_open()
            self.open(STATE, None)
            ticket = self._meet(STATE)
        return self._values(ticket, "state_dict")

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
            self._checkpoints.load(state, self.clock.now())

    def _meet(self, stream: str) -> Ticket:
        """Close what this call has put into a collective stream, and wait for the others'."""
        self.staging.copy()
        ticket = Ticket(stream)
        self.push(Flushed(stream, next(self._calls[stream]), self.clock.now(), ticket))
        return ticket

    def _values(self, ticket: Ticket, call: str) -> dict[str, Any]:
        values = self.wait(ticket, self.reached(), call)
        self.notices.tell()
        return values

    def _note_closed(self, closed: Sequence[int]) -> None:
        """Warn, once for each, of ranks that had closed before all ranks reduced."""
        new = [rank for rank in closed if rank not in self._noted_closed]
        if new:
            self._noted_closed.update(new)
            has = "has closed its logger" if len(new) == 1 else "have closed their loggers"
            self.notices.say(
                f"reduce: {name_ranks(new)} {has}: the values are those of the other ranks, from "
                "now on; call reduce before any rank closes, on every rank"
            )

    def wait(self, ticket: Ticket, step: int, call: str) -> dict[str, Any]:
        """What a collective call waits for."""
        worker, calls = self._parts.worker, self._parts.streams.calls
        worker.wake()
        began = time.monotonic()
        noticed = False
        try:
            while not ticket.done.wait(min(_POLL, self._notice_after)):
                waited = time.monotonic() - began
                failure = worker.failure
                if failure is not None and not ticket.done.wait(1.0):
                    lost = isinstance(failure, PeerLostError)
                    if not lost or (worker.apart and calls.give_up(ticket)):
                        raise failure
                ends = calls.give_up if worker.apart else calls.withdraw
                if waited >= self._peer_timeout and ends(ticket):
                    raise self._absent(ticket, step, call)
                if not noticed and waited >= self._notice_after and ticket.absent:
                    noticed = True
                    self.notices.say(f"{call} waits for {last_steps(ticket.absent)}")
        except BaseException:
            calls.withdraw(ticket)  # an interrupt, say: nobody waits any more
            raise
        finally:
            self._waited += time.monotonic() - began
        if ticket.error is not None:
            raise ticket.error
        return ticket.values

    def _absent(self, ticket: Ticket, step: int, call: str) -> PeerTimeoutError:
        keys = self._parts.streams.keys_of("" if ticket.stream == STATE else ticket.stream)
        return absence(ticket, step, call, keys, self._peer_timeout)

    # --- what is known ---

    def latest(self, prefix: str) -> dict[str, Value]:
        """The latest values of keys with a prefix."""
        return {} if self.disabled else self._parts.worker.results.latest(prefix)

    def handle(self, name: str) -> Any:
        """A sink's own handle."""
        if self.disabled or self._parts.writer is None:
            return None
        return self._parts.writer.handle(name)

    def stats(self) -> dict[str, Any]:
        """Counters; see `Logger.stats`."""
        parts = None if self.disabled else self._parts
        writer = None if parts is None else parts.writer
        sinks = {} if writer is None else writer.stats()
        return {
            "rounds": 0 if parts is None else parts.worker.rounds,
            "queued": 0 if parts is None else parts.streams.backlog(),
            "written": sum(sink["written"] for sink in sinks.values()),
            "dropped": sum(sink["dropped"] for sink in sinks.values())
            + (0 if parts is None else parts.streams.lost),
            "sink_errors": sum(sink["errors"] for sink in sinks.values()),
            "spooled_step": -1 if parts is None else parts.streams.spooled_step,
            "written_step": -1 if writer is None else writer.last_step,
            "waited_s": self._waited,
            "bad_values": self.notices.bad_values,
            "sinks": sinks,
        }

    # --- the end ---

    def close(self, timeout: float | None) -> None:
        """Close; see `Logger.close`."""
        if self._end():
            if not self._parts.worker.join(timeout):
                self._part(f"close(timeout={timeout:g})")
            self._shut(None if timeout is None else max(timeout, CLOSING))
        self.notices.tell()

    def leave(self) -> None:
        """Close within seconds, waiting for nobody: the training has failed."""
        if self._end():
            self._abandon(LEAVING / 4, LEAVING / 8)
            self._shut(LEAVING / 2)
            self.notices.write()

    def rescue(self, ends: bool) -> None:
        """Keep what was logged, within seconds, from a signal's handler: it takes no lock.

        Args:
            ends: whether the process ends then; else what is open is closed, and logging goes on.
        """
        if self.disabled or self._closed:
            return
        parts = self._parts
        self.staging.copy()
        for scope in self._scopes:
            scope.log_rest()
        if ends:
            self._closed = True
            parts.streams.events.append(Ended(self.clock.now()))
        else:
            parts.streams.events.extend(scope.rest() for scope in self._scopes)
        parts.worker.wake()
        # the thread that was interrupted may hold what collecting needs
        collecting = threading.Thread(target=parts.worker.collect, daemon=True)
        collecting.start()
        collecting.join(LEAVING / 4)
        if ends:
            parts.worker.leave()
            parts.worker.join(LEAVING / 4)
            parts.worker.abandon()
            self._shut(LEAVING / 4)
        else:
            deadline = time.monotonic() + LEAVING / 4
            while parts.streams.kept and time.monotonic() < deadline:
                time.sleep(_POLL / 5)
            if parts.writer is not None:
                parts.writer.drain(LEAVING / 4)

    def _part(self, call: str) -> None:
        """Leave the other ranks, who go on: neatly where all that was logged is written."""
        parts = self._parts
        parts.worker.leave()
        if parts.worker.join(PARTING):
            self.notices.add(
                f"{call} did not wait for the other ranks, which go on without this one; all that "
                "it has logged is written"
            )
            return
        self._abandon(0.0, PARTING)
        kept = parts.streams.kept
        spooled = parts.streams.spooling
        fate = "are in its spool, for `distmetrics merge`" if spooled else "are lost"
        self.notices.add(
            f"{call} did not wait for the other ranks: {kept} closed windows of this rank are not "
            f"written and {fate}; the others take this rank for lost"
        )

    def _abandon(self, patience: float, more: float) -> None:
        """Leave the other ranks after `patience` seconds, once the spool has what was logged."""
        parts = self._parts
        parts.worker.leave()
        if parts.worker.join(patience):
            return
        parts.worker.collect()
        parts.worker.abandon()
        parts.worker.join(more)

    def _end(self) -> bool:
        if self.disabled:
            return False
        with self.lock:
            if self._closed:
                return False
            self._closed = True
            for scope in self._scopes:
                scope.log_rest()
            self.staging.copy()
            self.push(Ended(self.clock.now()))
        self._parts.worker.wake()
        return True

    def _shut(self, timeout: float | None) -> None:
        for text in self._parts.derivations.never_computed():
            self.notices.note(text)
        if self._parts.writer is not None:
            self._parts.writer.close(timeout)
        if self._parts.directory is not None:
            self._parts.directory.close()
        atexit.unregister(self._close_at_exit)
        _open.discard(self)
        if self._sigterm is not None:
            self._sigterm.remove()

    def _close_at_exit(self) -> None:
        if getattr(sys, "last_value", None) is not None:
            self.leave()  # an exception has ended the program
        else:
            self.close(self._peer_timeout)

    def _prefixes(self) -> list[str]:
        return [prefix for prefix in map(prefix_of, self._snapshotters) if prefix]


_open: WeakSet[Core] = WeakSet()


def _in_child() -> None:
    for core in list(_open):
        core.become_forked()


os.register_at_fork(after_in_child=_in_child)
