"""Rows that other tools lose or double, around steps that go back, kills and restarts."""

from __future__ import annotations

import io
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.rundir import METRICS, describe
from distmetrics.runs import open_run
from distmetrics.spool.merge import keep_last, read_rows
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.faults.ranks import Life, ranks
from tests.sinks.wandb_log import read_wandb, wandb_files


def test_rows_with_a_smaller_step_are_kept(tmp_path: Path) -> None:
    """In the file and in W&B, in the order of the calls; nothing counts as dropped."""
    run_dir = tmp_path / "run"
    sink = dm.sinks.WandbSink(mode="offline")
    with pytest.warns(dm.DistmetricsWarning, match="step 3 comes after step 5"):
        with dm.Logger(run_dir=run_dir, sinks=[sink]) as logger:
            for step in (5, 3, 6):
                logger.log({"x": float(step)}, step=step)
                logger.flush()
    assert logger.stats()["dropped"] == 0
    assert [(row.step, row.values["x"]) for row in read_rows(run_dir / METRICS)] == [
        (5, 5.0),
        (3, 3.0),
        (6, 6.0),
    ]
    (file,) = wandb_files(run_dir)
    rows = read_wandb(file).rows
    assert [(row["step"], row["x"]) for row in rows] == [(5, 5.0), (3, 3.0), (6, 6.0)]


def test_a_smaller_step_is_an_error_where_that_is_asked_for() -> None:
    """It names both; what was logged before is written."""
    memory = MemorySink()
    with dm.Logger(sinks=[memory], on_step_regress="error") as logger:
        logger.log({"x": 1.0}, step=4)
        with pytest.raises(ValueError, match="step 3 comes after step 4"):
            logger.log({"x": 2.0}, step=3)
    assert [record.step for record in memory.records] == [4]


def _flush_and_die(life: Life, run_dir: Path, flushes: int) -> None:
    logger = dm.Logger(run_dir=run_dir)
    for step in range(flushes):
        logger.log({"x": float(step)}, step=step)
        logger.flush()
    while logger.stats()["written_step"] < flushes - 1:
        time.sleep(0.005)
    life.say("written")
    os.kill(os.getpid(), 9)


def test_rows_do_not_wait_in_memory_for_the_end(tmp_path: Path) -> None:
    """All that was flushed is in the file soon, whole, with no call but `flush`."""
    with ranks(1, _flush_and_die, tmp_path / "run", 50) as (rank,):
        rank.expect("written", timeout=20)
        assert rank.end() == -9
    content = (tmp_path / "run" / METRICS).read_bytes()
    assert content.endswith(b"\n")
    assert [row.step for row in read_rows(tmp_path / "run" / METRICS)] == list(range(50))


def test_steps_that_are_not_finite_show_in_any_tool(tmp_path: Path) -> None:
    """They are in the file, with a count beside them that can be drawn, and only there."""
    with dm.Logger(run_dir=tmp_path / "run") as logger:
        for step in range(5):
            logger.log({"x": math.nan if step in (1, 3) else float(step)}, step=step)
    rows = read_rows(tmp_path / "run" / METRICS)
    assert [math.isnan(row.values["x"]) for row in rows] == [False, True, False, True, False]
    assert [row.values.get("x/nonfinite") for row in rows] == [None, 1, None, 1, None]


def _train(
    run_dir: Path, world_size: int, first: int, last: int, saved: bytes | None, at: int
) -> tuple[bytes, str]:
    """Log these steps on all ranks; what was saved at a step, and the run's name."""

    def rank() -> bytes:
        registry = dm.Registry()
        registry.total("seen")
        logger = dm.Logger(registry, run_dir=run_dir, resume="auto")
        if saved is not None:
            logger.load_state_dict(torch.load(io.BytesIO(saved), weights_only=True))
        file = io.BytesIO()
        for step in range(first, last + 1):
            logger.log({"seen": 12 // dm.get_world_size()}, step=step)
            if step == at:
                torch.save(logger.state_dict(), file)
        logger.close()
        return file.getvalue()

    return run_ranks_in_process(rank, world_size)[0], describe(run_dir)["id"]


def test_a_restart_goes_on_with_its_run_at_another_world_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after the checkpoint come once, totals go on, and a launcher's counter is no matter."""
    run_dir = tmp_path / "run"
    saved, name = _train(run_dir, 4, 0, 12, None, at=10)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")  # as a node says that was not restarted
    _, again = _train(run_dir, 2, 11, 13, saved, at=-1)
    assert again == name
    rows = read_rows(run_dir / METRICS)
    assert [row.attempt for row in rows] == [0] * 13 + [1] * 4  # of these the first was open
    kept = keep_last(rows)
    assert [(row.step, row.values["seen"]) for row in kept] == [
        (step, 12 * (step + 1)) for step in range(14)
    ]
    series: Any = open_run(run_dir).series["seen"]
    assert series.steps.tolist() == list(range(14))
