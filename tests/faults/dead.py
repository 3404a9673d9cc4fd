"""Runs that ended before anything was written: all they have is their spools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import distmetrics as dm
from distmetrics.rundir import METRICS
from distmetrics.testing import run_ranks_in_process
from distmetrics.worker.writer import Writer
from tests.faults import work
from tests.faults.train import logger_of


def dead_run(
    run_dir: Path,
    world_size: int,
    steps: int,
    spool_dirs: Callable[[int], Path] | None = None,
    **options: Any,
) -> list[bytes]:
    """Train; afterwards the spools hold all windows and no row is written. The rows there were."""

    def train() -> None:
        rank = dm.get_rank()
        own = {} if spool_dirs is None else {"spool_dir": spool_dirs(rank)}
        with logger_of(run_dir, **own, **options) as logger:
            for step in range(steps):
                logger.log(work.outputs(rank, step), step=step)

    with mock.patch.object(Writer, "committed", False):  # nobody forgets what is not committed
        run_ranks_in_process(train, world_size)
    lines = (run_dir / METRICS).read_bytes().splitlines(keepends=True)
    (run_dir / METRICS).unlink()
    return lines


def spools(folder: Path, rank: int) -> list[Path]:
    """The segments of a rank's spool, in order."""
    return sorted(folder.glob(f"*.rank{rank:05d}.*.spool"))
