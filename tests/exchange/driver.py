"""Runs a schedule over the real code, one act at a time, in one thread.

An act is an event of one rank's training, or one step of one rank's worker: to the next
collective, or from its result on. Which act comes next is the schedule's choice, so that
training events fall between any two collectives of any worker.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import distmetrics as dm
from distmetrics import exact
from distmetrics.comm import communicator
from distmetrics.comm.inprocess import reduce_arrays
from distmetrics.errors import DeclarationConflict
from distmetrics.exchange import round as round_module
from distmetrics.exchange.message import Row
from distmetrics.exchange.round import AllGather, AllReduce, Outcome
from distmetrics.reductions import Counter
from distmetrics.worker import backlog as backlog_module
from distmetrics.worker.events import Ended, Flushed, Logged, Opened, Ticket
from distmetrics.worker.worker import Worker
from tests.exchange.actor import Actor, make_registry
from tests.exchange.oracle import Event, Expected, Given, Oracle, Values, View
from tests.exchange.program import Burst, Close, Flush, Log, Op, Reduce, Schedule

ROUND = 180
"""Turns from here on let the workers go on until one of them has ended a round."""
GIVE_UP = 220
"""Turns from here on are those of time-outs."""
SPOOL = 228
"""Turns from here on are those of spoolers, which take in events at any time."""


REDUCE = "\x00reduce"


class Hang(AssertionError):
    """Nobody can go on, or rounds have no end."""


def op_waits(op: Op) -> bool:
    """Whether an event ends only when all ranks have come."""
    return isinstance(op, Reduce) or (isinstance(op, Flush) and op.wait)


class _Peer:
    """A communicator of a rank that is driven from outside: only the start goes through it."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size

    def connect(self, timeout: float, start_timeout: float) -> _Peer:
        return self

    def all_gather(self, payload: bytes) -> list[bytes]:
        return [payload] * self.world_size

    def close(self) -> None:
        """Nothing is held."""


