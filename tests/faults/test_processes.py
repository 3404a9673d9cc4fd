"""Other processes beside a live logger: forked children, workers that load data, copies."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import distmetrics as dm
from distmetrics.errors import InvalidType
from distmetrics.testing import MemorySink
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import Fault, Lost, inject, logger_of

# --- loading data -------------------------------------------------------------------------------


class Numbers(Dataset[int]):
    """Sixteen numbers."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        return index


def _load(life: Life, run_dir: Path, method: str) -> dict[str, Any]:
    """Two epochs with workers that are started while the logger lives."""
    registry = dm.Registry()
    registry.count("n")
    registry.total("sum")
    logger = dm.Logger(registry, run_dir=run_dir, sinks=["tensorboard"])
    loader = DataLoader(
        Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method, timeout=60
    )
    step = 0
    for _ in range(2):
        for batch in loader:
            logger.log({"n": len(batch), "sum": int(batch.sum())}, step=step)
            step += 1
    began = time.monotonic()
    logger.close()
    return {"closing": time.monotonic() - began, **logger.stats()}


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.heavy)])
def test_data_is_loaded_by_workers_beside_a_live_logger(tmp_path: Path, method: str) -> None:
    """Every record is there, of both ranks, and nothing hangs at the end."""
    run_dir = tmp_path / "run"
    with ranks(2, _load, run_dir, method) as started:
        for rank in started:
            assert rank.result()["closing"] < 10
            assert rank.end() == 0
    rows = work.rows_of(run_dir)
    assert [row.values["n"] for row in rows] == [8] * 8
    assert rows[-1].values["sum"] == 2 * 2 * sum(range(16))


# --- children -----------------------------------------------------------------------------------


def _fork(life: Life, run_dir: Path) -> list[str]:
    """A child logs, flushes, waits and closes; what it is told."""
    logger = logger_of(run_dir)
    logger.log(work.outputs(0, 0), step=0)
    holding = threading.Event()
    release = threading.Event()

    def hold() -> None:
        with logger._core.lock:  # as a thread that logs does at any moment
            holding.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait()
    child = os.fork()
    if child == 0:
        logger.log({"seen": 1}, step=0)
        logger.log({"seen": 1}, step=1)
        assert logger.flush(wait=True) == {}
        assert logger.reduce({"seen": 1}) == {}
        assert logger.latest == {}
        with logger:
            logger.child("val").log({"seen": 1})
        life.say("child is done")
        os._exit(0)
    release.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    logger.log(work.outputs(0, 1), step=1)
    logger.close()
    return [path.name for path in run_dir.iterdir() if path.name != ".lock"]


def test_what_a_forked_child_logs_is_left_out_and_said_once(tmp_path: Path) -> None:
    """It neither hangs, though a lock was held at the fork, nor touches the parent's records."""
    run_dir = tmp_path / "run"
    with ranks(1, _fork, run_dir) as (rank,):
        assert sorted(rank.result()) == ["metrics.jsonl", "run.json"]
        told = [said.data for said in rank.heard if said.what == "warned"]
    assert len(told) == 1
    assert "this process was forked" in told[0]
    work.check_rows(work.rows_of(run_dir), [1], 1)


def _die_with_children(life: Life, run_dir: Path, fault: Fault) -> None:
    """The rank that dies leaves a child behind, which has inherited its connections."""
    logger = logger_of(run_dir)
    logger.log(work.outputs(life.rank, 0), step=0)
    logger.flush(wait=True)
    if life.rank == fault.rank:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        life.say("child", child)
    inject(life, fault)
    step = 1
    while True:
        time.sleep(0.01)
        try:
            logger.log(work.outputs(life.rank, step), step=step)
        except dm.PeerLostError as error:
            life.say("lost", Lost.of(error))
            return
        step += 1


@pytest.mark.parametrize("rank", [0, 1])
def test_children_do_not_hide_that_their_parent_is_dead(tmp_path: Path, rank: int) -> None:
    """Workers that load data outlive their rank for a while: it is known at once all the same."""
    with ranks(2, _die_with_children, tmp_path / "run", Fault(rank, "sum")) as started:
        child = started[rank].expect("child").data
        try:
            died = started[rank].expect("reached")
            lost = started[1 - rank].expect("lost")
            assert lost.at - died.at < 5
            assert lost.data.rank == rank
            os.kill(child, 0)  # it was alive all the time
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_logger_cannot_be_copied_into_another_process() -> None:
    """The error says what to do instead, e.g. where a dataset that is sent to workers holds it."""
    with dm.Logger() as logger:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(InvalidType, match="cannot be sent to another process"):
                copied(logger)
            with pytest.raises(InvalidType, match="cannot be sent to another process"):
                copied(logger.child("val"))


# --- several loggers ----------------------------------------------------------------------------


def _two_loggers(life: Life, folder: Path) -> None:
    """Two loggers at the same time, then one more in a directory of before."""
    first, second = logger_of(folder / "one"), logger_of(folder / "two")
    for step in range(20):
        first.log(work.outputs(life.rank, step), step=step)
        second.log(work.outputs(life.rank, step), step=step)
    second.close()
    first.close()
    again = logger_of(folder / "one", resume=True)
    for step in range(20, 30):
        again.log(work.outputs(life.rank, step), step=step)
    again.close()


def test_loggers_beside_and_after_each_other(tmp_path: Path) -> None:
    """Each has its own records, and the one that is made again goes on with the totals."""
    with ranks(2, _two_loggers, tmp_path) as started:
        for rank in started:
            rank.result()
    work.check_rows(work.rows_of(tmp_path / "two"), work.labels(20), 2)
    rows = work.rows_of(tmp_path / "one")
    work.check_rows(rows, work.labels(30), 2)
    assert [row.attempt for row in rows] == [0] * 10 + [1] * 5


# --- memory -------------------------------------------------------------------------------------


class _Token:
    """Lives as long as a node of a graph."""


class _Double(torch.autograd.Function):
    """Doubles a tensor; its node holds a token."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, token: _Token) -> torch.Tensor:
        ctx.token = token
        return 2 * values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return 2 * grads[0], None


def test_no_graph_is_kept_alive() -> None:
    """What hangs on a logged tensor is freed as soon as the training lets go of it."""
    memory = MemorySink()
    with dm.Logger(sinks=[memory], every=1000) as logger:
        token = _Token()
        alive = weakref.ref(token)
        losses = _Double.apply(torch.ones(1000, requires_grad=True), token)
        loss = losses.sum()
        logger.log({"loss": loss, "mean": dm.Average(losses)}, step=0)
        del token
        gc.collect()
        assert alive() is not None
        del loss, losses
        gc.collect()
        assert alive() is None
    assert memory.records[0].values == {"loss": 2000, "mean": 2}


@pytest.mark.parametrize(
    ("flushes", "kept"),
    [
        (4_000, False),
        pytest.param(100_000, True, marks=pytest.mark.heavy),
    ],
)
@pytest.mark.timeout(240)
def test_flushes_cost_no_memory(tmp_path: Path, flushes: int, kept: bool) -> None:
    """A hundred thousand grow a process by less than 2 MB, in a tight loop too."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "tests.faults.memory", str(flushes)]
    done = subprocess.run(
        command + [str(run_dir)] * kept,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    grown, steps = map(int, done.stdout.split())
    assert grown < 2e6
    if kept:
        assert len(work.rows_of(run_dir)) == steps
