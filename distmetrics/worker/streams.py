"""All streams of a logger on one rank, fed by a queue of what its training thread did.

The training thread appends events and never waits; the worker consumes them, so that a round's
view of the streams is one moment of the training thread's history, without a lock between them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distmetrics.errors import InvalidValue
from distmetrics.exchange.message import Row
from distmetrics.exchange.round import Offer, Offered
from distmetrics.exchange.schema import COLLECTIVE, Schema, StreamSchema
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot.staging import arrived, land
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.stream import NEVER, Stream, label_of

BACKLOG = 8192
"""Events that wait to be consumed, at most; beyond it the training thread consumes them itself."""


class Opened(NamedTuple):
    """A logger or child was made."""

    stream: str
    every: int | None
    table: KeyTable
    now: float


class Logged(NamedTuple):
    """Values were logged; without a snapshot a promise of nothing more below the step."""

    stream: str
    step: int | None
    snapshot: Snapshot | None
    own_step: bool
    now: float


@dataclass
class Ticket:
    """Someone in the training thread waits for a stream to be reduced.

    Attributes:
        stream: its name.
        absent: the ranks that do not wait for it yet, and their last steps.
        values: the values of the stream's last row, once it is reduced.
        reached: the watermark of the stream then, the same on every rank.
        error: why it will not be.
        done: set when `values` or `error` is there.
    """

    stream: str
    absent: dict[int, int] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    reached: int = 0
    error: Exception | None = None
    done: threading.Event = field(default_factory=threading.Event)


class Flushed(NamedTuple):
    """A flush through a step, and who waits for it."""

    stream: str
    step: int
    now: float
    ticket: Ticket | None


class Ended(NamedTuple):
    """The logger was closed."""

    now: float


Event = Opened | Logged | Flushed | Ended


class Streams:
    """The streams of one rank, by name; the logger itself is ""."""

    def __init__(self) -> None:
        self.events: deque[Event] = deque()
        self.closed = False
        self.waiting: list[Ticket] = []
        self._streams: dict[str, Stream] = {}
        self._promised: dict[str, int] = {}
        self._reached = -1
        self._consuming = threading.Lock()
        self._errors: list[InvalidValue] = []

    def push(self, event: Event) -> None:
        """Append what the training thread did; never waits for another rank or for I/O."""
        self.events.append(event)
        if len(self.events) > BACKLOG:
            self.consume(wait=False)

    def consume(self, wait: bool = True) -> None:
        """Apply the events so far, in order; those behind one that is still on a device wait.

        Args:
            wait: wait for transfers from a device that are under way.
        """
        with self._consuming:
            while self.events:
                event = self.events[0]
                if isinstance(event, Logged) and event.snapshot is not None:
                    snapshot = event.snapshot
                    if not (snapshot.staged and (wait or arrived(snapshot))):
                        return
                    self._errors += land(snapshot)
                self.events.popleft()
                self._apply(event)

    def take_errors(self) -> list[InvalidValue]:
        """What was found wrong with values only after they had come from a device."""
        errors, self._errors = self._errors, []
        return errors

    def offer(self, schema: Schema) -> Offer:
        """What this rank brings to a round that begins now."""
        self.consume()
        with self._consuming:
            for stream in self._streams.values():
                stream.seal()
                if self._follows_parent(stream):
                    stream.promise(self._reached)
            for agreed in schema:
                self._promise(agreed)
            return Offer(
                {name: _offered(stream) for name, stream in self._streams.items()},
                {name: p for name, p in self._promised.items() if name not in self._streams},
                self.closed,
                {ticket.stream: self._streams[ticket.stream].watermark for ticket in self.waiting},
            )

    def raise_watermarks(self, raised: Mapping[str, int]) -> None:
        """Promise what all ranks have agreed on for streams that every rank waits for."""
        with self._consuming:
            for name, label in raised.items():
                stream = self._streams.get(name)
                if stream is not None and stream.idle:
                    stream.watermark = max(stream.watermark, label)

    def drop(self, rows: Iterable[Row], schema: Schema) -> None:
        """Forget the windows that have been reduced, and those of streams that are set aside."""
        with self._consuming:
            for row in rows:
                stream = self._streams.get(row.stream.name)
                if stream is not None:
                    stream.closed.pop(row.label, None)
            for name in schema.aside:
                if name in self._streams:
                    self._streams[name].closed.clear()

    def backlog(self) -> int:
        """How many closed windows wait to be reduced."""
        return sum(len(stream.closed) for stream in self._streams.values())

    def keys_of(self, name: str) -> list[str]:
        """Keys of a stream, for messages."""
        stream = self._streams.get(name)
        return [] if stream is None else [key.name for key in stream.table]

    def _apply(self, event: Event) -> None:
        if isinstance(event, Logged):
            stream = self._streams[event.stream]
            stream.own_steps |= event.own_step
            stream.log(event.step, event.snapshot, event.now)
            if not event.stream and event.step is not None:
                self._reached = max(self._reached, event.step)
        elif isinstance(event, Flushed):
            stream = self._streams[event.stream]
            stream.flush(event.step, event.now)
            if event.ticket is not None:
                self.waiting.append(event.ticket)
        elif isinstance(event, Opened):
            promised = self._promised.get(event.stream, 0)
            self._streams[event.stream] = Stream(
                event.stream, event.every, event.table, promised, event.now
            )
        else:
            for stream in self._streams.values():
                stream.end(event.now)
            self.closed = True

    def _follows_parent(self, stream: Stream) -> bool:
        """Whether a stream with nothing open promises what its parent has reached.

        So that an evaluation on some ranks alone does not wait for the end of the others.
        """
        if not stream.name or stream.name.startswith(COLLECTIVE) or self._reached < 0:
            return False
        return stream.every is None or (stream.latest >= 0 and not stream.own_steps)

    def _promise(self, agreed: StreamSchema) -> None:
        """What this rank promises for a stream that it has not made."""
        name = agreed.name
        if name in self._streams or not name:
            return
        if self.closed:
            self._promised[name] = NEVER
        elif name.startswith(COLLECTIVE) or self._reached < 0:
            self._promised.setdefault(name, 0)
        elif agreed.every is None or not agreed.own_steps:
            reached = label_of(self._reached)
            self._promised[name] = max(self._promised.get(name, 0), reached)


def _offered(stream: Stream) -> Offered:
    return Offered(
        stream.every,
        stream.own_steps,
        stream.watermark,
        stream.idle,
        dict(stream.closed),
        stream.table,
        stream.latest,
    )
