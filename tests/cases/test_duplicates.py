"""One run is written once, whatever the number of processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import distmetrics as dm
from distmetrics.sinks import Run
from distmetrics.testing import MemorySink, run_ranks


def test_one_process_opens_the_tracker(tmp_path: Path) -> None:
    """Every rank may make the same logger: one run folder, one event file, one line a step."""

    class Tracker(MemorySink):
        def open(self, run: Run) -> None:
            super().open(run)
            (tmp_path / f"opened-by-{dm.get_rank()}").touch()

    def rank() -> Any:
        with dm.Logger(run_dir=tmp_path / "run", sinks=["tensorboard", Tracker()]) as logger:
            for step in range(3):
                logger.log({"n": dm.Count(1)}, step=step)
                logger.flush(step)
            return logger.flush(wait=True)

    assert run_ranks(rank, 4, timeout=50) == [{"n": 4}] * 4
    assert {path.name for path in tmp_path.iterdir()} == {"run", "opened-by-0"}
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [dm.Record.from_json(line) for line in lines]
    assert [(record.step, record.values) for record in records] == [
        (step, {"n": 4}) for step in range(3)
    ]


def test_flushing_again_writes_nothing_twice(tmp_path: Path) -> None:
    """Each window is one line, however often it is flushed and by whom."""

    def rank() -> None:
        with dm.Logger(run_dir=tmp_path / "run") as logger:
            for step in range(3):
                logger.log({"n": dm.Count(1)}, step=step)
                for _ in range(dm.get_rank() + 1):
                    logger.flush(step)
            logger.flush(wait=True)
            logger.close()

    run_ranks(rank, 2, timeout=50)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [dm.Record.from_json(line).step for line in lines] == [0, 1, 2]
