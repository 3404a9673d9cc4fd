"""A sink of any manners, made harmless: its own thread, a bounded queue, every error caught."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypedDict

from distmetrics.errors import in_words
from distmetrics.record import Record
from distmetrics.sinks.contract import Run, Sink

_LOG = logging.getLogger(__name__)

CAPACITY = 1024
"""Records that wait for one sink before further ones are dropped for it."""

OPENING = 30.0
"""Seconds that `IsolatedSink.handle` waits for a sink that is still opening."""


class SinkStats(TypedDict):
    """What became of one sink's records.

    ``written + errors + queued + dropped`` is the number of records it was given, and one more
    where `open` or `close` failed.
    """

    queued: int
    written: int
    dropped: int
    errors: int


def failure(name: str, doing: str, error: BaseException) -> str:
    """What to tell of a sink's first error."""
    return (
        f"sink {name!r} failed in {doing}: {in_words(error)}; the training and the other sinks go "
        "on, further errors are counted in Logger.stats()"
    )


class IsolatedSink:
    """Another sink behind a thread and a bounded queue of its own. Nothing here waits or raises.

    - An exception in the sink's `open`, `write` or `close` is counted; the first is reported. Later
      records are still tried, each once.
    - A record that finds `capacity` records waiting is dropped for this sink, and counted: a sink
      that hangs or is too slow costs memory up to there, and nothing else. The first loss is
      reported. Where the logger has a run directory, ``metrics.jsonl`` has the record all the same.
    - A sink that failed to open gets no records: they count as dropped.

    Args:
        sink: the sink to isolate; only the thread calls its `open`, `write` and `close`.
        report: called with a message for the user, from any thread, at most once for errors, for
            losses and for a `close` that ran out of time.
        name: the sink's name in messages.
        capacity: how many records may wait.

    Example:
        >>> from distmetrics.sinks.memory import MemorySink
        >>> memory = MemorySink()
        >>> sink = IsolatedSink(memory, report=print)
        >>> sink.open(Run(directory=None, name="example", registry=None))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        >>> sink.close()
        True
        >>> sink.stats()
        {'queued': 0, 'written': 1, 'dropped': 0, 'errors': 0}
    """

    direct = True  # it takes a record in a microsecond

    def __init__(
        self,
        sink: Sink,
        report: Callable[[str], object],
        *,
        name: str | None = None,
        capacity: int = CAPACITY,
    ) -> None:
        self.sink = sink
        self.name = name or str(getattr(sink, "name", type(sink).__name__))
        self._report = report
        self._capacity = capacity
        self._run: Run | None = None
        self._thread: threading.Thread | None = None
        self._opened = threading.Event()  # the attempt to open is over
        self._usable = False  # and it went well
        self._said: set[str] = set()
        self._changed = threading.Condition()  # guards all that follows
        self._waiting: deque[Record] = deque()
        self._accepted = 0  # records that were ever put into the queue
        self._handled = 0  # of these, how many the thread is done with
        self._written = 0
        self._dropped = 0
        self._errors = 0
        self._closing = False

    @property
    def handle(self) -> object:
        """The sink's own handle; None where it has none or could not be opened.

        Waits up to 30 seconds for a sink that is still opening.
        """
        if self._thread is not None:
            self._opened.wait(OPENING)
        return getattr(self.sink, "handle", None) if self._usable else None

    def open(self, run: Run) -> None:
        """Start the thread, which opens the sink."""
        self._run = run
        name = f"distmetrics-{self.name}"
        self._thread = threading.Thread(target=self._work, args=(run,), name=name, daemon=True)
        self._thread.start()

    def write(self, record: Record) -> None:
        """Queue one record."""
        self.write_many((record,))

    def write_many(self, records: Sequence[Record]) -> None:
        """Queue records, waking the thread once; those that find no room are dropped."""
        with self._changed:
            room = 0 if self._closing else self._capacity - (self._accepted - self._handled)
            taken = records[: max(0, room)]
            lost = len(records) - len(taken)
            self._waiting.extend(taken)
            self._accepted += len(taken)
            self._dropped += lost
            if taken:
                self._changed.notify_all()
        if lost:
            self._say(
                "loss",
                f"sink {self.name!r} cannot keep up: step {records[-1].step} found "
                f"{self._capacity} records waiting and was dropped, for this sink only. "
                "metrics.jsonl has every record; further losses are counted in Logger.stats()",
            )

    def drain(self, timeout: float | None = None) -> bool:
        """Whether every record queued so far has been handled within `timeout` seconds."""
        with self._changed:
            goal = self._accepted
            return self._changed.wait_for(lambda: self._handled >= goal, timeout)

    def begin_to_close(self) -> None:
        """Let the sink close once it has taken what is queued; `close` waits for that."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, timeout: float | None = 30.0) -> bool:
        """Whether the sink took what was queued and closed within `timeout` seconds.

        A sink that did not is left to its thread, which ends with the process at the latest. A
        second call waits again, and closes nothing twice.
        """
        self.begin_to_close()
        if self._thread is None:
            return True
        self._thread.join(timeout)
        if not self._thread.is_alive():
            return True
        self._say(
            "close",
            f"sink {self.name!r} did not close within {timeout} s, with "
            f"{self.stats()['queued']} records still waiting; it is left behind",
        )
        return False

    def stats(self) -> SinkStats:
        """The counters, at one moment."""
        with self._changed:
            return SinkStats(
                queued=self._accepted - self._handled,
                written=self._written,
                dropped=self._dropped,
                errors=self._errors,
            )

    def state(self) -> dict[str, object]:
        """What finds the sink's run again after a restart; empty where there is nothing to find."""
        state = getattr(self.sink, "state", None)
        if state is not None and self._usable:
            return dict(state())
        return dict(self._run.state) if self._run is not None else {}

    def _work(self, run: Run) -> None:
        self._usable = self._attempt("opening", lambda: self.sink.open(run))
        self._opened.set()
        while batch := self._next_batch():
            for record in batch:
                self._take(record)
        if self._usable:
            self._attempt("closing", self.sink.close)

    def _next_batch(self) -> deque[Record]:
        """All that waits; empty only once the sink is to close."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            batch, self._waiting = self._waiting, deque()
            return batch

    def _take(self, record: Record) -> None:
        written = self._usable and self._attempt(
            f"writing step {record.step}", lambda: self.sink.write(record)
        )
        with self._changed:
            self._handled += 1
            if written:
                self._written += 1
            elif not self._usable:
                self._dropped += 1
            self._changed.notify_all()

    def _attempt(self, doing: str, action: Callable[[], object]) -> bool:
        """Whether `action` returned; whatever it raises is counted, and said the first time."""
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - a sink may raise anything, SystemExit too
            with self._changed:
                self._errors += 1
            self._say(
                "error",
                failure(self.name, doing, error),
            )
            return False
        return True

    def _say(self, kind: str, message: str) -> None:
        with self._changed:
            if kind in self._said:
                return
            self._said.add(kind)
        try:
            self._report(message)
        except Exception:  # noqa: BLE001 - the caller's function, in a thread that must go on
            _LOG.exception("%s (and reporting it failed)", message)
