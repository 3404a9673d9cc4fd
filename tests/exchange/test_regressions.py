"""Schedules that once went wrong, each with what it owes beyond what every schedule does."""

from __future__ import annotations

from collections.abc import Sequence

from tests.exchange.check import check
from tests.exchange.driver import GIVE_UP, ROUND, SPOOL, Driver
from tests.exchange.program import Burst, Close, Flush, Log, Op, Reduce, Schedule


def train(*ranks: int) -> bytes:
    """These ranks' trainings go on by one event each."""
    return bytes(ranks)


def whole_round() -> bytes:
    """The workers go on to the end of a round."""
    return bytes([ROUND])


def begin_round(*ranks: int) -> bytes:
    """These ranks' workers go on by one step: here they take their view of a round."""
    return bytes(len(ranks) + rank for rank in ranks)


def spool(rank: int) -> bytes:
    """A spooler takes in what a rank of two did."""
    return bytes([SPOOL + (rank - SPOOL) % 2])


def give_up(rank: int) -> bytes:
    """The call of a rank of two runs out of time."""
    return bytes([GIVE_UP + (rank - GIVE_UP) % 2])


def records_of(driver: Driver, logger: str | None) -> list[tuple[int, bool]]:
    """Step and lateness of each record of a logger."""
    return [(r.step, r.late) for r in driver.ranks[0].memory.records if r.logger == logger]


def alike(ops: Sequence[Op], count: int = 2) -> tuple[tuple[Op, ...], ...]:
    """Every rank does the same."""
    return (tuple(ops),) * count


def test_a_reduction_of_nothing_returns_nothing() -> None:
    """Where no rank gives anything, the values of an earlier call are not returned again."""
    check(Schedule(alike([Reduce(("c0",)), Reduce(()), Reduce(("t0",)), Reduce(("t0",))])))


def test_a_round_uses_nothing_newer_than_its_beginning() -> None:
    """What a rank closes between the collectives of a round belongs to the next one."""
    ops = [Log("", step, ("c0",)) for step in range(3)]
    turns = train(1, 1, 0) + begin_round(0, 1) + train(0) + spool(0) + whole_round() * 2
    driver = check(Schedule(alike(ops), turns=turns))
    assert [len(outcome.rows) for outcome in driver.outcomes[:2]] == [0, 1]


def test_windows_that_could_not_be_listed_are_waited_for() -> None:
    """A flush that waits returns only when all windows through it are reduced."""
    ops = [Log("", step, ("c0",)) for step in range(0, 40, 4)]
    check(Schedule(alike([*ops, Flush("", None, True), Log("", 50, ("t0",))]), most=3))


def test_windows_of_other_sizes_share_a_round() -> None:
    """The limbs that travel are those of all windows that may be reduced, on any rank."""
    ops = [Log("", step, (key,)) for step, key in enumerate(("c0", "t0", "t0", "t0", "t0", "c1"))]
    turns = train(0, 1) * 2 + spool(0) + spool(1) + train(0, 1) * 4 + whole_round() * 3
    check(Schedule(alike(ops), turns=turns))


def test_a_child_is_waited_for_where_it_is_not_made_yet() -> None:
    """A rank that makes a child later than the others still adds to its windows."""
    ops = [Log("", 0, ("c0",)), *(Log("ev", step, ("c0",)) for step in range(4))]
    turns = train(0) * 3 + whole_round() * 2 + train(0) * 2 + whole_round() * 2 + train(1) * 5
    driver = check(Schedule(alike(ops), children=(("ev", 1),), turns=turns))
    assert records_of(driver, "ev") == [(step, False) for step in range(4)]


def test_late_steps_flushed_alone_make_one_row() -> None:
    """A flush that closes late steps only waits for the other ranks' part of them."""
    ops = [Log("", 5, ("c0",)), Flush("", None), Log("", 2, ("c0",)), Flush("", None)]
    turns = train(0, 1, 0, 1) + whole_round() * 2 + train(0, 0) + whole_round() * 2 + train(1, 1)
    driver = check(Schedule(alike(ops), turns=turns))
    assert records_of(driver, None) == [(5, False), (2, True)]
    ops = [Log("", 5, ("c0",)), Log("", 10, ()), Log("", 2, ("c0",)), Flush("", 8)]
    turns = train(0, 1) * 2 + whole_round() * 2 + train(0, 0) + whole_round() * 2 + train(1, 1)
    driver = check(Schedule(alike(ops), turns=turns))
    assert records_of(driver, None) == [(5, False), (2, True)]


