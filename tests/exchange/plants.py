"""Bugs to plant into the exchange, each of which a schedule must find."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from distmetrics.exchange import round as rounds
from distmetrics.exchange.doubts import StepsDiffer
from distmetrics.exchange.message import Message
from distmetrics.exchange.schema import Placement, Schema, StreamSchema
from distmetrics.snapshot.table import Key, KeyTable
from distmetrics.window import fold as folding
from distmetrics.window.labels import NEVER, first_step, label_of
from distmetrics.window.lanes import Lanes, Slot
from distmetrics.window.stream import Stream, Window, limb_range
from distmetrics.worker import streams as feeding
from distmetrics.worker.backlog import Backlog
from distmetrics.worker.events import Ticket
from distmetrics.worker.streams import Streams
from distmetrics.worker.waiting import Waiting

Plant = Callable[[pytest.MonkeyPatch], None]


def mix_two_windows(patch: pytest.MonkeyPatch) -> None:
    """One rank sends neighbouring windows in each other's place."""
    right = Message.lanes

    def lanes(self: Message, position: int) -> Lanes | None:
        other = position ^ 1
        swap = self._topology.rank % 2 and other < len(self.slots)
        return right(self, other if swap else position)

    patch.setattr(Message, "lanes", lanes)


class _ByPosition:
    """An agreed table in which keys are looked up by their place, not by their name."""

    def __init__(self, own: KeyTable, agreed: KeyTable) -> None:
        self._own, self._agreed = own, agreed

    def __len__(self) -> int:
        return len(self._agreed)

    def get(self, name: str) -> Key | None:
        own, known = self._own.get(name), self._agreed.get(name)
        if own is None or known is None or own.index >= len(self._agreed):
            return known
        found = self._agreed.keys[own.index]
        return found if found.reduction == own.reduction else known


def mix_two_keys(patch: pytest.MonkeyPatch) -> None:
    """Keys are matched by the order in which a rank met them."""
    right = Placement.of

    def of(table: KeyTable, schema: StreamSchema) -> Placement:
        shim: Any = dataclasses.replace(schema, table=_ByPosition(table, schema.table))  # type: ignore[arg-type]
        return right(table, shim)

    patch.setattr(Placement, "of", staticmethod(of))


def learn_in_any_order(patch: pytest.MonkeyPatch) -> None:
    """Ranks put what is new into the schema in an order of their own."""
    right = Schema.learn
    made = itertools.count()
    numbers: dict[int, int] = {}

    def learn(self: Schema, said_by: Any) -> list[str]:
        number = numbers.setdefault(id(self), next(made))
        if number % 2:
            said_by = [dict(reversed(said.items())) for said in said_by]
        return right(self, said_by)

    patch.setattr(Schema, "learn", learn)


class _Live:
    """What a rank offers, with a watermark that is newer than the windows."""

    def __init__(self, offered: rounds.Offered, stream: Stream) -> None:
        self._offered, self._stream = offered, stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._offered, name)

    @property
    def watermark(self) -> int:
        return max(self._offered.watermark, self._stream.watermark)


def use_newer_watermarks(patch: pytest.MonkeyPatch) -> None:
    """The exchange tells the watermarks of its own moment, not those of the round's beginning."""
    right = Streams._offer

    def offer(
        self: Streams, name: str, promise: Any, watermark: int, windows: Mapping[int, Window]
    ) -> Any:
        return _Live(right(self, name, promise, watermark, windows), self._streams[name])

    patch.setattr(Streams, "_offer", offer)


def forget_the_horizon(patch: pytest.MonkeyPatch) -> None:
    """Windows that a rank had no room to list are taken for reduced."""
    right = rounds._listed
    patch.setattr(rounds, "_listed", lambda *args: right(*args)._replace(horizon=NEVER))


def promise_the_reached_step(patch: pytest.MonkeyPatch) -> None:
    """An idle child promises nothing more for the parent's step, in which it may still flush."""
    patch.setattr(feeding, "mark_of", lambda step: label_of(step) + 1)


def promise_whatever_the_pace(patch: pytest.MonkeyPatch) -> None:
    """An idle child promises its parent's step even where it counts steps of its own."""
    patch.setattr(
        Streams, "_follows_parent", lambda self, name: name[:1] > "\x00" and self._reached >= 0
    )


def promise_for_streams_not_made(patch: pytest.MonkeyPatch) -> None:
    """A rank promises nothing more for a child that it may still make."""
    right = rounds._watermark

    def watermark(offer: rounds.Offer, stream: StreamSchema) -> int:
        return right(offer, stream) if stream.name in offer.streams else NEVER

    patch.setattr(rounds, "_watermark", watermark)