class Rank:
    """One rank: its training and its worker."""

    def __init__(self, number: int, schedule: Schedule, oracle: Oracle, registry: Any) -> None:
        self.number = number
        self.oracle = oracle
        self.schedule = schedule
        self.program: Iterator[Op] = iter(schedule.programs[number])
        self.next_op = next(self.program, Close())
        self.ended = False
        self.ticket: Ticket | None = None
        self.served: list[tuple[str, dict[str, Any]]] = []
        self.told: list[Any] = []
        self.memory = dm.sinks.MemorySink()
        self.round: Any = None
        self.request: AllReduce | AllGather | None = None
        self.collective = 0
        self.rounds = 0
        self.left = False
        self.rows: list[Row] = []
        self._returned: Ticket | None = None
        self._waits: list[bool] | None = None
        communicator.set_current(_Peer(number, schedule.world_size))
        try:
            self.logger = dm.Logger(
                registry,
                sinks=[self.memory] if number == 0 else (),
                every=schedule.every,
                on_step_regress="accept",
            )
        finally:
            communicator.set_current(None)
        self.actor = Actor(number, schedule, self.logger)
        core = self.core = self.logger._core
        self.worker = core._parts.worker
        self.streams = core._parts.streams
        self._spy(core)

    def _spy(self, core: Any) -> None:
        """Tell the oracle what is pushed; return from waiting calls at once."""
        push, streams = self.streams.push, self.streams
        for event in list(streams.events):
            self._record(event)

        def pushed(event: Any) -> None:
            self._record(event)
            push(event)

        def waits(ticket: Ticket, step: int, call: str) -> dict[str, Any]:
            self.ticket = ticket
            return {}

        streams.push = pushed
        core.wait = waits
        core.notices.tell = lambda: None

    def _record(self, event: Any) -> None:
        push = self.oracle.push
        match event:
            case Opened(stream, every):
                push(self.number, Event("open", stream, every=every))
            case Logged(stream, step, snapshot, own_step):
                given = None if snapshot is None else self._named(step)
                push(self.number, Event("log", stream, step, given, own_step))
            case Flushed(stream, step, _, ticket):
                waits = None if ticket is None else [True]
                self._waits = waits or self._waits
                push(self.number, Event("flush", stream, step, waits=waits))
            case Ended():
                push(self.number, Event("end"))

    def _named(self, step: int | None) -> tuple[Given, ...]:
        at = -1 if step is None else step
        return tuple(one._replace(step=at) for one in self.actor.given or ())

    # --- training ---

    @property
    def blocked(self) -> bool:
        """Whether the training waits in a collective call."""
        ticket = self.ticket
        if ticket is None or ticket.done.is_set():
            return False
        if ticket.withdrawn and self.streams.calls.withdraw(ticket):
            self.ticket = None
            return False
        return True

    def returned(self) -> bool:
        """Whether a collective call has got its values; once for each call."""
        ticket = self.ticket
        if ticket is None or ticket is self._returned or not ticket.done.is_set():
            return False
        self._returned = ticket
        return True

    @property
    def can_train(self) -> bool:
        """Whether the next event can come: of the thread that waits, or of another one."""
        if self.ended or not self.blocked:
            return not self.ended
        op = self.next_op
        return self.schedule.busy and isinstance(op, Log | Burst | Flush) and not op_waits(op)

    def train(self) -> None:
        """The next event of the training."""
        if not self.blocked:
            self._return()
        op, self.next_op = self.next_op, next(self.program, Close())
        if isinstance(op, Close):
            self.core._end()
            self.ended = True
        else:
            self.actor.do(op)

    def _return(self) -> None:
        """What a waiting call does when it returns."""
        ticket, self.ticket = self.ticket, None
        if ticket is None:
            return
        assert ticket.error is None
        self.served.append((ticket.stream, ticket.values))
        if ticket.stream != REDUCE:
            scope = self.actor.scope(ticket.stream)
            scope._floor = max(scope._floor, first_step(ticket.reached))

    def give_up(self) -> None:
        """The time-out of a call that waits for all ranks: it ends when no round is under way."""
        ticket = self.ticket
        if ticket is not None and not ticket.done.is_set():
            self.oracle.served(self.number, ticket.stream)
            if self._waits is not None:
                self._waits[0] = False
            if self.streams.calls.withdraw(ticket):
                self.ticket = None

    def finish(self) -> None:
        self._return()
        self.told += self.core.notices._waiting
        self.core._shut(1.0)

    # --- worker ---

    def act(self, result: Any) -> Outcome | None:
        """The worker goes on: with a round, or with the result of the collective it waits for."""
        try:
            if self.round is None:
                self.round = self.worker.meet()
                self.request = next(self.round)
            else:
                self.request = self.round.send(result)
        except StopIteration as end:
            outcome: Outcome = end.value
            self.round = self.request = None
            self.rounds += 1
            self.left = outcome.finished
            self.rows += outcome.rows
            return outcome
        return None


