"""The memory that flushes cost a process of its own: ``python -m tests.faults.memory N [DIR]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import distmetrics as dm


def resident() -> int:
    """The process's memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def flush_often(flushes: int, run_dir: Path | None) -> tuple[int, int]:
    """How many bytes the process grows by in so many flushes, after some to warm up; all steps."""
    registry = dm.Registry()
    registry.count("n")
    registry.average("loss")
    logger = dm.Logger(registry, run_dir=run_dir)
    step, sizes = 0, []
    for count in (max(flushes // 4, 4_000), flushes):
        for _ in range(count):
            logger.log({"n": 1, "loss": 0.5}, step=step)
            logger.flush()
            step += 1
        logger.flush(wait=True)
        sizes.append(resident())
    logger.close()
    return sizes[1] - sizes[0], step


if __name__ == "__main__":
    print(*flush_often(int(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
