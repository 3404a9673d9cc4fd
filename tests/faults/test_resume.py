"""Runs that go on: after a crash, at a checkpoint, at another world size; the curve is one."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.errors import DeclarationConflict, InvalidValue
from distmetrics.record import Record
from distmetrics.rundir import METRICS
from distmetrics.spool.merge import keep_last, read_rows
from distmetrics.testing import MemorySink, run_ranks_in_process
from distmetrics.worker.writer import Writer
from tests.faults import work
from tests.faults.dead import dead_run
from tests.faults.train import logger_of

SAMPLES = 12
EVERY = 4


def _registry() -> dm.Registry:
    registry = dm.Registry()
    registry.average("loss", weight="tokens")
    registry.total("seen")
    registry.total("energy")
    registry.std("spread")
    registry.maximum("worst")
    return registry


def _samples(step: int) -> list[tuple[float, int]]:
    """The losses and tokens of a step's samples, however they are split."""
    draw = random.Random(step)
    return [
        (draw.uniform(-1, 1) * 10.0 ** draw.randrange(-8, 8), draw.randrange(1, 9))
        for _ in range(SAMPLES)
    ]


def _log(logger: dm.Logger, steps: Iterable[int]) -> None:
    """A rank's share of each step, in two micro-batches."""
    rank, size = dm.get_rank(), dm.get_world_size()
    for step in steps:
        mine = _samples(step)[rank::size]
        for part in (mine[:2], mine[2:]):
            logger.log(
                {
                    "loss": [loss for loss, _ in part],
                    "tokens": [tokens for _, tokens in part],
                    "seen": len(part),
                    "energy": [abs(loss) for loss, _ in part],
                    "spread": [loss for loss, _ in part],
                    "worst": [loss for loss, _ in part],
                },
                step=step,
            )


def _saved(state: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def _loaded(saved: bytes) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
    return state


def _attempt(
    run_dir: Path,
    world_size: int,
    steps: range,
    checkpoint: int | None = None,
    saved: bytes | None = None,
) -> bytes | None:
    """Train these steps, from a checkpoint if there is one; what was saved after `checkpoint`."""

    def train() -> bytes | None:
        logger = dm.Logger(_registry(), run_dir=run_dir, every=EVERY, resume="auto")
        if saved is not None:
            logger.load_state_dict(_loaded(saved))
        taken = None
        if checkpoint is None:
            _log(logger, steps)
        else:
            _log(logger, range(steps.start, checkpoint + 1))
            taken = _saved(logger.state_dict())
            _log(logger, range(checkpoint + 1, steps.stop))
        logger.close()
        return taken

    taken = run_ranks_in_process(train, world_size)
    assert len(set(taken)) == 1  # any rank may save
    return taken[0]


def _curve(rows: Iterable[Record]) -> list[tuple[int, int, dict[str, Any]]]:
    return [
        (
            row.step,
            row.first_step,
            {key: v.hex() if isinstance(v, float) else v for key, v in row.values.items()},
        )
        for row in keep_last(rows)
    ]


@pytest.mark.parametrize(
    "first",
    [
        9,  # in the middle of a window
        11,  # at the end of one
    ],
)
def test_the_curve_is_that_of_an_uninterrupted_process(tmp_path: Path, first: int) -> None:
    """Crashes after the checkpoints, and 4, 2 and 3 ranks, leave no trace: not in a bit."""
    run_dir = tmp_path / "run"
    saved = _attempt(run_dir, 4, range(14), checkpoint=first)
    saved = _attempt(run_dir, 2, range(first + 1, 23), checkpoint=17, saved=saved)
    _attempt(run_dir, 3, range(18, 30), saved=saved)
    _attempt(tmp_path / "whole", 1, range(30))
    rows = read_rows(run_dir / METRICS)
    assert {row.attempt for row in rows} == {0, 1, 2}
    assert _curve(rows) == _curve(read_rows(tmp_path / "whole" / METRICS))


def test_a_run_goes_on_after_its_last_row_without_a_checkpoint(tmp_path: Path) -> None:
    """Steps and running totals do; so it is where what a crash left in the spools is merged."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, 20)  # nothing of it was written

    def train() -> None:
        with logger_of(run_dir, resume=True) as logger:
            for _ in range(10):
                logger.log(work.outputs(dm.get_rank(), logger._high + 1))

    run_ranks_in_process(train, 2)
    rows = work.rows_of(run_dir)
    work.check_rows(rows, work.labels(30), 2)
    assert [row.attempt for row in rows] == [0] * 10 + [1] * 5


def test_spools_too_large_to_merge_at_the_start_are_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on at once, and a merge afterwards brings their rows."""
    from distmetrics.logger import startup
    from distmetrics.spool.merge import merge

    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, 20)
    monkeypatch.setattr(startup, "COMPLETED", 10)

    def train() -> None:
        with logger_of(run_dir, resume=True) as logger:
            for step in range(20, 30):
                logger.log({"worst": 1.0}, step=step)

    run_ranks_in_process(train, 2)
    assert "too much to merge" in caplog.text
    assert [row.window for row in work.rows_of(run_dir)] == work.labels(30)[10:]
    merge(run_dir)
    rows = sorted(work.rows_of(run_dir), key=lambda row: row.window)
    work.check_rows(rows[:10], work.labels(20), 2)


