"""What a killed run had is written to its sinks again: TensorBoard and W&B are rebuilt."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distmetrics.cli import main
from distmetrics.errors import RunDirError
from tests.faults import work
from tests.faults.crash import crash
from tests.faults.dead import dead_run
from tests.sinks.wandb_log import read_wandb, wandb_files


def _points(folder: Path, key: str) -> list[tuple[int, float]]:
    (place,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(place), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(key)]


def test_tensorboard_and_wandb_are_rebuilt(tmp_path: Path) -> None:
    """Every merged record is in both, at its step, with its value."""
    run_dir = tmp_path / "run"
    crash(run_dir, 2, 0.4, 0.005, random.Random(0))
    rows = work.rows_of(run_dir)
    command = ["replay", str(run_dir), "--sink", "tensorboard", "--sink", "wandb"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    assert f"{len(rows)} records written to tensorboard" in done.output
    for key in ("loss", "seen", "worst"):
        want = [(row.step, float(np.float32(row.values[key]))) for row in rows]
        assert _points(run_dir / "replay", key) == want
    (file,) = wandb_files(run_dir / "replay")
    logged = [(row["step"], row["loss"]) for row in read_wandb(file).rows]
    assert logged == [(row.step, row.values["loss"]) for row in rows]


def test_a_replay_does_not_mix_with_what_is_there(tmp_path: Path) -> None:
    """A second one needs a folder of its own; the run's own files are as they were."""
    run_dir = tmp_path / "run"
    lines = dead_run(run_dir, 1, 20)
    (run_dir / "metrics.jsonl").write_bytes(b"".join(lines))
    before = (run_dir / "metrics.jsonl").read_bytes()
    command = ["replay", str(run_dir), "--sink", "tensorboard"]
    assert CliRunner().invoke(main, command).exit_code == 0
    again = CliRunner().invoke(main, command)
    assert isinstance(again.exception, RunDirError | SystemExit)
    assert again.exit_code != 0
    other = CliRunner().invoke(main, [*command, "--out", str(tmp_path / "other")])
    assert other.exit_code == 0, other.output
    assert _points(tmp_path / "other", "loss") == _points(run_dir / "replay", "loss")
    assert (run_dir / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("damage", [b'{"step": 3, "val', b"not a row\n", b"\x00" * 100])
def test_lines_that_are_no_records_are_left_out(tmp_path: Path, damage: bytes) -> None:
    """Wherever they are: the others are replayed."""
    run_dir = tmp_path / "run"
    lines = dead_run(run_dir, 1, 20)
    (run_dir / "metrics.jsonl").write_bytes(b"".join(lines[:5]) + damage + b"\n" + lines[5])
    done = CliRunner().invoke(main, ["replay", str(run_dir), "--sink", "tensorboard"])
    assert done.exit_code == 0, done.output
    assert [step for step, _ in _points(run_dir / "replay", "loss")] == [1, 3, 5, 7, 9, 11]
