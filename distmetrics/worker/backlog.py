"""One rank's closed windows of a stream, from when they are spooled until they are committed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from distmetrics.exchange.round import MOST
from distmetrics.spool.journal import Journal, Place
from distmetrics.window.stream import Window

IN_MEMORY = 4 * MOST
"""Windows of a stream that are kept in memory where a spool has them too, at most."""


class Backlog:
    """Windows in the order of their labels; those far from their turn are in the spool only.

    Args:
        name: the stream's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._windows: dict[int, Window | None] = {}
        self._places: dict[int, Place] = {}
        self.sent = -1

    def __len__(self) -> int:
        """How many windows have not been reduced."""
        return sum(label > self.sent for label in list(self._windows))

    def add(self, windows: Mapping[int, Window], places: Mapping[int, Place]) -> None:
        """Append windows, with where the spool has them."""
        self._windows |= windows
        self._places |= places
        if len(self._windows) > IN_MEMORY:
            for label in places:
                self._windows[label] = None

    def next(self, journal: Journal | None) -> dict[int, Window]:
        """The oldest windows that have not been reduced, up to `MOST`."""
        labels = [label for label in self._windows if label > self.sent]
        found: dict[int, Window] = {}
        for label in itertools.islice(labels, MOST):
            window = self._windows[label]
            if window is None:
                assert journal is not None
                for other, read in journal.load(self._places[label], self._name).items():
                    if self._windows.get(other, read) is None:
                        self._windows[other] = read
                window = self._windows[label]
                assert window is not None
            found[label] = window
        return found

    def only(self, label: int | None) -> dict[int, Window]:
        """The window of a label, if there is one; the others are forgotten."""
        window = None if label is None else self._windows.get(label)
        self._windows.clear()
        self._places.clear()
        if label is None or window is None:
            return {}
        self._windows[label] = window
        return {label: window}

    def release(self, position: int) -> None:
        """Forget the windows through a label: they are committed."""
        while self._windows and (label := next(iter(self._windows))) <= position:
            del self._windows[label]
            self._places.pop(label, None)

    @property
    def kept(self) -> int:
        """How many windows are not known to be committed."""
        return len(self._windows)
