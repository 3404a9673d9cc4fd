"""All streams of a logger on one rank, fed by a queue of what its training thread did.

The training thread appends events and never waits; the worker consumes them, so that a round's
view of the streams is one moment of the training thread's history, without a lock between them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from distmetrics.errors import InvalidValue
from distmetrics.exchange.round import Offer, Offered, Outcome
from distmetrics.exchange.schema import COLLECTIVE, Schema, prefix_of
from distmetrics.snapshot.staging import arrived, land
from distmetrics.spool.journal import Journal, Place
from distmetrics.window.labels import NEVER, first_step, mark_of
from distmetrics.window.stream import Pace, Stream, Window
from distmetrics.worker.backlog import Backlog
from distmetrics.worker.checkpoint import restored_window
from distmetrics.worker.contributions import Contributions
from distmetrics.worker.events import Event, Flushed, Logged, Opened, Restored, Ticket
from distmetrics.worker.spool import Declared, Spool
from distmetrics.worker.waiting import Waiting

_LOG = logging.getLogger("distmetrics")
BACKLOG = 8192
"""Events that wait to be consumed, at most; beyond it the training thread consumes them itself."""


CROWDED = 512
"""Events and closed windows that this rank's own threads have to take in, beyond which `flush`
gives them time."""
PUSHING = 1.0
"""Seconds for which the training thread then waits for its worker; a signal's handler may push."""
NONE: Mapping[str, Any] = {}
_Places = dict[str, dict[int, Place]]


class _Promise(NamedTuple):
    """What a rank says of one of its streams."""

    every: int | None
    pace: Pace
    watermark: int
    idle: bool
    latest: int


class _View(NamedTuple):
    """What a rank says of all streams at one moment; what it has closed by then is spooled."""

    streams: dict[str, _Promise]
    promised: dict[str, int]
    closed: bool
    waiting: list[Ticket]


