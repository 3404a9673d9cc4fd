"""What the records of a schedule must hold, by a model of its own: plain sets and lists.

It is told what the training threads did, when each worker took its view, and what was raised
for collective calls; it knows nothing of lanes, messages or rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

from tests.exchange.program import EDGES

Name = str
HALF = 1 << 11
NEVER = (1 << 63) - 1


def ends_at(step: int) -> int:
    """The label of the window that ends at a step: half of the ordinals lie before it."""
    return step << 12 | HALF


def before(step: int) -> int:
    """The first label of a step."""
    return step << 12


class Given(NamedTuple):
    """One contribution."""

    rank: int
    order: int
    key: str
    value: int
    weight: int | None
    step: int


class Event(NamedTuple):
    """What a training thread did to a stream: "open", "log", "flush" or "end"."""

    kind: str
    stream: Name = ""
    step: int | None = None
    given: tuple[Given, ...] | None = None
    own_step: bool = False
    every: int | None = None
    waits: list[bool] | None = None


@dataclass
class Expected:
    """What a row must hold."""

    every: int | None
    given: list[Given] = field(default_factory=list)
    steps: set[int] = field(default_factory=set)


RowId = tuple[Name, int, int | None]
"""Stream, label, late step."""


@dataclass
class _Part:
    lowest: int
    highest: int
    main: list[Given] = field(default_factory=list)
    late: dict[int, list[Given]] = field(default_factory=dict)
    steps: set[int] = field(default_factory=set)
    unnamed: bool = False
    logged: bool = False


class _RankStream:
    """One rank's windows of one stream."""

    def __init__(self, name: Name, every: int | None, mark: int, rows: dict[RowId, Expected]):
        self.name, self.every, self.mark = name, every, mark
        self.rows = rows
        self.labels: list[int] = []
        self.part: _Part | None = None
        self.cut = 0
        self.latest = -1
        self.own = self.follows = False

    @property
    def first(self) -> int:
        """The first step that is not late."""
        step = self.mark >> 12
        return step + (self.mark > ends_at(step))

    def grid(self, step: int) -> tuple[int, int]:
        assert self.every is not None
        start = step // self.every * self.every
        return start, start + self.every - 1

    def opened(self) -> _Part:
        if self.part is None:
            low, high = self.grid(self.first) if self.every else (0, 0)
            self.part = _Part(max(low, self.cut), high)
        return self.part

    def log(self, step: int | None, given: tuple[Given, ...] | None) -> None:
        if self.every is None:
            self._log_openly(step, given)
            return
        assert step is not None
        part = self.part
        within = part is not None and part.logged and step >= part.lowest
        if given is not None and step < self.first and not within:
            self.opened().late.setdefault(step, []).extend(given)
        else:
            if part is not None and step > part.highest:
                self.close(ends_at(part.highest))
            self.mark = max(self.mark, before(step))
            if given is None:
                return
            part = self.opened()
            part.logged = True
            part.main += given
            part.steps.add(step)
        self.latest = max(self.latest, step)

    def _log_openly(self, step: int | None, given: tuple[Given, ...] | None) -> None:
        if given is None:
            if step is not None:
                self.promise(step)
            return
        part = self.opened()
        part.main += given
        if step is None:
            part.unnamed = True
        else:
            part.steps.add(step)
            self.latest = max(self.latest, step)

    def flush(self, step: int) -> None:
        if self.every is None:
            self._flush_openly(step)
        elif step >= self.first:
            if self.part is not None:
                self.close(ends_at(min(self.part.highest, step)))
            self.mark = max(self.mark, ends_at(step) + 1)
            self.cut = step + 1
        elif self.part is not None and not self.part.logged and self.mark != ends_at(self.first):
            self.close(self.mark)
            self.mark += 1

    def _flush_openly(self, step: int) -> None:
        part = self.part
        label = ends_at(step)
        if part is not None:
            if part.unnamed or not part.steps:
                part.steps.add(step)
            if label < self.mark:
                part.late, part.main, part.steps = {step: part.main}, [], set()
                label = self.mark
            self.close(label)
        self.mark = max(self.mark, label + 1)

    def end(self, reached: int) -> None:
        if self.part is not None:
            if self.every is None:
                child = self.name and reached >= 0
                self._flush_openly(reached if child else max(self.latest, self.first))
            else:
                self.close(ends_at(self.part.highest))
        self.mark = NEVER

    def promise(self, step: int) -> None:
        if self.part is None:
            self.mark = max(self.mark, before(step))

    def close(self, label: int) -> None:
        part = self.part
        assert part is not None
        self.part = None
        self.labels.append(label)
        if part.main:
            row = self.rows.setdefault((self.name, label, None), Expected(self.every))
            row.given += part.main
            row.steps |= part.steps
        for step, given in part.late.items():
            late = self.rows.setdefault((self.name, label, step), Expected(self.every))
            late.given += given
            late.steps = {step}


