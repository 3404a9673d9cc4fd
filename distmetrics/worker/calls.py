"""What collective calls came to, for a rank that has missed the end of a round.

A round that breaks may be over on some ranks, whose calls have returned, and not on others, which
would wait in theirs for ever, or meet the next call of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What the calls of all ranks return.

    Attributes:
        reached: the watermark of the stream to which all ranks were raised.
        values: as JSON-able values.
        closed: the ranks that had closed, and have no part in it.
    """

    reached: int
    values: dict[str, Any]
    closed: Sequence[int] = ()


class Calls:
    """Counts the calls that were answered, by stream: ranks differ only after a broken round."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._answers: dict[str, Answer] = {}

    def note(self, stream: str, answer: Answer) -> None:
        """A round has answered a call; whether or not somebody waits for it here."""
        self.counts[stream] = self.counts.get(stream, 0) + 1
        self._answers[stream] = answer

    def told(self, streams: Sequence[str]) -> dict[str, Answer]:
        """The last answers of streams, for ranks that lack them."""
        return {name: self._answers[name] for name in streams if name in self._answers}

    def catch_up(
        self, counts: Sequence[Mapping[str, int]], told: Sequence[Mapping[str, Any]]
    ) -> dict[str, Answer]:
        """Take over what this rank has missed.

        Args:
            counts: of each rank.
            told: what each rank has `told` of the streams in which they differ.

        Returns:
            The answers that were missed here, by stream.
        """
        missed = {}
        for name in differing(counts):
            most = max(count.get(name, 0) for count in counts)
            if self.counts.get(name, 0) < most:
                known = next(r for r, count in enumerate(counts) if count.get(name, 0) == most)
                missed[name] = self._answers[name] = Answer(*told[known][name])
                self.counts[name] = most
        return missed


def differing(counts: Sequence[Mapping[str, int]]) -> list[str]:
    """The streams of which the ranks count different numbers of calls."""
    names = dict.fromkeys(name for count in counts for name in count)
    return [name for name in names if len({count.get(name, 0) for count in counts}) > 1]
