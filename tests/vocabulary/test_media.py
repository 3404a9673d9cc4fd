"""Media on rank 0: the sinks' own handles, used beside the worker."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.testing import run_ranks
from tests.sinks.wandb_log import read_wandb, wandb_files

STEPS = 40


def test_images_go_into_tensorboard_beside_the_records(tmp_path: Path) -> None:
    """Both ends of one event file, from two threads: nothing is lost or torn."""

    def train() -> None:
        with dm.Logger(run_dir=tmp_path / "run", sinks=["tensorboard"]) as logger:
            writer = logger.sink("tensorboard")
            assert (writer is None) == (dm.get_rank() > 0)
            for step in range(STEPS):
                logger.log({"loss": dm.Average(1.0)}, step=step)
                if writer is not None:
                    writer.add_image("sample", np.zeros((3, 4, 4), np.uint8), step)

    run_ranks(train, 2)
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), {"images": 0})
    events.Reload()
    assert [event.step for event in events.Images("sample")] == list(range(STEPS))
    assert [event.step for event in events.Scalars("loss")] == list(range(STEPS))
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_what_a_wandb_run_is_given_stands_beside_the_records(tmp_path: Path) -> None:
    """The real run, used from the training thread while the worker logs: every row is there."""
    with dm.Logger(run_dir=tmp_path, sinks=["wandb"]) as logger:
        run = logger.sink("wandb")
        run.summary["host"] = "here"
        for step in range(STEPS):
            logger.log({"loss": dm.Average(1.0)}, step=step)
            run.log({"picture": step, "at": step})
    (file,) = wandb_files(tmp_path)
    rows = read_wandb(file).rows
    assert [row["step"] for row in rows if "loss" in row] == list(range(STEPS))
    assert [row["at"] for row in rows if "picture" in row] == list(range(STEPS))


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_handle_is_one_whoever_asks_first(tmp_path: Path, name: str) -> None:
    """Several threads that ask before the first record, while it comes: one sink, one handle."""
    with dm.Logger(run_dir=tmp_path, sinks=[name]) as logger:
        found: list[object] = []
        threads = [
            threading.Thread(target=lambda: found.append(logger.sink(name))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        logger.log({"loss": dm.Average(1.0)}, step=0)
        logger.flush(wait=True)
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert None not in found
        assert len(set(map(id, found))) == 1
