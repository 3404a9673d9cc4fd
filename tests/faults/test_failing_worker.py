"""A worker that fails by a fault of its own, in either of its threads: like a lost rank."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.spool.merge import merge
from distmetrics.testing import run_ranks_in_process
from distmetrics.window.labels import step_of
from distmetrics.window.stream import Stream, Window
from tests.faults import work

FAULTY = 5
"""The first step whose window cannot be folded."""
LAST = 1000
"""The last step of all ranks."""


class _Fault:
    """Lets windows from `FAULTY` on be lost by an error in one thread of a worker."""

    def __init__(self, thread: str) -> None:
        self._thread = thread
        self.reached = threading.Event()

    def plant(self, logger: dm.Logger) -> None:
        """In the worker of this logger."""
        stream: Any = logger._core._parts.streams._streams[""]

        def take_closed() -> Mapping[int, Window]:
            found = Stream.take_closed(stream)
            faulty = any(step_of(label) >= FAULTY for label in found)
            if faulty and threading.current_thread().name == self._thread:
                self.reached.set()
                raise ArithmeticError("a planted fault")
            return found

        stream.take_closed = take_closed


def _train(run_dir: Path, fault: _Fault, spool: bool) -> float:
    """Ranks log the same steps; on rank 1 the worker fails. Seconds that `close` took."""
    logger = dm.Logger(run_dir=run_dir, spool=spool, peer_timeout=20)
    logger.log({"n": dm.Count(1)}, step=0)
    logger.flush(wait=True)
    if dm.get_rank() == 1:
        fault.plant(logger)
    step = 1
    while step < LAST and not fault.reached.wait(0.001):
        logger.log({"n": dm.Count(1)}, step=step)
        step += 1
    assert fault.reached.wait(20)
    for rest in range(step, LAST + 1):
        logger.log({"n": dm.Count(1)}, step=rest)
    began = time.monotonic()
    logger.close()
    return time.monotonic() - began


def _warned_of(run_dir: Path, thread: str, spool: bool) -> list[str]:
    """What the ranks of `_train` were warned of; no `close` waited long."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fault = _Fault(thread)
        seconds = run_ranks_in_process(_train, 3, run_dir, fault, spool, timeout=60)
    assert max(seconds) < 15
    return [str(warning.message) for warning in caught]


@pytest.mark.parametrize(
    "thread", ["distmetrics-spool", pytest.param("distmetrics", marks=pytest.mark.heavy)]
)
def test_a_worker_that_fails_ends_as_a_lost_rank(tmp_path: Path, thread: str) -> None:
    """It is told once, nobody waits for it, and no record lacks its part in silence."""
    run_dir = tmp_path / "run"
    texts = _warned_of(run_dir, thread, spool=True)
    (ended,) = [text for text in texts if "worker ended" in text]
    assert "the logger's worker ended: ArithmeticError: a planted fault; the training" in ended
    assert "what it has logged after step " in ended
    assert 1 <= sum("rank 1 is lost" in text for text in texts) <= 2
    kept = int(ended.split("after step ")[1].split()[0])
    merge(run_dir)
    rows = work.rows_of(run_dir)
    assert [row.step for row in rows] == list(range(kept + 1))
    assert all(row.values == {"n": 3} for row in rows)
    merge(run_dir, partial=True)
    rest = work.rows_of(run_dir)[kept + 1 :]
    assert [row.step for row in rest] == list(range(kept + 1, LAST + 1))
    assert {(row.values["n"], *row.missing_ranks) for row in rest} == {(2, 1)}


@pytest.mark.heavy
def test_without_a_spool_it_says_that_all_is_lost(tmp_path: Path) -> None:
    """There is only one thread then."""
    texts = _warned_of(tmp_path / "run", "distmetrics", spool=False)
    (ended,) = [text for text in texts if "worker ended" in text]
    assert "what is not written is lost, for want of a spool" in ended
    assert all(row.values == {"n": 3} for row in work.rows_of(tmp_path / "run"))
