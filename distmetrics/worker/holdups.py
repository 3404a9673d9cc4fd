"""Naming the ranks for which records wait: those that log nothing, or no longer."""

from __future__ import annotations

from collections.abc import Callable

from distmetrics.comm.communicator import name_ranks
from distmetrics.exchange.round import LEAVES, Outcome


class Holdups:
    """Notes each rank, once, that has held records of the logger back for a while.

    Args:
        every: steps of the logger's windows; None: nothing is due before a flush.
        notice_after: seconds without a record after which a rank is named.
        note: receives the text.
    """

    def __init__(
        self, every: int | None, notice_after: float, note: Callable[[str], object]
    ) -> None:
        self._every = every
        self._notice_after = notice_after
        self._note = note
        self._since: float | None = None
        self._noted: set[int] = set()

    def look(self, outcome: Outcome, backlog: int, now: float) -> None:
        """Look at a round.

        Args:
            outcome: what it came to.
            backlog: closed windows of this rank that wait.
            now: seconds of a steady clock.
        """
        behind = self._behind(outcome, backlog)
        if not behind or any(not row.stream.name for row in outcome.rows):
            self._since = None
            return
        if self._since is None:
            self._since = now
        new = [rank for rank in behind if rank not in self._noted]
        if new and now - self._since >= self._notice_after:
            self._noted.update(new)
            last = outcome.latest[new[0]]
            said = "logged nothing yet" if last < 0 else f"not gone beyond step {last}"
            self._note(
                f"records wait for {name_ranks(new)}, which {'has' if len(new) == 1 else 'have'} "
                f"{said}; where a rank has nothing to log, logger.log({{}}, step=s) on it promises "
                "nothing more below step s, so that the others' records need not wait"
            )

    def _behind(self, outcome: Outcome, backlog: int) -> list[int]:
        """The ranks that are a window or more behind the others."""
        if self._every is None:
            return []
        open_ranks = [rank for rank, step in enumerate(outcome.latest) if step < LEAVES]
        if not open_ranks:
            return []
        least = min(outcome.latest[rank] for rank in open_ranks)
        most = max(outcome.latest[rank] for rank in open_ranks)
        if most - least < self._every and not (backlog and len(open_ranks) < len(outcome.latest)):
            return []
        return [rank for rank in open_ranks if outcome.latest[rank] == least]
