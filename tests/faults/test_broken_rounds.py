"""A round breaks on one rank while all live: the ranks meet again, and nobody is told."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import distmetrics as dm
from distmetrics.comm.communicator import Gloo
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


@pytest.mark.heavy
def test_a_rank_that_is_slow_to_notice_is_not_lost(tmp_path: Path) -> None:
    """However often the others look for it: it lives, and takes part once it has noticed."""
    from distmetrics.comm.inprocess import InProcess
    from distmetrics.testing import run_ranks_in_process

    run_dir = tmp_path / "run"
    reduce, regroup = InProcess.all_reduce, InProcess.regroup
    calls, looks, enough = [0], {0: 0, 1: 0}, threading.Event()

    def fails_once(self: InProcess, array: Any, op: Any) -> Any:
        calls[0] += self.rank == 1
        if self.rank == 1 and calls[0] == 12:
            raise PeerLostError("a planted fault")
        return reduce(self, array, op)

    def late(self: InProcess, *args: Any) -> Any:
        if self.rank == 2:
            assert enough.wait(30)
        missing = regroup(self, *args)
        if missing is not None:
            looks[self.rank] += 1
            if min(looks.values()) >= 3:
                enough.set()
        return missing

    def train() -> None:
        with logger_of(run_dir) as logger:  # a loss would be an error
            for step in range(STEPS):
                time.sleep(0.01)
                logger.log(work.outputs(dm.get_rank(), step), step=step)
            assert enough.wait(30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InProcess, "all_reduce", fails_once)
        patch.setattr(InProcess, "regroup", late)
        run_ranks_in_process(train, 3)
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 3)


BREAKS = 0.02
"""The chance that a collective fails on a rank before it, and again after it."""


def _broken_often(life: Life, run_dir: Path, seed: int) -> dict[str, Any]:
    """Train, with calls that wait, over connections that break again and again; what they gave."""
    draw, run, active = random.Random(seed * 10 + life.rank), Gloo._run, [False]

    def fragile(self: Gloo, start: Any) -> None:
        for act in (lambda: None, lambda: run(self, start)):
            if active[0] and draw.random() < BREAKS:
                life.say("reached")
                raise PeerLostError("a planted fault")
            act()

    mock.patch.object(Gloo, "_run", fragile).start()
    logger = logger_of(run_dir)
    active[0] = True
    found: dict[str, Any] = {}
    for step in range(STEPS):
        time.sleep(0.005)
        logger.log(work.outputs(life.rank, step), step=step)
        if step % 20 == 9:
            found[f"reduce {step}"] = logger.reduce({"seen": step})
        if step % 20 == 19:
            found[f"flush {step}"] = logger.flush(wait=True)
    active[0] = False
    logger.close()
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
def test_connections_that_break_again_and_again_cost_nothing(tmp_path: Path, seed: int) -> None:
    """Nobody is told of a loss, no call errs, and every record is there once."""
    with ranks(3, _broken_often, tmp_path / "run", seed) as started:
        results = [rank.result() for rank in started]
        said = [said.what for rank in started for said in rank.heard]
    assert "reached" in said
    assert "warned" not in said
    assert results[0] == results[1] == results[2]
    for step in range(9, STEPS, 20):
        assert results[0][f"reduce {step}"] == {"seen": 3 * step}
    work.check_rows(work.rows_of(tmp_path / "run"), work.labels(STEPS), 3)