class Streams:
    """The streams of one rank, by name; the logger itself is "".

    Args:
        journal: the rank's spool; None for a logger that keeps none.
        tell: receives what a user should know.
        rank: this rank.
        contributions: records what every call said; None for a logger that does not.

    Attributes:
        alone: whether there are no other ranks for which windows may wait.
        spooling: whether closed windows go to a spool.
        spooled_step: the step through which all is on disk.
        lost: closed windows that the disk did not give back.
        calls: the collective calls that wait for the other ranks.
        failure: why events can no longer be taken in; what is logged from then on is lost.
    """

    def __init__(
        self,
        journal: Journal | None = None,
        tell: Callable[[str], object] = _LOG.warning,
        rank: int = 0,
        contributions: Contributions | None = None,
    ) -> None:
        self._rank = rank
        self.events: deque[Event] = deque()
        self.spooled_step = -1
        self.lost = 0
        self.failure: Exception | None = None
        self.spooling = journal is not None
        self.alone = False
        self._spooled = None if journal is None else Spool(journal, tell)
        self._tell = tell
        self._contributions = contributions
        self._totals: dict[str, Mapping[str, Any]] = {}
        self._given_up = False
        self._streams: dict[str, Stream] = {}
        self._backlogs: dict[str, Backlog] = {}
        self._paces: dict[str, int] = {}
        self._promised: dict[str, int] = {}
        self._reached = -1
        self._used = 0.0
        self._closed = False
        self._errors: list[InvalidValue] = []
        self._consuming = threading.Lock()
        self.calls = Waiting(self._consuming)
        self._collecting = threading.Lock()
        self._view = _View({}, {}, False, [])
        self._held = False
        self._uncollected = 0

    # --- the training thread's side ---

    def push(self, event: Event) -> None:
        """Append what the training thread did; never waits for another rank or for I/O."""
        if self.failure is not None or (self._given_up and self._spooled is None):
            return
        self.events.append(event)
        if len(self.events) > BACKLOG and self._consuming.acquire(timeout=PUSHING):
            try:
                self._consume_events(wait=False)
                self._uncollected = sum(s.closed for s in self._streams.values())
            except Exception as error:  # noqa: BLE001 - raised where the events are taken in next
                self.failure = error
            finally:
                self._consuming.release()

    @property
    def crowd(self) -> float:
        """How many windows wait for this rank's own threads; 1 is where it begins to matter."""
        waiting = len(self.events) + self._uncollected + (self.kept if self.alone else 0)
        return waiting / CROWDED

    def begin_with(self, name: str, totals: Mapping[str, Any]) -> None:
        """The running totals, as plain values, with which this attempt begins a stream."""
        self._totals[name] = totals

    # --- collecting ---

    def collect(self) -> None:
        """Take in the events so far: closed windows are folded, spooled, and may be offered.

        Raises:
            Exception: whatever it failed by, now or before, as windows may have been lost by it.
        """
        with self._collecting:
            self._collect()

    def _collect(self, offering: bool = False) -> _View:
        if self.failure is not None:
            raise self.failure  # nothing is promised after what is lost
        try:
            return self._take_in(offering)
        except Exception as error:
            self.failure = error
            self.events.clear()
            raise

    def _take_in(self, offering: bool) -> _View:
        with self._consuming:
            self._held &= not offering
            self._consume_events(wait=True)
            closed = {name: stream.take_closed() for name, stream in self._streams.items()}
            self._uncollected = sum(map(len, closed.values()))
            view = self._look()
            if offering:
                self.calls.offered(view.waiting)
            # what a waiting rank does next must come after what the round raises
            self._held |= offering and bool(view.waiting)
        if self._contributions is not None:
            for name, windows in closed.items():
                self._contributions.close(name, windows)
        places = self._spool(closed, view)
        with self._consuming:
            for name, windows in closed.items():
                backlog = self._backlogs.setdefault(name, Backlog(name))
                if not self._given_up:
                    backlog.add(windows, places.get(name, {}))
            self._view = view
            self._uncollected = 0
        return view

    def take_errors(self) -> list[InvalidValue]:
        """What was found wrong with values only after they had come from a device."""
        errors, self._errors = self._errors, []
        return errors

    def _look(self) -> _View:
        """What this rank promises now, after what it has closed."""
        for stream in self._streams.values():
            if not stream.pace & Pace.OWN and self._follows_parent(stream.name):
                stream.promise(self._reached)
        for name in self._paces.keys() - self._streams.keys():
            self._promise(name)
        return _View(
            {
                name: _Promise(s.every, s.pace, s.watermark, s.idle, s.latest)
                for name, s in self._streams.items()
            },
            {name: p for name, p in self._promised.items() if name not in self._streams},
            self._closed,
            self.calls.wanted(),
        )

    def _spool(self, closed: Mapping[str, Mapping[int, Window]], view: _View) -> _Places:
        """Write closed windows and watermarks through to the spool before they are offered."""
        if self._spooled is None:
            return {}
        # of a collective call nothing is kept: once this process has died, nobody waits for it
        names = [name for name in view.streams if not name.startswith(COLLECTIVE)]
        declared = {
            name: Declared(
                view.streams[name].every, self._streams[name].table, self._totals.get(name, NONE)
            )
            for name in names
        }
        marks = {name: view.streams[name].watermark for name in names} | view.promised
        places, whole = self._spooled.write({name: closed[name] for name in names}, declared, marks)
        if whole:
            root = marks.get("", 0)
            self.spooled_step = view.streams[""].latest if root >= NEVER else first_step(root) - 1
        return places

    # --- the worker's side ---

    def offer(self, positions: Mapping[str, int]) -> Offer:
        """What this rank brings to a round that begins now.

        Args:
            positions: on rank 0, the labels through which all is written.
        """
        with self._collecting:  # the spooler stays away from the backlogs meanwhile
            view = self._collect(offering=True)
            waiting = {t.stream: view.streams[t.stream].watermark for t in view.waiting}
            streams = {
                name: self._called(name, promise, view.waiting)
                if name.startswith(COLLECTIVE)
                else self._offer(
                    name, promise, promise.watermark, self._backlogs[name].next(self._spooled)
                )
                for name, promise in view.streams.items()
            }
            self._note_losses()
        return Offer(streams, view.promised, view.closed, waiting, positions)

    def _note_losses(self) -> None:
        """Tell of windows that the disk did not give back."""
        lost = sum(backlog.lost for backlog in self._backlogs.values())
        if lost and not self.lost:
            self._tell(
                "closed windows of this rank cannot be read back from its spool: their part is "
                "missing from the records; they are counted in stats()"
            )
        self.lost = lost

    def _called(self, name: str, promise: _Promise, waiting: Sequence[Ticket]) -> Offered:
        """What this rank brings to a collective call: the window of that call and no other.

        Nothing is promised, so that only what all ranks wait for is reduced.
        """
        labels = [ticket.label for ticket in waiting if ticket.stream == name]
        windows = self._backlogs[name].only(labels[-1] if labels else None)
        watermark = promise.watermark if promise.watermark >= NEVER else 0
        return self._offer(name, promise, watermark, windows)

    def _offer(
        self, name: str, promise: _Promise, watermark: int, windows: Mapping[int, Window]
    ) -> Offered:
        table = self._streams[name].table
        return Offered(
            promise.every, promise.pace, watermark, promise.idle, windows, table, promise.latest
        )

    def settle(self, outcome: Outcome, schema: Schema) -> None:
        """Take in what a round came to: what is reduced, committed, set aside and promised."""
        with self._consuming:
            self._held = False
            self._paces = {stream.name: stream.pace for stream in schema}
            for row in outcome.rows:
                backlog = self._backlogs.get(row.stream.name)
                if backlog is not None:
                    backlog.sent = max(backlog.sent, row.label)
            for name, position in outcome.positions.items():
                if name in self._backlogs:
                    self._backlogs[name].release(position)
            for name in schema.aside & self._backlogs.keys():
                self._backlogs[name].sent = NEVER
                self._backlogs[name].release(NEVER)
            self._raise(outcome.raised)
        if any(p >= 0 for p in outcome.positions.values()):
            with self._collecting:
                if self._spooled is not None:
                    self._spooled.release(outcome.positions | dict.fromkeys(schema.aside, NEVER))

    def rewind(self, positions: Mapping[str, int]) -> None:
        """Offer again what rank 0 has not written: a round was broken off."""
        for name, backlog in self._backlogs.items():
            if backlog.sent < NEVER:
                backlog.sent = positions.get(name, -1)

    @property
    def closed(self) -> bool:
        """Whether the logger was closed, as far as events have been taken in."""
        return self._closed

    def open_windows(self) -> dict[str, Window]:
        """What is open, folded, as of the latest flush; it stays open."""
        with self._consuming:
            found = {n: stream.folded() for n, stream in self._streams.items()}
            return {name: window for name, window in found.items() if window is not None}

    def _raise(self, marks: Mapping[str, int]) -> None:
        """Promise what a round has agreed on, where nothing is open."""
        for name, mark in marks.items():
            stream = self._streams.get(name)
            if stream is not None and stream.idle:
                stream.watermark = max(stream.watermark, mark)

    def catch_up(self, marks: Mapping[str, int]) -> None:
        """Go on behind what a broken round has raised on other ranks; see `Outcome.raised`."""
        with self._consuming:
            self._raise(marks)
            if marks:
                self._held = False

    def break_off(self, lost: bool) -> list[Ticket]:
        """All calls that wait: the round that they waited for came to nothing.

        Args:
            lost: since ranks cannot be reached.
        """
        with self._consuming:
            self._held = False
        with contextlib.suppress(Exception):  # `failure` holds it
            self.collect()
        return self.calls.break_off(lost)

    def give_up(self) -> None:
        """Nothing is reduced any more: closed windows are kept on disk only, if at all."""
        with self._consuming:
            self._given_up = True
            self._backlogs.clear()

    def backlog(self) -> int:
        """How many closed windows wait to be reduced."""
        return sum(len(backlog) for backlog in list(self._backlogs.values()))

    @property
    def kept(self) -> int:
        """How many closed windows are not known to be written."""
        return sum(backlog.kept for backlog in list(self._backlogs.values()))

    def keys(self) -> list[str]:
        """The keys of all streams, with their children's prefixes; for messages."""
        names = [name for name in list(self._streams) if not name.startswith(COLLECTIVE)]
        return [prefix_of(name) + key for name in names for key in self.keys_of(name)]

    def keys_of(self, name: str) -> list[str]:
        """Keys of a stream, for messages."""
        stream = self._streams.get(name)
        return [] if stream is None else [key.name for key in stream.table]

    def close(self) -> None:
        """Close the spool; it is deleted where all its windows are known to be committed."""
        with self._collecting:
            if self._spooled is not None:
                clean = self._closed and not self.kept and not self.events and not self.failure
                self._spooled.close(committed=clean and not self._given_up)
                self._spooled = None
                self._given_up = True

    # --- events ---

    def _consume_events(self, wait: bool) -> None:
        """Apply the events so far, in order; those behind one that is still on a device wait.

        Args:
            wait: wait for transfers from a device that are under way.
        """
        while self.events and not self._held:
            event = self.events[0]
            if isinstance(event, Logged) and event.snapshot is not None:
                snapshot = event.snapshot
                if not (snapshot.staged and (wait or arrived(snapshot))):
                    return
                self._errors += land(snapshot)
            self.events.popleft()
            self._apply(event)
            self._used = event.now

    def _apply(self, event: Event) -> None:
        if isinstance(event, Logged):
            self._log(event)
        elif isinstance(event, Flushed):
            self._flush(event)
        elif isinstance(event, Restored):
            stream = self._streams[event.stream]
            saved = event.saved
            window = restored_window(saved, stream.table, event.topology, event.now)
            stream.restore(saved["watermark"], saved["latest"], window)
            if not event.stream:
                self._reached = max(self._reached, saved["latest"])
        elif isinstance(event, Opened):
            self._streams[event.stream] = Stream(
                event.stream,
                event.every,
                event.table,
                self._promised.get(event.stream, 0),
                event.now,
                self._rank,
                lasts=not event.stream.startswith(COLLECTIVE),
            )
        else:
            for stream in self._streams.values():
                stream.end(self._reached if stream.name else -1)
            self._closed = True

    def _log(self, event: Logged) -> None:
        stream = self._streams[event.stream]
        if stream.every is not None:
            self._note_pace(stream, event.step, event.own_step)
        elif stream.idle:
            # an evaluation begins where the logger was last used, not at the previous one
            stream.begin(self._used)
        stream.log(event.step, event.snapshot, event.now)
        if self._contributions is not None and event.snapshot is not None:
            self._contributions.add(event.stream, event.step, event.snapshot)
        if not event.stream and event.step is not None:
            self._reached = max(self._reached, event.step)

    def _flush(self, event: Flushed) -> None:
        stream, step = self._streams[event.stream], event.step
        if stream.every is None:
            self._note_pace(stream, step, own=False)
        if event.stream.startswith(COLLECTIVE):
            step = max(step, first_step(stream.watermark))  # calls come after each other
        stream.flush(step)
        ticket = event.ticket
        if ticket is not None and not ticket.withdrawn:
            ticket.label = stream.watermark - 1
            self.calls.begin(ticket)

    def _note_pace(self, stream: Stream, step: int | None, own: bool) -> None:
        """Learn from a call whether a child's steps are those of its parent."""
        if not stream.name or stream.name.startswith(COLLECTIVE):
            return
        if own:
            stream.pace |= Pace.OWN
        elif step is not None and self._reached >= 0:
            stream.pace |= Pace.OWN if step < self._reached else Pace.FOLLOWS

    def _follows_parent(self, name: str) -> bool:
        """Whether a child with nothing open promises what its parent has reached.

        So that an evaluation on some ranks alone does not wait for the end of the others. Not
        before a rank has shown that its steps are its parent's, since what comes below a promise
        is late.
        """
        return self._paces.get(name) == Pace.FOLLOWS and self._reached >= 0

    def _promise(self, name: str) -> None:
        """Promise what holds of an agreed stream that this rank has not made."""
        promised = self._promised.get(name, 0)
        if self._closed:
            promised = NEVER
        elif self._follows_parent(name):
            promised = max(promised, mark_of(self._reached))
        self._promised[name] = promised
