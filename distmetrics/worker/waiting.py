"""The collective calls of this rank that wait for the others."""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence

from distmetrics.worker.broken import BrokenCalls
from distmetrics.worker.calls import Answer
from distmetrics.worker.events import Ticket


class Waiting:
    """Calls that wait, in the order in which they began.

    A call that a round has been told of can end only with it: the other ranks may take this rank
    for waiting until the round is over.

    Args:
        lock: under which events are taken in, and with them the calls.
    """

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self._tickets: list[Ticket] = []
        self._offered: list[Ticket] = []
        self._broken = BrokenCalls()
        self._telling = False

    def __bool__(self) -> bool:
        return bool(self._tickets)

    def __iter__(self) -> Iterator[Ticket]:
        return iter(list(self._tickets))

    # --- under the lock ---

    def begin(self, ticket: Ticket) -> None:
        """A call waits from now on, unless other ranks have given it up before."""
        ticket.error = self._broken.refusal(ticket.stream)
        if ticket.error is None:
            self._tickets.append(ticket)
        else:
            ticket.taken = True
            ticket.done.set()

    def offered(self, tickets: list[Ticket]) -> None:
        """A round that begins tells the other ranks of these."""
        self._offered = tickets

    def wanted(self) -> list[Ticket]:
        """The calls whose callers still wait."""
        return [ticket for ticket in self._tickets if not ticket.withdrawn]

    # --- the training thread's side ---

    def withdraw(self, ticket: Ticket) -> bool:
        """Wait no longer; False while a round is under way that may still bring the values.

        The other ranks have been told in that round that this one waits: only when it is over
        without them can they no longer take this call for one that is still waiting.
        """
        with self._lock:
            ticket.withdrawn = True
            if ticket.taken or ticket in self._offered:
                return False
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            return True

    def give_up(self, ticket: Ticket) -> bool:
        """Wait no longer since ranks cannot be reached; False where an answer is on its way."""
        with self._lock:
            if self._telling or ticket.taken or ticket.withdrawn:
                return False
            self._broken.add(ticket.stream)
            ticket.withdrawn = True
            if ticket in self._tickets:
                self._tickets.remove(ticket)
            return True

    # --- the worker's side ---

    def answer(self, answers: Mapping[str, Answer]) -> list[Ticket]:
        """The calls that waited when the round began, with what they return."""
        with self._lock:
            for name in answers:
                self._broken.answered(name)
            return self._answered(answers)

    def answer_missed(self, answers: Mapping[str, Answer]) -> list[Ticket]:
        """The calls that waited in a broken round, which other ranks have seen the end of."""
        with self._lock:
            waited = {ticket.stream for ticket in self.wanted() if ticket in self._offered}
            for name in answers:
                (self._broken.answered if name in waited else self._broken.missed)(name)
            return self._answered(answers)

    def _answered(self, answers: Mapping[str, Answer]) -> list[Ticket]:
        taken = [t for t in self._tickets if t in self._offered and t.stream in answers]
        for ticket in taken:
            answer = answers[ticket.stream]
            ticket.reached, ticket.values = answer.reached, copy.deepcopy(answer.values)
            ticket.closed = answer.closed
        return self._take(taken)

    def refuse(self, errors: Mapping[str, Exception]) -> list[Ticket]:
        """The calls that waited when the round began and cannot be answered, with the reason."""
        with self._lock:
            refused = [t for t in self._tickets if t in self._offered and t.stream in errors]
            for ticket in refused:
                ticket.error = errors[ticket.stream]
            return self._take(refused)

    def break_off(self, lost: bool) -> list[Ticket]:
        """All calls that wait.

        Args:
            lost: they are given up since ranks cannot be reached.
        """
        with self._lock:
            if lost:
                for ticket in self.wanted():
                    self._broken.add(ticket.stream)
            return self._take(list(self._tickets))

    @property
    def has_broken(self) -> bool:
        """Whether calls were given up here since all ranks' last answer."""
        return bool(self._broken.counts)

    @contextlib.contextmanager
    def telling_broken(self) -> Iterator[dict[str, int]]:
        """How many calls were given up here, by stream; meanwhile no further one is."""
        with self._lock:
            self._telling = True
            counts = dict(self._broken.counts)
        try:
            yield counts
        finally:
            self._telling = False

    def align(self, told: Sequence[Mapping[str, int]]) -> list[Ticket]:
        """The calls that wait here and were given up by ranks that are connected again.

        Args:
            told: how many calls each rank has given up, as `telling_broken` has it.
        """
        with self._lock:
            self._broken.align(told)
            waiting = self.wanted()
            for ticket in waiting:
                ticket.error = self._broken.refusal(ticket.stream)
            return self._take([ticket for ticket in waiting if ticket.error is not None])

    def _take(self, tickets: list[Ticket]) -> list[Ticket]:
        for ticket in tickets:
            ticket.taken = True
            self._tickets.remove(ticket)
        return tickets
