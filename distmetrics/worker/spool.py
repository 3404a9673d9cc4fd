"""A rank's spool as its streams use it: a disk that fails is told of once, and tried again."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.journal import BATCH, Journal, Place
from distmetrics.window.stream import Window

UNSPOOLED = 10_000
"""Windows of a stream that wait for the disk of the spool, at most."""


class Declared(NamedTuple):
    """What a spool says of a stream: see `Journal.add_stream`."""

    every: int | None
    table: KeyTable
    totals: Mapping[str, Any]


class Spool:
    """Closed windows on their way to the disk.

    Args:
        journal: what writes them.
        tell: receives what a user should know.
    """

    def __init__(self, journal: Journal, tell: Callable[[str], object]) -> None:
        self._journal = journal
        self._tell = tell
        self._told: set[str] = set()
        self._waiting: dict[str, dict[int, Window]] = {}

    def write(
        self,
        closed: Mapping[str, Mapping[int, Window]],
        declared: Mapping[str, Declared],
        marks: Mapping[str, int],
    ) -> tuple[dict[str, dict[int, Place]], bool]:
        """Append windows and watermarks.

        Args:
            closed: for each stream its windows, by label.
            declared: what is said of these streams.
            marks: the watermarks, which hold once the windows are closed.

        Returns:
            Where the windows can be read back, those of earlier calls too; and whether everything
            is on disk.
        """
        for name, windows in closed.items():
            self._waiting.setdefault(name, {}).update(windows)
        places: dict[str, dict[int, Place]] = {}
        try:
            if self._journal.deleted:
                self._say("deleted", "was deleted; it is begun anew, without the windows until now")
                self._journal.begin_anew()
            for name, waiting in list(self._waiting.items()):
                self._journal.add_stream(name, *declared[name])
                while waiting:
                    part = dict(itertools.islice(waiting.items(), BATCH))
                    places.setdefault(name, {}).update(self._journal.add(name, part))
                    for label in part:
                        del waiting[label]
                self._waiting[name] = {}  # an emptied dict keeps its size
            self._journal.mark(marks)
        except OSError as error:
            self._fail(error)
            return places, False
        return places, True

    def read(self, place: Place, name: str) -> dict[int, Window]:
        """The windows of a line of the spool.

        Raises:
            OSError: it is damaged.
        """
        return self._journal.load(place, name)

    def release(self, positions: Mapping[str, int]) -> None:
        """Delete what has been committed."""
        for name, waiting in self._waiting.items():
            for label in [label for label in waiting if label <= positions.get(name, -1)]:
                del waiting[label]
        try:
            self._journal.release(positions)
        except OSError as error:
            self._fail(error)

    def close(self, committed: bool) -> None:
        """Close the spool; delete it where everything has been committed."""
        try:
            self._journal.close(committed)
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._say(
            "failed",
            f"cannot be written ({error.strerror or error}) and is tried again; meanwhile closed "
            "windows are kept in memory, and are lost if this process dies before they are reduced",
        )
        for waiting in self._waiting.values():
            for label in list(itertools.islice(waiting, max(0, len(waiting) - UNSPOOLED))):
                del waiting[label]  # it is in the backlog still

    def _say(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(f"the spool {str(self._journal.folder)!r} {text}")
