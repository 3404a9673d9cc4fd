"""Runs all of whose ranks are killed at a random moment, and what must be left of them."""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import NamedTuple

from distmetrics.rundir import METRICS
from distmetrics.spool.merge import merge
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import logger_of


def relentless(life: Life, run_dir: Path, pace: float) -> None:
    """Train without end; say through which step all is on disk."""
    logger = logger_of(run_dir)
    spooled, step = -1, 0
    while True:
        logger.log(work.outputs(life.rank, step), step=step)
        if pace:
            time.sleep(pace)
        step += 1
        now = logger.stats()["spooled_step"]
        if now > spooled:
            spooled = now
            life.say("spooled", spooled)


class Crash(NamedTuple):
    """What was left of a run.

    Attributes:
        windows: how many all ranks had on disk.
        written: how many of these were in ``metrics.jsonl`` before the merge.
        lost: how many of these are missing after it.
        torn: whether the last line was torn.
    """

    windows: int
    written: int
    lost: int
    torn: bool


def crash(
    run_dir: Path, world_size: int, seconds: float, pace: float, draw: random.Random
) -> Crash:
    """Train, kill all ranks after so many seconds, merge, and check every row.

    Raises:
        AssertionError: a row is wrong, doubled, torn in the middle, or out of order.
    """
    with ranks(world_size, relentless, run_dir, pace) as started:
        for rank in started:
            rank.expect("spooled")
        time.sleep(seconds)
        for rank in draw.sample(started, world_size):
            rank.process.kill()
            time.sleep(draw.choice([0.0, 0.0, 0.002, 0.03]))
        for rank in started:
            with contextlib.suppress(AssertionError):  # it has ended, and does not say so
                rank.expect("end")
        safe = min(rank.last("spooled") for rank in started)
    path = run_dir / METRICS
    content = path.read_bytes() if path.exists() else b""
    before = {row.window for row in work.rows_of(run_dir)}
    merge(run_dir)
    for line in path.read_bytes().splitlines() if path.exists() else []:
        json.loads(line)
    rows = work.rows_of(run_dir)
    found = [row.window for row in rows]
    work.check_rows(rows, sorted(set(found)), world_size)
    assert not merge(run_dir).written
    wanted = set(work.labels(safe + 1))
    torn = bool(content) and not content.endswith(b"\n")
    return Crash(len(wanted), len(wanted & before), len(wanted - set(found)), torn)