class Driver:
    """Runs one schedule.

    Attributes:
        rows: the rows that were reduced, in order, the same on every rank.
        outcomes: of each round.
        kinds: of each round the collectives, e.g. "MSM".
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.oracle = Oracle(schedule.world_size)
        self.outcomes: list[Outcome] = []
        self.kinds: list[str] = []
        self.returned: dict[tuple[int, str], dict[str, Any]] = {}
        self._views: dict[int, View] = {}
        self._past: list[list[View]] = []
        self._posted: dict[int, dict[int, AllReduce | AllGather]] = {}
        self._results: dict[int, Any] = {}
        self._closed_at = self._blocked_at = 0
        self._progress = (0, False)
        registry = make_registry()
        self.ranks = [
            Rank(number, schedule, self.oracle, registry) for number in range(schedule.world_size)
        ]

    @property
    def rows(self) -> list[Row]:
        return self.ranks[0].rows

    def run(self) -> None:
        """All acts, until every worker has left."""
        for turn in self.schedule.turns:
            if not self._act(turn):
                return
        self._blocked_at = len(self.kinds)
        for turn in itertools.cycle(range(2 * self.schedule.world_size)):
            if not self._act(turn):
                return
            self._check_waiting()

    def _act(self, turn: int) -> bool:
        """The act of the chosen rank, or of the next one that can act; False when all have left."""
        count = len(self.ranks)
        if turn >= SPOOL:
            rank = self.ranks[turn % count]
            self.oracle.collect(rank.number)
            rank.streams.collect()
            return True
        if turn >= GIVE_UP and not self.schedule.patient:
            self.ranks[turn % count].give_up()
            return True
        if turn >= ROUND:
            return self._round(turn)
        for offset in range(2 * count):
            which = (turn + offset) % (2 * count)
            rank = self.ranks[which % count]
            if which < count:
                if rank.can_train:
                    rank.train()
                    return True
            elif self._can_work(rank):
                self._work(rank)
                return True
        if all(rank.left for rank in self.ranks):
            return False
        raise Hang("no rank can go on")

    def _round(self, turn: int) -> bool:
        """Acts of workers alone, until one has ended a round; False when all have left."""
        count = len(self.ranks)
        ended = max(rank.rounds for rank in self.ranks)
        while any(self._can_work(rank) for rank in self.ranks):
            for which in range(turn, turn + count):
                rank = self.ranks[which % count]
                if self._can_work(rank):
                    self._work(rank)
                if rank.rounds > ended:
                    return True
        return not all(rank.left for rank in self.ranks)

    def _can_work(self, rank: Rank) -> bool:
        if rank.left:
            return False
        return rank.request is None or rank.collective in self._results

    def _work(self, rank: Rank) -> None:
        begins = rank.round is None
        result = None
        if not begins:
            result = self._results[rank.collective]
            rank.collective += 1
            if isinstance(rank.request, AllReduce):
                result = result.copy()
        outcome = rank.act(result)
        if begins:
            self._begin(rank)
        if outcome is not None:
            self._end(rank, outcome)
        elif rank.request is not None:
            self._post(rank, rank.request)

    def _post(self, rank: Rank, request: AllReduce | AllGather) -> None:
        posted = self._posted.setdefault(rank.collective, {})
        posted[rank.number] = request
        if isinstance(request, AllReduce):
            posted[rank.number] = AllReduce(request.array.copy(), request.op)
        if len(posted) < len(self.ranks):
            return
        parts = [posted[number] for number in range(len(self.ranks))]
        kinds = {part.op.name[0] if isinstance(part, AllReduce) else "G" for part in parts}
        assert len(kinds) == 1, f"ranks are in different collectives: {kinds}"
        self.kinds[-1] += kinds.pop()
        if isinstance(request, AllReduce):
            arrays = [part.array for part in parts if isinstance(part, AllReduce)]
            self._results[rank.collective] = reduce_arrays(arrays, request.op)
        else:
            self._results[rank.collective] = [p.payload for p in parts if isinstance(p, AllGather)]
        del self._posted[rank.collective]
        self._results.pop(rank.collective - 2, None)

    # --- checks while it runs ---

    def _begin(self, rank: Rank) -> None:
        view = self.oracle.view(rank.number)
        if rank.rounds == len(self.kinds):
            self._views = {}
            self.kinds.append("")
        assert rank.rounds == len(self.kinds) - 1
        self._views[rank.number] = view
        if len(self._views) == len(self.ranks):
            self.oracle.settle(self._views.values())
            self._past.append([self._views[number] for number in range(len(self.ranks))])
            self._check_end()

    def _check_waiting(self) -> None:
        """Ranks that wait for different things have no end but their time-outs."""
        waiting = [rank for rank in self.ranks if not rank.ended]
        progress = (len(self.rows), all(rank.blocked for rank in waiting))
        if progress != (self._progress[0], True):
            self._blocked_at = len(self.kinds)
        self._progress = progress
        if waiting and len(self.kinds) - self._blocked_at > 12:
            streams = {rank.ticket.stream for rank in waiting if rank.ticket is not None}
            if self.schedule.patient or len(streams) == 1:
                raise Hang(f"no end of waiting for {streams}")
            waiting[0].give_up()
            self._blocked_at = len(self.kinds)

    def _check_end(self) -> None:
        if all(view.closed for view in self._views.values()):
            labels = {
                (name, label)
                for view in self._views.values()
                for name, found in view.labels.items()
                for label in found
            }
            spare = len(labels) / self.schedule.most + 8
            if len(self.kinds) - self._closed_at > spare:
                raise Hang(f"{len(self.kinds) - self._closed_at} rounds since all ranks closed")
        else:
            self._closed_at = len(self.kinds)

    def _end(self, rank: Rank, outcome: Outcome) -> None:
        self.oracle.raise_marks(rank.number, outcome.raised)
        if set(self._past[rank.rounds - 1][rank.number].waits) & outcome.arrived:
            assert rank.ticket is not None
            assert rank.ticket.done.is_set()
        if rank.returned():
            assert rank.ticket is not None
            self.oracle.served(rank.number, rank.ticket.stream)
            self._check_call(rank, rank.ticket)
        if rank.rounds > len(self.outcomes):
            self.outcomes.append(outcome)
            self._check_raised(outcome)
            self._check_progress(rank, outcome)
            return
        first = self.outcomes[rank.rounds - 1]
        for name in ("finished", "more", "raised", "arrived", "conflicts", "warnings", "absent"):
            assert getattr(outcome, name) == getattr(first, name), name
        assert list(map(fingerprint, outcome.rows)) == list(map(fingerprint, first.rows))

    def _check_call(self, rank: Rank, ticket: Ticket) -> None:
        """A reduction has what the ranks gave for this call; all calls return the same."""
        number = rank.rounds
        if ticket.stream == REDUCE:
            called = [one for view in self._past[number - 1] for one in view.called.get(REDUCE, ())]
            owed = Values().of(REDUCE, Expected(None, called), ("x0",))
            assert _without_x(ticket.values) == owed, (ticket.values, owed)
        elif rank.number == 0:
            name = ticket.stream or None
            records = [record for record in rank.memory.records if record.logger == name]
            assert ticket.values == (records[-1].values if records else {})
        self.returned.setdefault((number, ticket.stream), ticket.values)
        assert ticket.values == self.returned[number, ticket.stream]

    def _check_raised(self, outcome: Outcome) -> None:
        """Streams that all ranks wait for are raised to the highest mark."""
        views = self._views.values()
        expected = {}
        for name in {name for view in views for name in view.waits}:
            if all(view.closed or name in view.waits for view in views):
                expected[name] = max(view.waits[name] for view in views if name in view.waits)
        assert outcome.raised == expected

    def _check_progress(self, rank: Rank, outcome: Outcome) -> None:
        """What every rank had passed when the round began is reduced, as far as it fits."""
        if outcome.more:
            assert sum(1 for _ in outcome.rows) >= self.schedule.most
            return
        done = {(row.stream.name, row.label) for row in rank.rows}
        views = self._views.values()
        for name in {name for view in views for name in view.labels}:
            if name in self.schedule.clashing:
                continue
            marks = []
            for view in views:
                mark = view.marks.get(name, (1 << 63) - 1 if view.closed else 0)
                if name in outcome.raised and name in view.idle:
                    mark = max(mark, outcome.raised[name])
                marks.append(mark)
            passed = min(marks)
            for view in views:
                for label in view.labels.get(name, ()):
                    if label < passed:
                        assert (name, label) in done, f"{name!r} {label} is held back"


def fingerprint(row: Row) -> Any:
    """A row's bits."""
    return (
        row.stream.name,
        row.label,
        row.late,
        tuple(row.steps),
        row.lo,
        row.digits.tobytes(),
        row.counters.tobytes(),
        row.maxes.tobytes(),
    )