class View(NamedTuple):
    """What a rank had done when its worker began a round."""

    marks: dict[Name, int]
    labels: dict[Name, list[int]]
    waits: dict[Name, int]
    idle: set[Name]
    closed: bool
    paces: dict[Name, tuple[bool, bool]]
    called: dict[Name, tuple[Given, ...]]


class _Rank:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.streams: dict[Name, _RankStream] = {}
        self.promised: dict[Name, int] = {}
        self.waits: list[Name] = []
        self.given: dict[Name, tuple[Given, ...]] = {}
        self.called: dict[Name, tuple[Given, ...]] = {}
        self.reached = -1
        self.closed = False
        self.held = False
        self.pace: dict[Name, tuple[bool, bool]] = {}


class Oracle:
    """All ranks' windows."""

    def __init__(self, world_size: int) -> None:
        self.rows: dict[RowId, Expected] = {}
        self.pace: dict[Name, tuple[bool, bool]] = {}
        self._all: list[tuple[Name, Given]] = []
        self._ranks = [_Rank() for _ in range(world_size)]

    def push(self, rank: int, event: Event) -> None:
        """A training thread did something."""
        self._all += [(event.stream, one) for one in event.given or ()]
        self._ranks[rank].events.append(event)

    def view(self, rank: int) -> View:
        """A worker begins a round."""
        state = self._ranks[rank]
        state.held = False
        self.collect(rank)
        state.held = bool(state.waits)
        marks = {name: stream.mark for name, stream in state.streams.items()}
        return View(
            state.promised | marks,
            {name: list(stream.labels) for name, stream in state.streams.items()},
            {name: state.streams[name].mark for name in state.waits},
            {name for name, stream in state.streams.items() if stream.part is None},
            state.closed,
            {name: (stream.follows, stream.own) for name, stream in state.streams.items()},
            {name: state.called.get(name, ()) for name in state.waits},
        )

    def collect(self, rank: int) -> None:
        """A spooler takes in what the training did; not while a collective call is settled."""
        state = self._ranks[rank]
        if not state.held:
            for event in state.events:
                self._apply(state, event)
            state.events.clear()
        for name, (follows, own) in state.pace.items():
            stream = state.streams.get(name)
            if stream is not None:
                if follows and not own and not stream.own and state.reached >= 0:
                    stream.promise(state.reached)
            elif state.closed:
                state.promised[name] = NEVER
            elif follows and not own and state.reached >= 0:
                known = state.promised.get(name, 0)
                state.promised[name] = max(known, before(state.reached))

    def settle(self, views: Iterable[View]) -> None:
        """All ranks have begun a round: at its end they know each other's streams."""
        for view in views:
            for name, (follows, own) in view.paces.items():
                known = self.pace.get(name, (False, False))
                self.pace[name] = (known[0] or follows, known[1] or own)

    def raise_marks(self, rank: int, raised: Mapping[Name, int]) -> None:
        """A worker has ended a round, in which all ranks waited for some streams."""
        self._ranks[rank].held = False
        self._ranks[rank].pace = dict(self.pace)
        for name, mark in raised.items():
            stream = self._ranks[rank].streams.get(name)
            if stream is not None and stream.part is None:
                stream.mark = max(stream.mark, mark)

    def served(self, rank: int, name: Name) -> None:
        """A rank waits for a stream no longer."""
        if name in self._ranks[rank].waits:
            self._ranks[rank].waits.remove(name)

    def _apply(self, state: _Rank, event: Event) -> None:
        if event.kind == "open":
            mark = state.promised.get(event.stream, 0)
            stream = _RankStream(event.stream, event.every, mark, self.rows)
            state.streams[event.stream] = stream
        elif event.kind == "end":
            for stream in state.streams.values():
                stream.end(state.reached)
            state.closed = True
        else:
            stream = state.streams[event.stream]
            if event.stream.startswith("\x00"):
                self._call(state, stream, event)
                return
            self._note_pace(state, stream, event)
            if event.kind == "log":
                stream.log(event.step, event.given)
                if not event.stream and event.step is not None:
                    state.reached = max(state.reached, event.step)
            else:
                assert event.step is not None
                stream.flush(event.step)
                if event.waits and event.waits[0]:
                    state.waits.append(event.stream)

    @staticmethod
    def _call(state: _Rank, stream: _RankStream, event: Event) -> None:
        """A reduction: what was given for this call alone, in no row of any logger."""
        if event.kind == "log":
            state.given[event.stream] = event.given or ()
            return
        stream.mark = ends_at(max(event.step or 0, stream.first)) + 1
        state.called[event.stream] = state.given.pop(event.stream, ())
        if event.waits and event.waits[0]:
            state.waits.append(event.stream)

    @staticmethod
    def _note_pace(state: _Rank, stream: _RankStream, event: Event) -> None:
        """Whether a child's steps are those of its parent."""
        if event.kind == "log":
            if stream.every is None:
                return
            if event.own_step:
                stream.own = True
        elif stream.every is not None:
            return
        if stream.name and event.step is not None and state.reached >= 0 and not event.own_step:
            if event.step < state.reached:
                stream.own = True
            else:
                stream.follows = True

    # --- what is known at the end ---

    def sides(self, key: str) -> dict[Name, set[int]]:
        """For each stream whether even and odd ranks gave a key."""
        found: dict[Name, set[int]] = {}
        for name, one in self._all:
            if one.key == key:
                found.setdefault(name, set()).add(one.rank % 2)
        return found

    def made(self) -> dict[Name, list[int]]:
        """For each stream the ranks that made it."""
        found: dict[Name, list[int]] = {}
        for rank, state in enumerate(self._ranks):
            for name in state.streams:
                found.setdefault(name, []).append(rank)
        return found


