"""Axes: running totals that charts use as x-axis."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.record import Record
from distmetrics.sinks import Run, TensorBoardSink, WandbSink
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.sinks.wandb_log import read_wandb, wandb_files


def test_an_axis_runs_on_over_ranks_and_windows() -> None:
    """Samples of all ranks and all windows so far, as whole numbers."""
    registry = dm.Registry()
    registry.axis("samples")
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry, sinks=[memory] if rank == 0 else [], every=2) as logger:
            for step in range(5):
                logger.log({"samples": rank + 1}, step=step)

    run_ranks_in_process(train, 3)
    assert [record.values["samples"] for record in memory.records] == [12, 24, 30]


def test_an_axis_goes_on_after_a_checkpoint() -> None:
    """A loaded state holds the total so far."""
    registry = dm.Registry()
    registry.axis("samples")
    with dm.Logger(registry) as logger:
        logger.log({"samples": 5}, step=0)
        state = logger.state_dict()
    memory = MemorySink()
    with dm.Logger(registry, sinks=[memory]) as logger:
        logger.load_state_dict(state)
        logger.log({"samples": 7}, step=1)
    assert memory.records[-1].values["samples"] == 12


_VALUES = [
    (0, {"loss": 1.0, "samples": 64}, None),
    (9, {"val/loss": 2.0}, "val"),
    (10, {"loss": 3.0, "samples": 128}, None),
]


def _write(sink: TensorBoardSink | WandbSink, directory: Path) -> None:
    registry = dm.Registry()
    registry.axis("samples")
    sink.open(Run(directory, "run", registry))
    for step, values, logger in _VALUES:
        sink.write(Record(step, step, step, 0.0, values, logger=logger))
    sink.close()


def test_tensorboard_charts_run_along_an_axis(tmp_path: Path) -> None:
    """The axis is the step of every curve, the child's too."""
    _write(TensorBoardSink(axis="samples"), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(64, 1), (128, 3)]
    assert [event.step for event in events.Scalars("val/loss")] == [64]


def test_wandb_charts_run_along_an_axis(tmp_path: Path) -> None:
    """`define_metric` names it for every key, and each row has it."""
    _write(WandbSink("offline", axis="samples"), tmp_path)
    (file,) = wandb_files(tmp_path)
    log = read_wandb(file)
    assert log.step_metrics == {
        "loss": "samples",
        "val/loss": "samples",
        "samples": "step",
    }
    assert [row["samples"] for row in log.rows] == [64, 64, 128]
    assert [row.get("val/step", row.get("step")) for row in log.rows] == [0, 9, 10]


@pytest.mark.parametrize("kind", [TensorBoardSink, WandbSink])
def test_what_is_no_running_total_is_no_axis(
    kind: type[TensorBoardSink | WandbSink], tmp_path: Path
) -> None:
    """The message says how to register one."""
    with pytest.raises(dm.DistmetricsError, match=r"registry\.axis\('loss'\)"):
        kind(axis="loss").open(Run(tmp_path, "run", dm.Registry()))
