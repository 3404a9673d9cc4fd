"""What a round costs: collectives that do not depend on how much is logged."""

from __future__ import annotations

from itertools import count

import pytest

from tests.exchange.check import check
from tests.exchange.driver import ROUND
from tests.exchange.program import Burst, Flush, Log, Op, Schedule

ROUNDS = bytes([ROUND]) * 6


def program(keys: int, steps: int = 6) -> tuple[Op, ...]:
    """Some steps of many keys of every kind."""
    names = [f"{'ctamn'[index % 5]}{index}" for index in range(keys)]
    return tuple(Log("", step, tuple(names)) for step in range(steps))


@pytest.mark.parametrize("keys", [1, 10, 500])
def test_a_round_takes_as_many_collectives_whatever_the_keys(keys: int) -> None:
    """A new key costs one exchange, what follows a header and two sums."""
    programs = (program(keys), program(keys))
    turns = bytes([0, 1, 0, 1]) + ROUNDS[:2] + bytes([0, 1, 0, 1]) + ROUNDS[:2]
    driver = check(Schedule(programs, turns=turns))
    assert driver.kinds[:4] == ["MGSM", "M", "MSM", "M"]


def test_ranks_with_different_keys_need_no_more() -> None:
    """Keys that only some ranks log travel with the others'."""
    programs = (program(3), program(30), ())
    driver = check(Schedule(programs, turns=bytes([0, 1, 2] * 3) + ROUNDS))
    assert next(kinds for kinds in driver.kinds if len(kinds) > 1) == "MGSM"
    assert all(len(kinds.replace("G", "")) <= 3 for kinds in driver.kinds)


def test_a_long_backlog_takes_rounds_in_proportion() -> None:
    """At most so many windows are reduced in one round, and no round is idle before the last."""
    driver = check(Schedule(((Burst("", 0, 100),), (Burst("", 0, 100),)), most=16))
    reducing = [kinds for kinds in driver.kinds if "S" in kinds]
    assert len(reducing) == 7
    assert len(driver.kinds) - len(reducing) <= 2


def test_windows_far_apart_are_found_without_crawling() -> None:
    """Ranks that skip millions of steps need no round for what nobody logged."""
    far = 10**9
    programs = tuple(
        tuple(Log("", far * step + rank, ("c0",)) for step in range(5)) for rank in range(3)
    )
    driver = check(Schedule(programs))
    assert len(driver.kinds) <= 20


def test_a_silent_rank_holds_records_back_until_it_promises() -> None:
    """`log({}, step=s)` lets go of what the others logged below `s`."""
    silent: tuple[Op, ...] = (Log("", 3, ()),)
    busy = tuple(Log("", step, ("c0",)) for step in range(6))
    before = bytes([1] * 6) + ROUNDS[:3]
    driver = check(Schedule((silent, busy), turns=before + bytes([0]) + ROUNDS[:3]))
    rows = [len(outcome.rows) for outcome in driver.outcomes]
    assert rows[:3] == [0, 0, 0]
    assert sum(rows[3:6]) == 3


def test_an_evaluation_on_one_rank_does_not_wait_for_the_end() -> None:
    """A rank that has not made a child promises for it what its own training has reached."""
    one: list[Op] = []
    for step in range(4):
        one += [Log("", step, ("c0",)), Log("val", None, ("a0",)), Flush("val", None)]
    other = tuple(Log("", step, ("c0",)) for step in range(4))
    turns = b"".join(bytes([0, 0, 0, 1, ROUND, ROUND]) for _ in range(4))
    driver = check(Schedule((tuple(one), other), children=(("val", None),), turns=turns))
    seen = [
        index
        for index, outcome in zip(count(), driver.outcomes, strict=False)
        if any(row.stream.name == "val" for row in outcome.rows)
    ]
    assert len(seen) >= 3
    assert seen[0] < 6