def send_later_maxima(patch: pytest.MonkeyPatch) -> None:
    """The max lane of all that is pending travels with the first window."""
    right = Message.lanes

    def lanes(self: Message, position: int) -> Lanes | None:
        own = right(self, position)
        if own is None:
            return None
        others = [window.main.lanes for window in self._windows.values()]
        alike = [o.maxes for o in others if o is not None and len(o.maxes) == len(own.maxes)]
        return dataclasses.replace(own, maxes=np.max([own.maxes, *alike], axis=0))

    patch.setattr(Message, "lanes", lanes)


def send_the_first_limbs(patch: pytest.MonkeyPatch) -> None:
    """Only the limbs of each rank's first window are made room for."""
    patch.setattr(rounds, "limb_range", lambda windows: limb_range(itertools.islice(windows, 1)))


def trust_the_grid(patch: pytest.MonkeyPatch) -> None:
    """Windows with gaps, late steps and splits are taken for a run on the grid."""
    patch.setattr(rounds, "_is_irregular", lambda offered: False)


def send_twice(patch: pytest.MonkeyPatch) -> None:
    """Windows are offered until rank 0 is known to have written them."""
    right = Backlog.next

    def offer(self: Backlog, *args: Any) -> dict[int, Window]:
        sent, self.sent = self.sent, -1
        found = right(self, *args)
        self.sent = sent
        return found

    patch.setattr(Backlog, "next", offer)


def raise_nothing(patch: pytest.MonkeyPatch) -> None:
    """A collective call does not bring the ranks to the same step."""
    right = Streams.settle
    patch.setattr(
        Streams,
        "settle",
        lambda self, outcome, schema: right(self, dataclasses.replace(outcome, raised={}), schema),
    )


def hold_nothing(patch: pytest.MonkeyPatch) -> None:
    """What follows a collective call that was given up is taken in before it is settled."""
    patch.setattr(
        Streams, "_held", property(lambda self: False, lambda self, held: None), raising=False
    )


def give_up_in_a_round(patch: pytest.MonkeyPatch) -> None:
    """A call that is given up ends while the others take it for one that waits."""

    def withdraw(self: Waiting, ticket: Ticket) -> bool:
        ticket.withdrawn = True
        if ticket in self._tickets:
            self._tickets.remove(ticket)
        return True

    patch.setattr(Waiting, "withdraw", withdraw)


def leave_late_steps_behind(patch: pytest.MonkeyPatch) -> None:
    """Late steps do not travel with the window that holds them."""
    right = rounds._agree

    def agree(*args: Any) -> list[rounds.Agreed]:
        return [window._replace(late=()) for window in right(*args)]

    patch.setattr(rounds, "_agree", agree)


def count_own_steps(patch: pytest.MonkeyPatch) -> None:
    """The steps of a window are those of the rank that logged most."""
    patch.setattr(StepsDiffer, "settle", lambda self, told, topology: [])


def keep_what_is_set_aside(patch: pytest.MonkeyPatch) -> None:
    """Keys that were declared in two ways travel all the same."""
    right = Placement.of

    def of(table: KeyTable, schema: StreamSchema) -> Placement:
        return right(table, dataclasses.replace(schema, aside=set()))

    patch.setattr(Placement, "of", staticmethod(of))


def close_where_promises_stand(patch: pytest.MonkeyPatch) -> None:
    """What is open at the end gets a label that depends on when the worker last looked."""
    right = Stream.end

    def end(self: Stream, parent: int) -> None:
        right(self, parent if self.every is not None else self.watermark >> 12)

    patch.setattr(Stream, "end", end)


def flush_late_steps_backwards(patch: pytest.MonkeyPatch) -> None:
    """A window of late steps alone closes below what its rank has promised."""

    def close_late(self: Stream) -> None:
        label = max(self._last_label, label_of(first_step(self.watermark) - 1)) + 1
        self._close(label)

    patch.setattr(Stream, "_close_late", close_late)


def forget_the_order_of_calls(patch: pytest.MonkeyPatch) -> None:
    """Of values of one step the last group's is kept, not the last call's."""

    def by_plan(slots: list[Slot]) -> dict[Any, list[Any]]:
        found: dict[Any, list[Any]] = {}
        for position, slot in enumerate(slots):
            for snapshot, step in slot.pending:
                moment = step << folding._CALLS
                found.setdefault(snapshot.plan, []).append((position, snapshot, moment))
        return found

    patch.setattr(folding, "_by_plan", by_plan)


PLANTS: tuple[Plant, ...] = (
    mix_two_windows,
    mix_two_keys,
    learn_in_any_order,
    use_newer_watermarks,
    forget_the_horizon,
    promise_the_reached_step,
    promise_whatever_the_pace,
    promise_for_streams_not_made,
    send_later_maxima,
    send_the_first_limbs,
    trust_the_grid,
    send_twice,
    raise_nothing,
    hold_nothing,
    give_up_in_a_round,
    leave_late_steps_behind,
    count_own_steps,
    keep_what_is_set_aside,
    close_where_promises_stand,
    flush_late_steps_backwards,
    forget_the_order_of_calls,
)