def test_totals_of_an_attempt_that_wrote_nothing_are_merged(tmp_path: Path) -> None:
    """An attempt that dies before its first row has its totals from the one before all the same."""
    from distmetrics.spool.merge import merge

    run_dir = tmp_path / "run"

    def train(first: int, last: int) -> None:
        with logger_of(run_dir, resume="auto") as logger:
            for step in range(first, last):
                logger.log(work.outputs(dm.get_rank(), step), step=step)

    run_ranks_in_process(train, 2, 0, 20)
    kept = (run_dir / METRICS).read_bytes()
    with mock.patch.object(Writer, "committed", False):
        run_ranks_in_process(train, 2, 20, 30)
    (run_dir / METRICS).write_bytes(kept)
    merge(run_dir)
    work.check_rows(work.rows_of(run_dir), work.labels(30), 2)


def test_steps_go_on_after_the_checkpoint(tmp_path: Path) -> None:
    """Calls without a step count on from it, and an evaluation bears the step it was taken at."""

    def until() -> dict[str, Any]:
        with dm.Logger(run_dir=tmp_path / "run") as logger:
            for _ in range(101):
                logger.log({"loss": 1.0})
            return logger.state_dict()

    (state,) = run_ranks_in_process(until, 1)
    for evaluates in (False, True):
        memory = MemorySink()

        def after(memory: MemorySink = memory, evaluates: bool = evaluates) -> None:
            with dm.Logger(run_dir=tmp_path / "run", resume=True, sinks=[memory]) as logger:
                logger.load_state_dict(state)
                if evaluates:
                    val = logger.child("val")
                    val.log({"acc": 0.5})
                    val.flush()
                else:
                    logger.log({"loss": 2.0})

        run_ranks_in_process(after, 1)
        steps = [(row.step, row.logger) for row in memory.records]
        assert steps == [(100, None), (100, "val") if evaluates else (101, None)]


def test_children_go_on_too(tmp_path: Path) -> None:
    """Of a child the totals, and what it had open, come back when it is made again."""

    def before() -> dict[str, Any]:
        registry = dm.Registry()
        registry.total("seen")
        registry.average("acc")
        logger = dm.Logger(registry, run_dir=tmp_path / "run")
        logger.log({"x": 1.0}, step=4)
        val = logger.child("val")
        val.log({"seen": 5})
        val.flush()
        val.log({"seen": 7, "acc": [1.0, 0.0]})  # open at the checkpoint
        state = logger.state_dict()
        logger._core.leave()
        return state

    def after(state: dict[str, Any], memory: MemorySink) -> None:
        registry = dm.Registry()
        registry.total("seen")
        registry.average("acc")
        sinks = [memory] if dm.get_rank() == 0 else []
        logger = dm.Logger(registry, run_dir=tmp_path / "run", resume=True, sinks=sinks)
        logger.load_state_dict(state)
        val = logger.child("val")
        val.log({"acc": [1.0, 1.0]})
        val.flush()
        logger.close()

    states = run_ranks_in_process(before, 2)
    assert states[0] == states[1]
    memory = MemorySink()
    run_ranks_in_process(after, 3, states[0], memory)
    rows = {row.logger: row for row in memory.records}
    assert rows["val"].values == {"val/seen": 24, "val/acc": 8 / 10}
    assert rows["val"].step == 4
    assert rows[None].values == {"x": 1.0}  # it was open too


