"""The same schedules by real loggers on processes, with threads, Gloo and no order of turns."""

from __future__ import annotations

from typing import Any

import pytest

import distmetrics as dm
from distmetrics.record import Record
from distmetrics.testing import run_ranks
from tests.exchange.actor import Actor, make_registry
from tests.exchange.check import check
from tests.exchange.program import Burst, Close, Flush, Log, Reduce, Schedule

UNEVEN = Schedule(
    (
        tuple(Log("", step, ("c0", "a0", "m0", "s0")) for step in range(12)),
        tuple(Log("", step, ("c0", "aw", "n0", "s0")) for step in (0, 1, 1, 5, 3, 9)),
        (Log("", 4, ()), Log("", 10**6, ("t0", "c1")), Log("", None, ("t0",))),
    ),
    every=3,
)
"""Ranks log other keys, skip steps, go back, jump ahead and end early."""

EVALUATED = Schedule(
    (
        (
            Burst("", 0, 100),
            Log("val", None, ("a0", "c0")),
            Flush("val", None, True),
            Log("", 100, ("c0",)),
            Reduce(("c0", "m0")),
            Log("val", None, ("a0",)),
        ),
        (
            Burst("", 0, 90),
            Log("", 99, ("t0",)),
            Log("val", None, ("a0", "m0")),
            Flush("val", None, True),
            Reduce(("c1",)),
            Log("", 120, ("c0",)),
        ),
    ),
    every=10,
    children=(("val", None),),
)
"""Ranks meet in collective calls between windows, after different numbers of steps."""

SILENT = Schedule(
    (
        tuple(Log("", step, ("c0",)) for step in range(5)),
        (Close(),),
        (Reduce(()), Log("ev", 3, ("c0",)), Flush("ev", 3)),
        (Reduce(("c0",)), Flush("", 2), Log("", 1, ("c0",)), Flush("", 2)),
    ),
    children=(("ev", 2),),
)
"""One rank logs nothing, one closes at once, some make a child."""


def follow(schedule: Schedule) -> tuple[list[Record], list[Any]]:
    """One process: what its sink got, and what its collective calls returned."""
    rank = dm.get_rank()
    memory = dm.sinks.MemorySink()
    logger = dm.Logger(
        make_registry(), sinks=[memory], every=schedule.every, on_step_regress="accept"
    )
    actor = Actor(rank, schedule, logger)
    returned = []
    for op in schedule.programs[rank]:
        match op:
            case Close():
                break
            case Flush(stream, step, True):
                returned.append(actor.scope(stream).flush(step, wait=True))
            case Reduce():
                returned.append(actor.reduce(op))
            case _:
                actor.do(op)
    logger.close()
    return memory.records, returned


def told(records: list[Record]) -> list[tuple[Any, ...]]:
    """What must not depend on when the workers met: all but the order between loggers."""
    rows = [(r.logger or "", r.window, r.step, r.first_step, r.late, r.values) for r in records]
    return sorted(rows, key=lambda row: row[0])  # stable: the order within a logger stays


@pytest.mark.parametrize(
    "schedule", [UNEVEN, EVALUATED, SILENT], ids=["uneven", "evaluated", "silent"]
)
@pytest.mark.filterwarnings("ignore:reduce. rank")  # a rank may have closed before
def test_processes_write_what_a_schedule_owes(schedule: Schedule) -> None:
    """Records on Gloo are those that the driver compares with a single process."""
    calls = {i: [op for op in p if isinstance(op, Reduce)] for i, p in enumerate(schedule.programs)}
    assert len({len(ops) for ops in calls.values() if ops}) <= 1
    results = run_ranks(follow, schedule.world_size, schedule, timeout=90)
    driver = check(schedule)
    assert told(results[0][0]) == told(driver.ranks[0].memory.records)
    assert all(not records for records, _ in results[1:])
    met = [returned for _, returned in results if returned]
    assert all(returned == met[0] for returned in met)
    served = [[values for _, values in rank.served] for rank in driver.ranks]
    assert [values for values in served if values][:1] == met[:1]
