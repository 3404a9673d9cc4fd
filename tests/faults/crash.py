"""Runs whose ranks are killed, one at a point or all at a random moment, and what is left."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import time
from pathlib import Path
from typing import NamedTuple

from distmetrics.rundir import METRICS
from distmetrics.spool.merge import merge
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import Fault, Lost, logger_of, steady, until_told


def relentless(life: Life, run_dir: Path, pace: float) -> None:
    """Train without end; say through which step all is on disk."""
    logger = logger_of(run_dir)
    spooled, step = -1, 0
    while True:
        logger.log(work.outputs(life.rank, step), step=step)
        if pace:
            time.sleep(pace)
        step += 1
        now = logger.stats()["spooled_step"]
        if now > spooled:
            spooled = now
            life.say("spooled", spooled)


class Crash(NamedTuple):
    """What was left of a run.

    Attributes:
        windows: how many all ranks had on disk.
        written: how many of these were in ``metrics.jsonl`` before the merge.
        lost: how many of these are missing after it.
        torn: whether the last line was torn.
    """

    windows: int
    written: int
    lost: int
    torn: bool


def crash(
    run_dir: Path, world_size: int, seconds: float, pace: float, draw: random.Random
) -> Crash:
    """Train, kill all ranks after so many seconds, merge, and check every row.

    Raises:
        AssertionError: a row is wrong, doubled, torn in the middle, or out of order.
    """
    with ranks(world_size, relentless, run_dir, pace) as started:
        for rank in started:
            rank.expect("spooled")
        time.sleep(seconds)
        for rank in draw.sample(started, world_size):
            rank.process.kill()
            time.sleep(draw.choice([0.0, 0.0, 0.002, 0.03]))
        for rank in started:
            with contextlib.suppress(AssertionError):  # it has ended, and does not say so
                rank.expect("end")
        safe = min(rank.last("spooled") for rank in started)
    path = run_dir / METRICS
    content = path.read_bytes() if path.exists() else b""
    before = {row.window for row in work.rows_of(run_dir)}
    merge(run_dir)
    for line in path.read_bytes().splitlines() if path.exists() else []:
        json.loads(line)
    rows = work.rows_of(run_dir)
    found = [row.window for row in rows]
    work.check_rows(rows, sorted(set(found)), world_size)
    assert not merge(run_dir).written
    wanted = set(work.labels(safe + 1))
    torn = bool(content) and not content.endswith(b"\n")
    return Crash(len(wanted), len(wanted & before), len(wanted - set(found)), torn)


STEPS = 150
PACE = 0.01
"""Seconds between two steps."""


class Killed(NamedTuple):
    """What became of the other ranks, and of the windows.

    Attributes:
        told: for each other rank what it learned.
        seconds: for each other rank how long after the kill its training knew.
        windows: how many all ranks had on disk when the rank died.
        lost: how many of these are missing after a merge.
        torn: whether the last line of ``metrics.jsonl`` was torn before the merge.
        slowest: seconds that a call of `log` took at most.
        closing: seconds that `close` took at most.
    """

    told: dict[int, Lost]
    seconds: list[float]
    windows: int
    lost: int
    torn: bool
    slowest: float
    closing: float


def kill(run_dir: Path, fault: Fault, world_size: int, steps: int = STEPS) -> Killed:
    """Train, kill one rank at a point of a round, merge, and check every row.

    Args:
        run_dir: of the run.
        fault: which rank dies, and where.
        world_size: the number of ranks.
        steps: that the others train; who learns of the fault after them only, learns it late.

    Raises:
        AssertionError: a row is wrong, doubled or out of order, or a rank does not go on.
    """
    told: dict[int, Lost] = {}
    seconds, counters = [], []
    with ranks(world_size, steady, run_dir, steps, PACE, fault, {}) as started:
        died = started[fault.rank].expect("reached")
        assert died.data == fault.point
        safe = started[fault.rank].last("spooled")
        for rank in started:
            if rank.rank == fault.rank:
                continue
            said = rank.expect("lost")
            told[rank.rank] = said.data
            seconds.append(said.at - died.at)
            counters.append(rank.result())
    assert all(counter["spooled_step"] >= steps - work.EVERY - 1 for counter in counters)
    path = run_dir / METRICS
    content = path.read_bytes() if path.exists() else b""
    torn = bool(content) and not content.endswith(b"\n")
    merged = merge(run_dir)
    assert merged.waiting  # for the rank that died
    rows = work.rows_of(run_dir)
    found = [row.window for row in rows]
    work.check_rows(rows, work.labels(found[-1] + 1) if found else [], world_size)
    assert not merge(run_dir).written
    wanted = set(work.labels(safe + 1))
    return Killed(
        told,
        seconds,
        len(wanted),
        len(wanted - set(found)),
        torn,
        max(counter["slowest"] for counter in counters),
        max(counter["closing"] for counter in counters),
    )


STOPPED = 2.0
"""Seconds that the others wait for a rank that is stopped."""


def stop(run_dir: Path, fault: Fault, world_size: int) -> tuple[int, int, list[float]]:
    """Train, stop one rank at a point until the others know, let it go on, and check every row.

    Returns:
        The number of windows, how many of them are lost, and for each other rank the seconds after
        which its training knew.

    Raises:
        AssertionError: a row is wrong, doubled or out of order, or a rank does not go on.
    """
    seconds = []
    with ranks(world_size, until_told, run_dir, PACE, fault, {"peer_timeout": STOPPED}) as started:
        stopped = started[fault.rank]
        others = [rank for rank in started if rank is not stopped]
        at = stopped.expect("reached").at
        for rank in others:
            said = rank.expect("lost")
            lost: Lost = said.data
            assert lost.rank == fault.rank
            silence = re.search(r"no answer for ([0-9.]+) s", lost.text)
            assert silence is not None
            assert float(silence[1]) > STOPPED
            seconds.append(said.at - at)
            rank.expect("trained")  # it trains on
        assert min(seconds) > 0.9 * STOPPED
        stopped.send(signal.SIGCONT)
        for rank in others:
            assert f"rank {fault.rank} can be reached again" in rank.expect("warned").data
        last = 100 + max(rank.last("trained") for rank in started)
        for rank in started:
            rank.tell("enough", last)
        assert {rank.result() for rank in started} == {last}
    rows = work.rows_of(run_dir)
    work.check_rows(rows, sorted({row.window for row in rows}), world_size)
    wanted = set(work.labels(last))
    return len(wanted), len(wanted - {row.window for row in rows}), seconds
