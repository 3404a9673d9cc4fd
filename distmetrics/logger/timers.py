"""Seconds spent in pieces of the training loop, on their way to the next call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from distmetrics.snapshot import Snapshot, Snapshotter


class Timers:
    """The seconds of one logger or child that have not been logged yet, by key.

    Args:
        now: the seconds of the scope's clock, which leaves out its pauses.
        snapshotter: checks and takes them as logged values.
    """

    def __init__(self, now: Callable[[], float], snapshotter: Snapshotter) -> None:
        self._now = now
        self._snapshotter = snapshotter
        self._lock = threading.Lock()  # a data loader's thread may be timed
        self._seconds: dict[str, float] = {}
        self._known: set[str] = set()

    @contextlib.contextmanager
    def measure(self, key: str) -> Iterator[None]:
        """Add the seconds spent in here, also where it ends in an exception.

        Raises:
            InvalidType, InvalidValue, UnknownKey, DeclarationConflict: no seconds can be logged
                under this key.
        """
        if key not in self._known:
            self._snapshotter.take({key: 0.0})
            self._known.add(key)
        began = self._now()
        try:
            yield
        finally:
            spent = self._now() - began
            with self._lock:
                self._seconds[key] = self._seconds.get(key, 0.0) + spent

    def take(self) -> Snapshot | None:
        """A snapshot of what was measured since the last one; None where nothing was."""
        if not self._seconds:
            return None
        with self._lock:
            seconds, self._seconds = self._seconds, {}
        return self._snapshotter.take(seconds)
