"""Recorded contributions: what each rank said, call by call, and how a value came about."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.audit.explain import explain
from distmetrics.errors import InvalidValue
from distmetrics.testing import run_ranks_in_process
from tests.faults import work
from tests.faults.train import logger_of


def _lines(run_dir: Path, rank: int) -> list[dict[str, Any]]:
    text = (run_dir / f"contributions-rank{rank}.jsonl").read_text()
    return [json.loads(line, parse_constant=lambda name: name) for line in text.splitlines()]


def test_a_value_is_explained_by_what_the_ranks_said(tmp_path: Path) -> None:
    """The recorded elements and weights give the logged bits, and name the formula."""
    run_dir = tmp_path / "run"

    def train() -> None:
        rank = dm.get_rank()
        with logger_of(run_dir, record_contributions=True) as logger:
            for step in range(10):
                logger.log(work.outputs(rank, step), step=step)

    run_ranks_in_process(train, 2)
    found = explain(run_dir, "loss", 4)
    assert found.window == 5
    assert found.reduction == "average"
    assert [part.calls for part in found.parts] == [2, 2]
    assert found.logged == work.expected([5], 2)[5]["loss"]
    assert "weighted mean over all ranks" in found.matches()
    assert explain(run_dir, "worst", 9).matches() == ["largest"]


def test_each_call_is_a_line_for_each_key(tmp_path: Path) -> None:
    """With its step and window, the child's prefix, weights, and names for what is not finite."""
    run_dir = tmp_path / "run"
    registry = dm.Registry()
    registry.average("loss", weight="w")
    logger = dm.Logger(
        registry, run_dir=run_dir, every=4, record_contributions=True, on_step_regress="accept"
    )
    with logger:
        logger.log({"loss": [0.5, math.nan], "w": [3, 1], "r": dm.Ratio(1, 4)}, step=0)
        logger.log({"loss": [1.0], "w": [2]}, step=5)
        logger.log({"loss": [7.0], "w": [1]}, step=1)  # late
        val = logger.child("val")
        val.log({"acc": 0.25})
        val.flush(step=6)
    told = [
        (row["step"], row["window"], row["logger"], row["key"], row["value"], row.get("weight"))
        for row in _lines(run_dir, 0)
    ]
    assert sorted(told, key=repr) == sorted(
        [
            (0, 3, None, "loss", [0.5, "NaN"], [3, 1]),
            (0, 3, None, "w", [3, 1], None),
            (0, 3, None, "r", [0.25], [4]),
            (1, 7, None, "loss", [7.0], [1]),
            (1, 7, None, "w", [1], None),
            (5, 7, None, "loss", [1.0], [2]),
            (5, 7, None, "w", [2], None),
            (6, 6, "val", "val/acc", [0.25], None),
        ],
        key=repr,
    )


def test_nothing_is_recorded_without_the_request(tmp_path: Path) -> None:
    """It costs a file that grows with every call; it needs a run directory for it."""
    with logger_of(tmp_path / "run") as logger:
        logger.log({"seen": 1}, step=0)
    assert not list((tmp_path / "run").glob("contributions*"))
    with pytest.raises(InvalidValue, match="needs run_dir="):
        dm.Logger(record_contributions=True)


def test_a_recording_that_fails_ends_without_harm(tmp_path: Path) -> None:
    """A file that cannot be written is said once; the records are written."""
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "contributions-rank0.jsonl").mkdir()
    with (
        pytest.warns(dm.DistmetricsWarning, match="recording ends, the training goes on") as said,
        logger_of(run_dir, record_contributions=True) as logger,
    ):
        for step in range(10):
            logger.log(work.outputs(0, step), step=step)
            logger.flush(wait=True)
    assert len(said) == 1
    assert [row.step for row in work.rows_of(run_dir)] == list(range(10))