def test_a_state_is_taken_while_others_log_on(tmp_path: Path) -> None:
    """It closes nothing: the windows after it are those of a run without it."""

    def train(checkpoint: bool) -> list[dict[str, Any]]:
        memory = MemorySink()
        sinks = [memory] if dm.get_rank() == 0 else []
        with dm.Logger(_registry(), every=EVERY, sinks=sinks) as logger:
            _log(logger, range(10))
            if checkpoint:
                logger.state_dict()
            _log(logger, range(10, 20))
        return [dict(record.values) for record in memory.records]

    assert run_ranks_in_process(train, 2, True)[0] == run_ranks_in_process(train, 2, False)[0]


def _raises(load: Callable[[dm.Logger], object], error: type[Exception], text: str) -> None:
    with dm.Logger(_registry(), every=EVERY) as logger:
        with pytest.raises(error, match=text):
            load(logger)


def test_what_is_no_state_is_refused(tmp_path: Path) -> None:
    """So is a state that comes too late, or with another meaning of a key."""
    with dm.Logger(_registry(), every=EVERY) as logger:
        _log(logger, range(6))
        state = logger.state_dict()
        with pytest.raises(InvalidValue, match="load the state first"):
            logger.load_state_dict(state)
    _raises(lambda logger: logger.load_state_dict({}), InvalidValue, "what state_dict returned")
    _raises(lambda logger: logger.load_state_dict([]), InvalidValue, "what state_dict returned")
    registry = dm.Registry()
    registry.minimum("worst")
    with dm.Logger(registry, every=EVERY) as logger:
        with pytest.raises(DeclarationConflict, match="'worst' is maximum"):
            logger.load_state_dict(state)


def test_tensorboard_shows_each_step_once(tmp_path: Path) -> None:
    """The later attempt's values take the place of the earlier one's from its first step on."""

    def train(value: float, steps: range, saved: bytes | None) -> bytes | None:
        logger = dm.Logger(run_dir=tmp_path / "run", resume="auto", sinks=["tensorboard"])
        if saved is not None:
            logger.load_state_dict(_loaded(saved))
        taken = None
        for step in steps:
            logger.log({"x": value}, step=step)
            if step == 99:
                taken = _saved(logger.state_dict())
        logger.close()
        return taken

    (saved,) = run_ranks_in_process(train, 1, 0.0, range(150), None)
    run_ranks_in_process(train, 1, 1.0, range(100, 120), saved)
    (folder,) = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("x")]
    assert points == [(step, float(step >= 100)) for step in range(120)]


def test_rows_of_a_child_with_steps_of_its_own_supersede_their_own_kind() -> None:
    """Epochs of a child do not cut the logger's rows, nor its steps the child's epochs."""

    def row(step: int, attempt: int, logger: str | None = None) -> Record:
        return Record(step, step, step, 0.0, {}, attempt=attempt, logger=logger)

    rows = [row(step, 0) for step in range(0, 300, 100)]
    rows += [row(epoch, 0, "epoch") for epoch in range(3)]
    rows += [row(150, 0, "val"), row(250, 0, "val")]
    rows += [row(200, 1), row(2, 1, "epoch"), row(300, 1, "val")]
    kept = [(one.step, one.attempt, one.logger) for one in keep_last(rows)]
    assert kept == [
        (0, 0, None),
        (100, 0, None),
        (0, 0, "epoch"),
        (1, 0, "epoch"),
        (150, 0, "val"),
        (200, 1, None),
        (2, 1, "epoch"),
        (300, 1, "val"),
    ]
