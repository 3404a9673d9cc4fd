"""Schedules as Hypothesis draws them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.exchange.program import Burst, Close, Flush, Log, Op, Reduce, Schedule

PALETTE = ("c0", "c1", "t0", "a0", "aw", "m0", "n0", "s0", "h0")
FAR = 1_000_000

_ACTS = (
    ("step",) * 7
    + ("micro",) * 3
    + ("child",) * 5
    + ("flush child",) * 3
    + ("late", "next", "promise", "flush", "skip", "far", "burst", "child promise", "new key")
)


@st.composite
def schedules(
    draw: Any,
    *,
    max_ranks: int = 5,
    most: tuple[int, ...] = (64, 64, 2),
    collectives: bool = True,
    conflicts: bool = False,
) -> Schedule:
    """Any schedule.

    Args:
        max_ranks: ranks, at most.
        most: windows in one round, of which one number is chosen.
        collectives: with calls that need all ranks.
        conflicts: with a key and a child that are declared in two ways.
    """
    world_size = min(max_ranks, draw(st.sampled_from((2, 3, 2, 1, 3, 4, 5))))
    every = draw(st.sampled_from((1, 1, 2, 3, 10, None)))
    children = tuple((name, draw(st.sampled_from((None, None, 1, 4)))) for name in ("val", "ev/1"))
    pace = tuple((name, draw(st.booleans())) for name, _ in children)
    ranks = [_Rank(number, dict(children), dict(pace), conflicts) for number in range(world_size)]
    for rank in ranks:
        rank.begin(draw)
    for _ in range(draw(st.integers(1, 3))):
        for rank in ranks:
            rank.segment(draw)
        if collectives:
            _meet(draw, ranks, [name for name, _ in children])
    return Schedule(
        tuple(tuple(rank.ops) for rank in ranks),
        every,
        children,
        draw(st.binary(min_size=40, max_size=120)),
        draw(st.sampled_from(most)),
        ("ev/1",) if conflicts else (),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def _meet(draw: Any, ranks: list[_Rank], children: list[str]) -> None:
    """A call that needs all ranks, or none."""
    call = draw(st.sampled_from(("none", "none", "reduce", "flush", "flush child")))
    for rank in ranks:
        if call == "reduce":
            rank.add(Reduce(rank.keys(draw)))
        elif call == "flush":
            rank.add(Flush("", None, True))
        elif call == "flush child":
            rank.add(Flush(children[0], None, True))


class _Rank:
    """Draws what one rank does."""

    def __init__(
        self, number: int, children: dict[str, int | None], pace: dict[str, bool], conflicts: bool
    ) -> None:
        self.number = number
        self.ops: list[Op] = []
        self._children = children
        self._pace = pace
        self._own = dict.fromkeys(children, 0)
        self._step = 0
        self._closed = False
        self._palette = PALETTE + (("x0",) if conflicts else ())
        self._few = 0

    def begin(self, draw: Any) -> None:
        """Which keys the rank logs mostly."""
        self._few = draw(st.integers(0, 3))

    def add(self, op: Op) -> None:
        """Append what the rank does, unless it has closed."""
        if not self._closed:
            self.ops.append(op)

    def keys(self, draw: Any) -> tuple[str, ...]:
        """Some keys, also none."""
        if self._few == 0:
            return tuple(draw(st.lists(st.sampled_from(self._palette), max_size=4, unique=True)))
        first = draw(st.integers(0, len(self._palette) - 1))
        return tuple(self._palette[(first + i) % len(self._palette)] for i in range(self._few))

    def segment(self, draw: Any) -> None:
        """Some events."""
        for _ in range(draw(st.integers(0, 8))):
            self._act(draw, draw(st.sampled_from(_ACTS)))
        if draw(st.integers(0, 15)) == 15:
            self.add(Close())
            self._closed = True

    def _act(self, draw: Any, act: str) -> None:
        ahead = {"step": 1, "skip": 4, "far": FAR, "micro": 0, "new key": 1}
        if act in ahead:
            self._step += ahead[act]
            keys = self.keys(draw)
            if act == "new key":
                keys += (f"c{self.number}_{len(self.ops)}",)
            self.add(Log("", self._step, keys))
        elif act == "next":
            self.add(Log("", None, self.keys(draw)))
        elif act == "late":
            back = draw(st.integers(1, 12))
            self.add(Log("", max(0, self._step - back), self.keys(draw)))
        elif act == "promise":
            self._step += draw(st.integers(0, 5))
            self.add(Log("", self._step, ()))
        elif act == "flush":
            at = draw(st.sampled_from((None, 0, 3, -2)))
            self.add(Flush("", None if at is None else max(0, self._step + at)))
        elif act == "burst":
            count = draw(st.sampled_from((3, 9, 70)))
            self.add(Burst("", self._step, count))
            self._step += count - 1
        else:
            self._act_on_child(draw, act)

    def _act_on_child(self, draw: Any, act: str) -> None:
        name = draw(st.sampled_from(sorted(self._children)))
        step: int | None = self._step
        if self._pace[name]:
            self._own[name] += draw(st.integers(0, 1))
            step = self._own[name]
        if draw(st.integers(0, 3)) == 0:
            step = None
        if act == "child":
            self.add(Log(name, step, self.keys(draw)))
        elif act == "child promise":
            self.add(Log(name, step, ()))
        else:
            self.add(Flush(name, step))