# --- values -------------------------------------------------------------------------------------


def sums(given: Iterable[Given]) -> dict[str, tuple[int, int, int]]:
    """For each key the sum of values times weights, of weights, and how many there are."""
    found: dict[str, tuple[int, int, int]] = {}
    for one in given:
        total, weight, count = found.get(one.key, (0, 0, 0))
        w = 1 if one.weight is None else one.weight
        found[one.key] = (total + one.value * w, weight + w, count + 1)
    return found


class Values:
    """Logged values of rows, in the order of the rows: running totals go on."""

    def __init__(self) -> None:
        self._totals: dict[tuple[Name, str], int] = {}

    def of(self, name: Name, row: Expected, aside: Iterable[str] = ()) -> dict[str, Any]:
        """The values of a row."""
        steps = 1 if row.every is None else len(row.steps)
        prefix = f"{name}/" if name and not name.startswith("\x00") else ""
        found: dict[str, Any] = {}
        for key, (total, weight, _) in sums(row.given).items():
            if key in aside:
                continue
            mine = [one for one in row.given if one.key == key]
            if key[0] == "c":
                value: Any = total // steps if total % steps == 0 else _real(total, steps)
            elif key[0] == "t":
                if not name.startswith("\x00"):
                    total += self._totals.get((name, key), 0)  # noqa: PLW2901 - as it runs
                    self._totals[name, key] = total
                value = total
            elif key[0] in "ax":
                value = _real(total, weight)
            elif key[0] == "m":
                value = max(one.value for one in mine)
            elif key[0] == "n":
                value = min(one.value for one in mine)
            elif key[0] == "h":
                value = _histogram([one.value for one in mine])
            else:
                value = _last(mine)
            found[prefix + key] = value
        return found


def _real(above: int, below: int) -> float:
    quotient = Fraction(above, below)
    return quotient.numerator / quotient.denominator


def _histogram(values: list[int]) -> dict[str, Any]:
    """Counts of integers of which none is an edge or below the first."""
    inside = [sum(low < value < high for value in values) for low, high in pairwise(EDGES)]
    found: dict[str, Any] = {"edges": EDGES, "counts": inside}
    above = sum(value > EDGES[-1] for value in values)
    return found | ({"above": above} if above else {})


def _last(given: list[Given]) -> int:
    """The value of the last step; of those the lowest rank's last call."""
    step = max(one.step for one in given)
    rank = min(one.rank for one in given if one.step == step)
    return max((one.order, one.value) for one in given if one.step == step and one.rank == rank)[1]