def held(row: Row) -> dict[str, tuple[int, int, int]]:
    """For each key of a row the sums of values times weights, of weights, and the count."""
    found = {}
    units = exact.decode(row.digits, row.lo)
    for key in row.stream.table.keys[: len(row.counters)]:
        count = int(row.counters[key.index, Counter.COUNT])
        if key.name in row.stream.aside or not count:
            continue
        whole = [
            exact.to_int(unit, row.lo) for unit in units[key.row : key.row + key.reduction.sums]
        ]
        plain = int(row.counters[key.index, Counter.PLAIN])
        total, weight = ([*whole, 0, 0])[:2]
        found[key.name] = (total, weight + plain, count)
    return found


def first_step(label: int) -> int:
    """The first step whose window may still be closed."""
    return (label >> 12) + ((label & 4095) > 2048)


def _without_x(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "x0"}


def conflicts_of(rank: Rank) -> list[str]:
    """What was told of declarations, as texts."""
    return [str(told) for told in rank.told if isinstance(told, DeclarationConflict)]


@contextmanager
def driven(schedule: Schedule) -> Iterator[Driver]:
    """A driver whose workers have no threads of their own, and few windows a round."""
    with (
        mock.patch.object(Worker, "start", return_value=None),
        mock.patch.object(round_module, "MOST", schedule.most),
        mock.patch.object(backlog_module, "MOST", schedule.most),
    ):
        driver = Driver(schedule)
        try:
            driver.run()
        finally:
            for rank in driver.ranks:
                rank.finish()
        yield driver
