"""What a worker knows of the other ranks: how far they are, who holds records back, who is lost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import PeerLostError
from distmetrics.exchange.round import Outcome
from distmetrics.exchange.schema import COLLECTIVE
from distmetrics.window.stream import NEVER, step_of

NAMED = 8
"""Ranks whose last steps a message holds, at most."""


class Peers:
    """The other ranks, as rounds have shown them.

    Args:
        notice_after: seconds for which a record waits before the ranks that it waits for are named.

    Attributes:
        gone: the ranks that have closed and left for good.
        asks: whether the next round should find out who holds a record back.
    """

    def __init__(self, notice_after: float) -> None:
        self.gone: set[int] = set()
        self.asks = False
        self._notice_after = notice_after
        self._steps: dict[int, int] = {}
        self._closed: set[int] = set()
        self._lost: set[int] = set()
        self._held: dict[str, tuple[int, float]] = {}
        self._asked: dict[str, int] = {}
        self._holders: set[int] = set()

    def note(self, outcome: Outcome) -> None:
        """Take in what a round showed."""
        for rank, step in enumerate(outcome.latest):
            if step < NEVER:
                self._steps[rank] = step
            else:
                self._closed.add(rank)
        self.gone.update(outcome.leavers)

    def last_steps(self, ranks: Sequence[int]) -> str:
        """The last steps of ranks, for messages."""
        texts = []
        for rank in ranks[:NAMED]:
            step = self._steps.get(rank, -1)
            closed = ", closed" if rank in self._closed else ""
            texts.append(f"rank {rank}: {'none' if step < 0 else step}{closed}")
        return ", ".join(texts)

    # --- records that are held back ---

    def held_back(self, outcome: Outcome) -> str | None:
        """Who holds records back, once for each rank; None while there is nothing to say."""
        now = time.monotonic()
        self._held = {
            name: (
                label,
                now
                if name not in self._held or self._held[name][0] != label
                else self._held[name][1],
            )
            for name, label in outcome.held.items()
            if not name.startswith(COLLECTIVE)
        }
        overdue = {
            name: label
            for name, (label, since) in self._held.items()
            if now - since >= self._notice_after
        }
        self.asks = any(self._asked.get(name) != label for name, label in overdue.items())
        if self.asks and not outcome.holders:
            return None
        self.asks = False
        self._asked |= overdue
        for name, label in overdue.items():
            ranks = [r for r in outcome.holders.get(name, []) if r not in self._holders]
            if ranks:
                self._holders.update(ranks)
                return self._text(name, label, ranks)
        return None

    def _text(self, name: str, label: int, ranks: Sequence[int]) -> str:
        child = f" of child {name!r}" if name else ""
        call = "log({}, step=s)"
        return (
            f"the record of step {step_of(label)}{child} and those after it have waited "
            f"{self._notice_after:g} s for {name_ranks(ranks)} (last steps: "
            f"{self.last_steps(ranks)}). Nothing is lost; a rank that has nothing to log lets the "
            f"others' records go on by {call}, which promises nothing more below s"
        )

    # --- ranks that vanish ---

    def newly_lost(self, ranks: Iterable[int]) -> list[int]:
        """Those of these ranks of which nobody has been told."""
        return [rank for rank in ranks if rank not in self._lost]

    def lose(
        self, ranks: Sequence[int], why: object, waiting: int, keys: Sequence[str], keeping: str
    ) -> PeerLostError:
        """The error that says which ranks are lost, their last steps, and what waits for them.

        Args:
            ranks: that are lost; empty where they cannot be told.
            why: how it was noticed.
            waiting: this rank's closed windows that are not reduced.
            keys: some of the keys in them.
            keeping: what becomes of them.
        """
        self._lost.update(ranks)
        rank = ranks[0] if ranks else None
        step = None if rank is None else self._steps.get(rank)
        who = f"{name_ranks(ranks)} is lost" if len(ranks) == 1 else "ranks are lost"
        if len(ranks) > 1:
            who = f"{name_ranks(ranks)} are lost"
        after = f" (last steps: {self.last_steps(ranks)})" if ranks else ""
        holds = f" (keys {', '.join(map(repr, keys[:4]))})" if keys else ""
        return PeerLostError(
            f"{who}{after}: {why}. The training goes on; {waiting} closed windows of this rank"
            f"{holds} and those to come {keeping}",
            rank,
            step,
            keys[0] if keys else None,
        )

    def found_again(self) -> list[int]:
        """The ranks that were said to be lost, now that all are connected."""
        found = sorted(self._lost)
        self._lost.clear()
        return found
