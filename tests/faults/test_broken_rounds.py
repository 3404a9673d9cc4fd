"""A round breaks on one rank while all live: the ranks meet again, and nobody is told."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.errors import PeerLostError
from tests.faults import work
from tests.faults.points import at
from tests.faults.ranks import Life, ranks
from tests.faults.train import logger_of

STEPS = 120


def _broken(life: Life, run_dir: Path, victim: int, point: str) -> dict[str, Any]:
    """Train; in one rank the connection breaks at a point, from which on the others differ."""

    def breaks(point: str) -> None:
        life.say("reached", point)
        raise PeerLostError("a planted fault")

    if life.rank == victim:
        at(point, breaks, after=1)
    logger = logger_of(run_dir)
    for step in range(STEPS):
        time.sleep(0.01)
        logger.log(work.outputs(life.rank, step), step=step)
    values = logger.flush(wait=True)
    latest = dict(logger.latest)
    state = logger.state_dict()
    logger.close()
    return {"values": values, "latest": latest, "state": state}


@pytest.mark.parametrize(
    ("victim", "point"),
    [
        (2, "reduced"),  # the others have the values, and rank 0 may have written them
        (0, "reduced"),  # the others have the values, and rank 0 has not
        (1, "max"),  # nobody has them
    ],
)
def test_ranks_agree_after_a_round_that_only_some_have_finished(
    tmp_path: Path, victim: int, point: str
) -> None:
    """No record is missing or doubled, and totals, latest values and states are the same again."""
    run_dir = tmp_path / "run"
    with ranks(3, _broken, run_dir, victim, point) as started:
        assert started[victim].expect("reached").data == point
        results = [rank.result() for rank in started]
        said = [said.what for rank in started for said in rank.heard]
    assert "warned" not in said
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 3)
    wanted = work.expected([STEPS - 1], 3)[STEPS - 1]
    for result in results:
        assert {key: result["latest"][key] for key in wanted} == wanted
        assert result["values"] == results[0]["values"]
        assert result["latest"] == results[0]["latest"]
        assert result["state"] == results[0]["state"]


def test_threads_that_act_as_ranks_meet_again(tmp_path: Path) -> None:
    """A rank whose collective fails on its side alone is connected again, in one process too."""
    from distmetrics.comm.inprocess import InProcess
    from distmetrics.testing import run_ranks_in_process

    run_dir = tmp_path / "run"
    reduce, calls = InProcess.all_reduce, [0]

    def fails_once(self: InProcess, array: Any, op: Any) -> Any:
        result = reduce(self, array, op)
        if self.rank == 1:
            calls[0] += 1
            if calls[0] == 12:
                raise PeerLostError("a planted fault")
        return result

    def train() -> dict[str, Any]:
        logger = logger_of(run_dir)
        for step in range(STEPS):
            time.sleep(0.01)
            logger.log(work.outputs(dm.get_rank(), step), step=step)
        state = logger.state_dict()
        logger.close()
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "all_reduce", fails_once)
        states = run_ranks_in_process(train, 3)
    assert calls[0] > 12
    assert states[0] == states[1] == states[2]
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 3)
