"""The whole demo as a user runs it: real training, real files, the same bits at each world size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distmetrics.demo import report

STEPS_PER_EPOCH = {1: 22, 2: 11}
HELD_OUT = 360


def run_demo(folder: Path, *options: str) -> str:
    """What the command prints; its files are in ``run`` below the folder."""
    command = [sys.executable, "-m", "distmetrics.cli", "demo", "--run-dir", "run", *options]
    result = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("nproc", [pytest.param(1, marks=pytest.mark.heavy), 2])
def test_a_run_leaves_equal_values_in_every_file(nproc: int, tmp_path: Path) -> None:
    """Every key of the run is in metrics.jsonl and, as float32, in the event file."""
    output = run_demo(tmp_path, "--nproc", str(nproc), "--epochs", "2")
    run_dir = tmp_path / "run"
    records = report.read_records(run_dir)
    last_step = 2 * STEPS_PER_EPOCH[nproc] - 1
    training, held_out = report.last_values(records, None), report.last_values(records, "val")
    keys = {"loss", "accuracy", "num_samples", "num_correct", "lr", "grad_norm"}
    assert keys | {"samples_per_second"} <= set(training)
    assert training["num_samples"] == (last_step, nproc * 64)
    assert held_out["num_samples"] == (last_step, HELD_OUT)
    assert held_out["accuracy"][1] == held_out["num_correct"][1] / HELD_OUT  # type: ignore[operator]
    assert {record.world_size for record in records} == {nproc}

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    for record in records:
        for key, value in record.values.items():
            written = {event.step: event.value for event in events.Scalars(key)}
            assert written[record.step] == pytest.approx(value, rel=1e-7)
    assert list((run_dir / "wandb").rglob("*.wandb"))
    assert (run_dir / "model.pt").exists()
    assert "run/tensorboard" in output
    assert " sync run/wandb/" in output


@pytest.mark.heavy
def test_every_world_size_gives_the_same_bits(tmp_path: Path) -> None:
    """One evaluation at 1, 2, 3 and 4 ranks is one evaluation."""
    output = run_demo(tmp_path, "--epochs", "1", "--world-sizes", "1,2,3,4")
    assert "identical bits at world sizes 1, 2, 3, 4" in output
    assert "differs" not in output
    runs = [report.read_records(tmp_path / "run" / f"world-size-{n}") for n in (1, 2, 3, 4)]
    for (record,) in runs:
        assert record.values["num_samples"] == HELD_OUT
    naive = {record.values["mean of the ranks' mean losses"] for (record,) in runs}
    assert len(naive) > 1, "what is compared with must show that the split matters"
