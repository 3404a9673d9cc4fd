"""One rank's closed windows of a stream, from when they are spooled until they are committed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from distmetrics.exchange.round import MOST
from distmetrics.spool.journal import Place
from distmetrics.window.stream import Window
from distmetrics.worker.spool import Spool

IN_MEMORY = 4 * MOST
"""Windows of a stream that are kept in memory where a spool has them too, at most."""


class Backlog:
    """Windows in the order of their labels; those far from their turn are in the spool only.

    Args:
        name: the stream's name.

    Attributes:
        sent: the label through which windows have been reduced.
        lost: windows that could not be read back from the spool.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._windows: dict[int, Window | None] = {}
        self._places: dict[int, Place] = {}
        self.sent = -1
        self.lost = 0
        self._most = 0

    def __len__(self) -> int:
        """How many windows have not been reduced."""
        return sum(label > self.sent for label in list(self._windows))

    def add(self, windows: Mapping[int, Window], places: Mapping[int, Place]) -> None:
        """Append windows, and where the spool has windows of now or before."""
        self._windows |= windows
        self._places |= {label: place for label, place in places.items() if label in self._windows}
        excess = len(self._windows) - IN_MEMORY
        if excess > 0:
            spooled = sorted(self._places.keys() & places.keys(), reverse=True)
            self._windows.update(dict.fromkeys(spooled[:excess]))  # their turn comes last

    def next(self, spool: Spool | None) -> dict[int, Window]:
        """The oldest windows that have not been reduced, up to `MOST`."""
        labels = [label for label in self._windows if label > self.sent]
        found: dict[int, Window] = {}
        for label in itertools.islice(labels, MOST):
            window = self._windows[label]
            if window is None:
                assert spool is not None
                self._read_back(self._places[label], spool)
                window = self._windows[label] or self._lose(label)
            found[label] = window
        return found

    def _read_back(self, place: Place, spool: Spool) -> None:
        """Take the windows of a line of the spool into memory again."""
        try:
            read = spool.read(place, self._name)
        except OSError:
            return
        for label, window in read.items():
            if self._windows.get(label, window) is None:
                self._windows[label] = window

    def _lose(self, label: int) -> Window:
        """An empty window in the place of one that the disk does not give back."""
        self.lost += 1
        window = self._windows[label] = Window(0.0)
        return window

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
        self._most = max(self._most, len(self._windows))
        if self._most > IN_MEMORY and len(self._windows) < self._most // 8:
            self._windows, self._places = dict(self._windows), dict(self._places)
            self._most = len(self._windows)  # a dict keeps the size of its best days

    @property
    def kept(self) -> int:
        """How many windows are not known to be committed."""
        return len(self._windows)
