"""What a worker knows of the other ranks: how far they are, who has left, who is lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import PeerLostError
from distmetrics.exchange.round import Outcome
from distmetrics.window.labels import NEVER

NAMED = 8
"""Ranks whose last steps a message holds, at most."""


class Peers:
    """The other ranks, as rounds have shown them.

    Attributes:
        gone: the ranks that have closed and left for good.
    """

    def __init__(self) -> None:
        self.gone: set[int] = set()
        self._steps: dict[int, int] = {}
        self._closed: set[int] = set()
        self._lost: set[int] = set()

    def note(self, outcome: Outcome) -> None:
        """Take in what a round showed."""
        for rank, step in enumerate(outcome.latest):
            if step < NEVER:
                self._steps[rank] = step
            else:
                self._closed.add(rank)
        self.gone.update(outcome.leavers)

    def last_step(self, rank: int) -> int | None:
        """The last step of a rank before it closed; None where none is known."""
        return self._steps.get(rank)

    def last_steps(self, ranks: Sequence[int]) -> str:
        """The last steps of ranks, for messages."""
        texts = []
        for rank in ranks[:NAMED]:
            step = self._steps.get(rank, -1)
            closed = ", closed" if rank in self._closed else ""
            texts.append(f"rank {rank}: {'none' if step < 0 else step}{closed}")
        return ", ".join(texts)

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
        step = None if rank is None else self.last_step(rank)
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
