"""A rank closes without waiting for the others: it says what is left, and they go on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.spool.merge import merge
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import logger_of

TOGETHER = 10
"""Steps that all ranks train."""


def _leave_early(life: Life, run_dir: Path, leaver: int) -> dict[str, Any]:
    """One rank closes after some steps and waits for nobody; the others train on."""
    logger = logger_of(run_dir)
    for step in range(TOGETHER):
        logger.log(work.outputs(life.rank, step), step=step)
    logger.flush(wait=True)
    if life.rank == leaver:
        began = time.monotonic()
        logger.close(timeout=0.3)
        seconds = time.monotonic() - began
        life.say("left", seconds)
        return logger.stats()
    life.hear("go on")
    for step in range(TOGETHER, 3 * TOGETHER):
        logger.log(work.outputs(life.rank, step), step=step)
    values = logger.flush(wait=True)
    logger.close()
    return {**logger.stats(), "values": values}


def test_the_others_go_on_without_a_rank_that_has_left(tmp_path: Path) -> None:
    """All it had logged was written: it leaves, and later records are those of the others."""
    run_dir = tmp_path / "run"
    with ranks(3, _leave_early, run_dir, 1) as started:
        assert started[1].expect("left").data < 10
        assert "go on without this one" in started[1].expect("warned").data
        for rank in (0, 2):
            started[rank].tell("go on")
        results = [rank.result() for rank in started]
        assert not any(said.what == "lost" for rank in started for said in rank.heard)
    assert results[0]["values"] == results[2]["values"]
    rows = work.rows_of(run_dir)
    assert [row.window for row in rows] == work.labels(3 * TOGETHER)
    work.check_rows(rows[:5], work.labels(TOGETHER), 3)
    last = [work.outputs(rank, step) for rank in (0, 2) for step in (28, 29)]
    assert rows[-1].values["worst"] == max(one["worst"] for one in last)
    everything = [work.outputs(rank, step) for rank in (0, 2) for step in range(3 * TOGETHER)]
    everything += [work.outputs(1, step) for step in range(TOGETHER)]
    assert rows[-1].values["seen"] == sum(one["seen"] for one in everything)
    assert not any((run_dir / "spool").glob("*"))


def _until_lost(logger: dm.Logger) -> dm.PeerLostError:
    """Wait, promising nothing new, until a rank is lost."""
    while True:
        time.sleep(0.01)
        try:
            logger.log({}, step=TOGETHER)
        except dm.PeerLostError as lost:
            return lost


def _leave_with_windows(life: Life, run_dir: Path, steps: int) -> dict[str, Any]:
    """Rank 1 is ahead of the others when it closes."""
    logger = logger_of(run_dir)
    for step in range(steps if life.rank == 1 else TOGETHER):
        logger.log(work.outputs(life.rank, step), step=step)
    if life.rank == 1:
        logger.close(timeout=0.3)
        return logger.stats()
    assert _until_lost(logger).rank == 1
    for step in range(TOGETHER, steps):
        logger.log(work.outputs(life.rank, step), step=step)
    logger.close()
    return logger.stats()


@pytest.mark.heavy
def test_windows_that_a_leaver_had_before_the_others_are_merged(tmp_path: Path) -> None:
    """The others cannot go on without what it had: all is spooled, and merged to the same bits."""
    run_dir = tmp_path / "run"
    with ranks(2, _leave_with_windows, run_dir, 3 * TOGETHER) as started:
        for rank in started:
            rank.result()
        assert "closed windows of this rank are not written and are in its spool" in (
            started[1].expect("warned").data
        )
    merge(run_dir)
    work.check_rows(work.rows_of(run_dir), work.labels(3 * TOGETHER), 2)


def test_threads_that_act_as_ranks_go_on_too() -> None:
    """As above, in one process and without a run directory."""
    memory = MemorySink()

    def train() -> None:
        logger = dm.Logger(sinks=[memory] if dm.get_rank() == 0 else ())
        logger.log({"n": dm.Count(1)}, step=0)
        logger.flush(wait=True)
        if dm.get_rank() == 1:
            logger.close(timeout=0.2)
            return
        for step in range(1, 4):
            logger.log({"n": dm.Count(1)}, step=step)
            time.sleep(0.3)
        logger.close()

    with pytest.warns(dm.DistmetricsWarning, match="go on without this one"):
        run_ranks_in_process(train, 3)
    assert [record.values["n"] for record in memory.records] == [3, 2, 2, 2]
