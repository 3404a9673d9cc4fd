"""Chains of attempts at random world sizes, checkpoints and crashes: the curve is that of one."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.rundir import METRICS
from distmetrics.spool.merge import keep_last, read_rows
from distmetrics.testing import run_ranks_in_process

STEPS = 60
SAMPLES = 12


def _registry() -> dm.Registry:
    registry = dm.Registry()
    registry.average("loss", weight="tokens")
    registry.total("seen")
    registry.total("energy")
    registry.axis("consumed")
    registry.maximum("worst")
    registry.minimum("best")
    registry.std("spread")
    registry.l2_norm("norm")
    registry.histogram("sizes", edges=[0, 1, 2, 3])
    registry.quantiles("latency", qs=[0.5, 0.9])
    registry.ratio("acc", numerator="good", denominator="n")
    registry.derived("double", lambda values: values["n"] * 2)
    return registry


def _samples(step: int) -> list[tuple[float, int]]:
    """The values and tokens of a step's samples, however they are split."""
    draw = random.Random(step)
    return [
        (draw.uniform(-1, 1) * 10.0 ** draw.randrange(-8, 8), draw.randrange(1, 9))
        for _ in range(SAMPLES)
    ]


def _share(number: int) -> list[tuple[float, int]]:
    return _samples(number)[dm.get_rank() :: dm.get_world_size()]


def _outputs(step: int) -> Iterator[dict[str, Any]]:
    """A rank's share of a step, in two micro-batches."""
    mine = _share(step)
    for part in (mine[:2], mine[2:]):
        values = [value for value, _ in part]
        sizes = [abs(value) for value in values]
        tokens = [count for _, count in part]
        yield {
            "loss": values,
            "tokens": tokens,
            "seen": len(part),
            "energy": sizes,
            "consumed": sum(tokens),
            "worst": values,
            "best": values,
            "spread": values,
            "norm": values,
            "sizes": sizes,
            "latency": sizes,
            "n": len(part),
            "good": sum(value > 0 for value in values),
        }


def _train(logger: dm.Logger, val: Any, epoch: Any, step: int) -> None:
    """A step: its values, late ones, an evaluation now and then, and a child's own epochs."""
    for outputs in _outputs(step):
        logger.log(outputs, step=step)
    if step % 9 == 5:
        for value, _ in _share(1000 + step):
            logger.log({"late": dm.Average(value)}, step=step - 5)
    if step % 3 == 1:
        values = [value for value, _ in _share(2000 + step)]
        val.log({"score": dm.Average(values), "seen": dm.Total(len(values))})
    if step % 10 == 9:
        val.flush(step)
    values = [value for value, _ in _share(3000 + step)]
    epoch.log({"x": dm.Average(values), "seen": dm.Total(len(values))}, step=step // 8)


def _attempt(
    run_dir: Path, world_size: int, steps: range, every: int, saved: bytes | None, plan: Any
) -> bytes | None:
    """Train these steps; what was saved after step ``plan.checkpoint``, before a crash or not."""
    checkpoint, crashes = plan

    def train() -> bytes | None:
        logger = dm.Logger(
            _registry(), run_dir=run_dir, every=every, resume="auto", on_step_regress="accept"
        )
        if saved is not None:
            logger.load_state_dict(torch.load(io.BytesIO(saved), weights_only=True))
        val, epoch, taken = logger.child("val"), logger.child("epoch", every=2), None
        for step in steps:
            _train(logger, val, epoch, step)
            if step == checkpoint:
                file = io.BytesIO()
                torch.save(logger.state_dict(), file)
                taken = file.getvalue()
        (logger._core.leave if crashes else logger.close)()
        return taken

    taken = run_ranks_in_process(train, world_size)
    assert len(set(taken)) == 1  # any rank may save
    return taken[0]


def _curve(run_dir: Path) -> list[tuple[Any, ...]]:
    """What a reader sees, a row each, with values to the bit."""
    rows = [
        (
            row.logger or "",
            bool(row.late),
            row.step,
            row.first_step,
            json.dumps(dict(row.values), sort_keys=True),  # floats round-trip
        )
        for row in keep_last(read_rows(run_dir / METRICS))
    ]
    return sorted(rows)


def _chain(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    every, start, saved = draw.choice([1, 2, 4, 5]), 0, None
    while start < STEPS:
        checkpoint = start + draw.randrange(3, 25)
        stop = min(STEPS, checkpoint + 1 + draw.randrange(12))
        last = checkpoint >= STEPS - 1
        crashes = not last and draw.random() < 0.5
        plan = (checkpoint, crashes)
        run_dir = tmp_path / "run"
        saved = _attempt(run_dir, draw.randrange(1, 5), range(start, stop), every, saved, plan)
        start = checkpoint + 1
    _attempt(tmp_path / "whole", 1, range(STEPS), every, None, (None, False))
    assert _curve(tmp_path / "run") == _curve(tmp_path / "whole")


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(8))
def test_the_curve_is_that_of_one_process(tmp_path: Path, seed: int) -> None:
    """To the bit: late steps, evaluations, running totals and a child's own epochs too."""
    _chain(tmp_path, seed)


def test_an_evaluation_at_the_checkpoint_stays_where_a_window_was_open(tmp_path: Path) -> None:
    """It was complete, while the logger's window is written whole by the attempt that goes on."""
    run_dir = tmp_path / "run"

    def train(first: int, last: int, saved: dict[str, Any] | None) -> dict[str, Any]:
        logger = dm.Logger(run_dir=run_dir, every=10, resume="auto", sinks=["tensorboard"])
        if saved is not None:
            logger.load_state_dict(saved)
        val, taken = logger.child("val"), {}
        for step in range(first, last):
            logger.log({"x": float(step)}, step=step)
            if step % 10 == 4:
                val.log({"acc": float(step)})
                val.flush()
            if step == 24:
                taken = logger.state_dict()
        logger.close()
        return taken

    (saved,) = run_ranks_in_process(train, 1, 0, 38, None)
    run_ranks_in_process(train, 1, 25, 50, saved)
    rows = keep_last(read_rows(run_dir / METRICS))
    assert [row.step for row in rows if row.logger] == [4, 14, 24, 34, 44]
    assert [row.step for row in rows if not row.logger] == [9, 19, 29, 39, 49]
    (folder,) = {path.parent for path in run_dir.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("val/acc")]
    assert points == [(step, float(step)) for step in (4, 14, 24, 34, 44)]
    assert [event.step for event in events.Scalars("x")] == [9, 19, 29, 39, 49]
