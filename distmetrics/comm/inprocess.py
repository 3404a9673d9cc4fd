"""Threads of one process as ranks: the seam through which most tests run, and the fastest one."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterable

import numpy as np

from distmetrics.comm.communicator import Communicator, Int64Array, Op, name_ranks
from distmetrics.comm.reunion import Missing
from distmetrics.errors import PeerLostError, PeerTimeoutError


class InProcessWorld:
    """`world_size` ranks that live in threads of this process.

    `endpoint(rank)` is what a thread passes to `communicator.set_current`.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._lock = threading.Lock()
        self._meetings: dict[int, Meeting] = {}

    def endpoint(self, rank: int) -> InProcessRank:
        """The rank's own end."""
        return InProcessRank(self, rank)

    def meeting(self, number: int) -> Meeting:
        """The place where the ranks' communicators of this number meet."""
        with self._lock:
            if number not in self._meetings:
                self._meetings[number] = Meeting(range(self.world_size))
            return self._meetings[number]

    def abort(self) -> None:
        """Make every waiting collective fail: a rank has ended with an error."""
        with self._lock:
            for meeting in self._meetings.values():
                meeting.break_off("a rank ended with an error")


class InProcessRank:
    """One rank of an `InProcessWorld`."""

    def __init__(self, world: InProcessWorld, rank: int) -> None:
        self.rank = rank
        self.world_size = world.world_size
        self._world = world
        self._numbers = itertools.count()

    def connect(self, timeout: float, start_timeout: float) -> Communicator:
        """The next communicator of this rank; waits for all ranks to ask for theirs.

        Raises:
            PeerTimeoutError: some ranks did not come within `start_timeout`.
        """
        meeting = self._world.meeting(next(self._numbers))
        peer = InProcess(meeting, self.rank, timeout)
        meeting.meet(self.rank, b"", start_timeout, list, starting=True)
        return peer


class Meeting:
    """A sequence of collectives; the n-th call of each rank is matched with the others'.

    Args:
        members: the ranks that take part.
    """

    def __init__(self, members: Iterable[int]) -> None:
        self.members = sorted(members)
        self._condition = threading.Condition()
        self._following: set[int] = set()
        self._gone: set[int] = set()
        self._left: set[int] = set()
        self._finished = False
        self._next: Meeting | None = None
        self._given: dict[int, object] = {}
        self._result: object = None
        self._generation = 0
        self._broken = ""
        self._absent: list[int] = []

    def meet(
        self,
        rank: int,
        given: object,
        timeout: float,
        combine: Callable[[list[object]], object],
        starting: bool = False,
    ) -> object:
        """`combine` of what all ranks gave, in rank order; the last to come computes it."""
        with self._condition:
            if self._broken:
                raise self._error(starting)
            self._given[rank] = given
            if len(self._given) == len(self.members):
                self._result = combine([self._given[peer] for peer in self.members])
                self._given = {}
                self._generation += 1
                self._condition.notify_all()
                return self._result
            generation = self._generation
            deadline = time.monotonic() + timeout
            while self._generation == generation and not self._broken:
                left = deadline - time.monotonic()
                if left <= 0:
                    absent = [peer for peer in self.members if peer not in self._given]
                    self._absent = absent
                    self.break_off(f"{name_ranks(absent)} did not come within {timeout:g} s")
                    break
                self._condition.wait(left)
            if self._generation == generation:
                raise self._error(starting)
            return self._result

    def follow(self, rank: int, patience: float, gone: Collection[int]) -> Meeting | Missing:
        """The meeting that follows once all members ask for it; those that did not in time.

        Args:
            rank: that asks.
            patience: seconds to wait for the others.
            gone: members that are not waited for.
        """
        deadline = time.monotonic() + patience
        self.break_off("the ranks connect again")
        with self._condition:
            self._following.add(rank)
            self._gone.update(gone)
            self._condition.notify_all()
            while absent := sorted({*self.members} - self._following - self._gone):
                left = deadline - time.monotonic()
                if left <= 0 or self._left.intersection(absent):
                    dead = tuple(peer for peer in absent if peer in self._left)
                    silent = tuple(peer for peer in absent if peer not in dead)
                    return Missing(dead, silent, self._finished)
                self._condition.wait(left)
            if self._next is None:
                self._next = Meeting({*self.members} - self._gone)
            return self._next

    def leave(self, rank: int, finished: bool) -> None:
        """Not wait for the following meeting any more; the others' collectives fail."""
        with self._condition:
            self._following.discard(rank)
            self._left.add(rank)
            self._finished |= finished
        self.break_off(f"rank {rank} closed its communicator")

    def _error(self, starting: bool) -> PeerTimeoutError | PeerLostError:
        if starting and self._absent:
            return PeerTimeoutError(self._broken, self._absent)
        return PeerLostError(self._broken, self._absent[0] if self._absent else None)

    def break_off(self, reason: str) -> None:
        """Make this and every later collective of all ranks fail."""
        with self._condition:
            self._broken = self._broken or reason
            self._condition.notify_all()


class InProcess:
    """A `Communicator` whose peers are threads."""

    def __init__(self, meeting: Meeting, rank: int, timeout: float) -> None:
        self.rank = rank
        self.world_size = len(meeting.members)
        self._meeting = meeting
        self._timeout = timeout

    def all_reduce(self, array: Int64Array, op: Op) -> Int64Array:
        def combine(parts: list[object]) -> object:
            return reduce_arrays(parts, op)  # type: ignore[arg-type]

        result = self._meeting.meet(self.rank, array.copy(), self._timeout, combine)
        assert isinstance(result, np.ndarray)
        return result.copy()

    def all_gather(self, payload: bytes, absent: bytes = b"") -> list[bytes]:
        result = self._meeting.meet(self.rank, payload, self._timeout, list)
        assert isinstance(result, list)
        given = [absent] * self.world_size
        for member, part in zip(self._meeting.members, result, strict=True):
            given[member] = part
        return given

    def regroup(self, patience: float, gone: Collection[int] = ()) -> Missing | None:
        found = self._meeting.follow(self.rank, patience, gone)
        if isinstance(found, Missing):
            return found
        self._meeting = found
        return None

    def close(self, finished: bool = False) -> None:
        self._meeting.leave(self.rank, finished)


def reduce_arrays(parts: list[Int64Array], op: Op) -> Int64Array:
    """The elementwise sum or maximum; lengths that differ are an error, which Gloo may not see."""
    shapes = {part.shape for part in parts}
    if len(shapes) != 1:
        raise AssertionError(f"ranks gave arrays of different shapes: {sorted(shapes)}")
    stacked = np.stack(parts)
    reduced: Int64Array = stacked.sum(axis=0) if op is Op.SUM else stacked.max(axis=0)
    return reduced