def epochs(every: int | None, named: bool) -> tuple[Op, ...]:
    """Three epochs of training with an evaluation each, whose steps are the epochs."""
    ops: list[Op] = []
    for epoch in (0, 1, 2):
        ops += [Log("", step, ("c0",)) for step in range(4 * epoch, 4 * epoch + 4)]
        ops += [Log("val", epoch if named else None, ("c0", "a0")), Flush("val", epoch)]
    return tuple(ops)


def test_evaluations_that_count_epochs_are_not_split() -> None:
    """A child whose steps are below its parent's has one record for each, whoever is ahead."""
    for every in (1, None):
        program = epochs(every, named=every is not None)
        ahead = b"".join(train(0) + whole_round() for _ in program)
        driver = check(Schedule(alike(program), children=(("val", every),), turns=ahead))
        assert records_of(driver, "val") == [(0, False), (1, False), (2, False)]


def test_what_is_open_at_the_end_is_one_row() -> None:
    """An evaluation that nobody flushed ends where its parent stands, on all ranks alike."""
    ops = [Log("val", None, ("c0",)), Log("", 7, ("c0",)), Flush("val", None), Log("", 9, ("c0",))]
    ops += [Log("val", None, ("a0", "c0"))]
    turns = train(0, 0, 0, 0) + whole_round() * 3 + train(0, 0) + whole_round() + train(1, 1, 1, 1)
    driver = check(Schedule(alike(ops), children=(("val", None),), turns=turns))
    assert records_of(driver, "val") == [(7, False), (9, False)]


def test_the_last_step_there_is_has_its_record() -> None:
    """A grid may end beyond the largest step."""
    last = (1 << 50) - 1
    driver = check(Schedule(alike([Log("", last, ("c0",))]), every=(1 << 40) - 1))
    assert records_of(driver, None) == [(last, False)]


def test_a_reduction_that_was_given_up_is_not_met_by_a_later_one() -> None:
    """The call of one rank stands for itself, however many calls before it found nobody."""
    programs = (
        (Reduce(("c0",)), Reduce(("c1",)), Reduce(("t0",))),
        (Reduce(("c1",)), Reduce(("t0",))),
    )
    turns = train(0) + whole_round() * 2 + give_up(0) + whole_round() * 2 + train(0, 1)
    check(Schedule(programs, turns=turns, patient=False))


def test_a_reduction_that_finds_no_room_comes_in_the_next_round() -> None:
    """The part of a rank that made fewer calls is not lost where older windows go first."""
    programs = (
        (Reduce(("c0",)), Reduce(("c1",))),
        (Burst("", 0, 9), Reduce(("c1",))),
        (Close(),),
    )
    turns = train(0, 2) + whole_round() + bytes([GIVE_UP + (0 - GIVE_UP) % 3])
    turns += whole_round() * 2 + train(0, 1, 1)
    for most in (1, 2, 3, 4):
        check(Schedule(programs, turns=turns, patient=False, most=most))


def test_what_is_logged_during_a_collective_call_comes_after_it() -> None:
    """Below the step to which all ranks are raised all is late that another thread logs."""
    programs = (
        (Log("", 5, ("c0",)), Flush("", None, True), Log("", 6, ("c0",))),
        (Log("", 20, ("c0",)), Flush("", None, True)),
    )
    turns = train(0, 0, 1, 1) + begin_round(0, 1) + train(0) + spool(0)
    driver = check(Schedule(programs, turns=turns, busy=True))
    assert records_of(driver, None) == [(5, False), (20, False), (6, True)]


def test_of_equal_steps_the_last_call_counts() -> None:
    """A `same` value of a step is that of the rank's last call, whatever keys came with it."""
    ops = [Log("", 3, ("s0", "c0")), Log("", 3, ("s0",)), Log("", 3, ("s0", "c0"))]
    check(Schedule(alike(ops, 1)))


def test_conflicts_do_not_keep_the_others_from_the_end() -> None:
    """A key and a child that are set aside hold nothing back, whoever goes on to log them."""
    ops = [Log("", 0, ("x0", "c0")), Log("ev", 0, ("c0",)), Log("", 1, ("x0", "c0"))]
    ops += [Log("ev", 1, ("c0",)), Flush("ev", 1), Log("", 2, ("c0",))]
    turns = train(0, 0, 0) + whole_round() * 2 + train(1, 1, 1) + whole_round() * 2
    driver = check(Schedule(alike(ops), children=(("ev", 1),), clashing=("ev",), turns=turns))
    assert records_of(driver, None) == [(0, False), (1, False), (2, False)]
