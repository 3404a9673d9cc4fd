"""Which collective calls a lost rank has ended here, so that later ones match those of the others.

While ranks cannot be reached each gives up calls at a pace of its own. Once they are connected
again, a rank that has given up fewer than another would meet the others' later calls with its
earlier ones, from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import PeerLostError


class BrokenCalls:
    """Counts the calls of each stream that were given up here since all ranks' last answer.

    Attributes:
        counts: how many, by stream.
    """

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._by: dict[str, list[int]] = {}

    def add(self, stream: str) -> None:
        """A call was given up."""
        self.counts[stream] = self.counts.get(stream, 0) + 1

    def answered(self, stream: str) -> None:
        """A call was answered on all ranks: they match, whatever was before."""
        self.counts.pop(stream, None)
        self._most.pop(stream, None)

    def missed(self, stream: str) -> None:
        """The first of the calls that were given up here was answered on the other ranks."""
        self.counts[stream] = max(0, self.counts.get(stream, 0) - 1)

    def align(self, told: Sequence[Mapping[str, int]]) -> None:
        """Take in the counts of all ranks, which are connected again."""
        for name in dict.fromkeys(name for counts in told for name in counts):
            most = self._most[name] = max(counts.get(name, 0) for counts in told)
            self._by[name] = [r for r, counts in enumerate(told) if counts.get(name, 0) == most]

    def refusal(self, stream: str) -> PeerLostError | None:
        """Why a call that begins, or waits, cannot match: others have given it up. None: it can."""
        if self.counts.get(stream, 0) >= self._most.get(stream, 0):
            return None
        self.add(stream)
        by = self._by[stream]
        return PeerLostError(
            f"{name_ranks(by)} {'has' if len(by) == 1 else 'have'} given this call up while ranks "
            "could not reach each other; those that follow it match again",
            by[0],
        )
