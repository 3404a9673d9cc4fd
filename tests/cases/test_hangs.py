"""What makes other tools hang, and what it gives here; also who is told of what."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import run_ranks, run_ranks_in_process
from tests.cases.rows import row, rows


def test_a_key_on_one_rank_waits_for_nobody() -> None:
    """The other logs nothing; with the roles swapped at each step."""
    first = [{"m": 0.1, "step": 0}, {"step": 1}, {"m": 0.3, "step": 2}]
    second = [{"step": 0}, {"m": 0.2, "step": 1}, {"step": 2}]
    began = time.monotonic()
    assert rows(first, second) == [{"m": 0.1}, {"m": 0.2}, {"m": 0.3}]
    assert time.monotonic() - began < 5


def test_logging_inside_a_rank_check_is_local() -> None:
    """Only calls that are marked so need all ranks, and they name who did not come."""
    barrier = threading.Barrier(3)

    def rank() -> None:
        with dm.Logger(peer_timeout=1) as logger:
            logger.log({"n": dm.Count(1)}, step=3)
            if dm.get_rank() == 0:
                logger.log({"extra": dm.Count(1)}, step=3)
            assert logger.flush(3, wait=True) == {"n": 3, "extra": 1}
            if dm.get_rank() == 0:
                with pytest.raises(dm.PeerTimeoutError) as caught:
                    logger.flush(3, wait=True)
                assert caught.value.ranks == (1, 2)
                assert "ranks 1 and 2" in str(caught.value)
            barrier.wait(20)

    run_ranks_in_process(rank, 3)


def test_ranks_may_run_different_numbers_of_steps() -> None:
    """A rank that is done takes part without data, and both end."""
    first = [{"m": dm.Count(1), "step": step} for step in range(3)]
    assert rows(first, first[:2]) == [{"m": 2}, {"m": 2}, {"m": 1}]


def test_a_late_rank_is_named_with_step_and_key_or_waited_for() -> None:
    """On real processes: the error tells which rank, step and key; patience gives the value."""

    def rank(patience: float, arrive: float) -> str:
        with dm.Logger(peer_timeout=patience, notice_after=60) as logger:
            logger.log({"m": dm.Count(1)}, step=7)
            if dm.get_rank() == 1:
                time.sleep(arrive)  # what is slow here is the rank, not the test
            try:
                return str(logger.flush(wait=True))
            except dm.PeerTimeoutError as error:
                return str(error)

    text = run_ranks(rank, 2, 1.0, 2.5, timeout=40)[0]
    for part in ("rank 1", "step 7", "'m'", "flush(wait=True)"):
        assert part in text
    assert run_ranks(rank, 2, 20.0, 0.5, timeout=40) == ["{'m': 2}"] * 2


def test_a_key_that_some_ranks_lack_is_no_error() -> None:
    """Its value is that of the ranks that have it."""
    both = {"a": dm.Average(1.0), "b": dm.Average(3.0)}
    assert row([both], [{"a": dm.Average(4.0)}], [both]) == {"a": 2.0, "b": 3.0}


def test_ranks_that_differ_in_what_a_key_means_get_one_text() -> None:
    """With the key, both declarations and the ranks, the same on every rank."""
    texts: dict[int, str] = {}

    def rank() -> None:
        logger = dm.Logger()
        tag: Any = dm.Maximum if dm.get_rank() == 1 else dm.Count
        logger.log({"b": tag(1), "a": dm.Count(1)}, step=0)
        try:
            logger.close()
        except dm.DeclarationConflict as error:
            texts[dm.get_rank()] = str(error)

    run_ranks_in_process(rank, 3)
    assert set(texts) == {0, 1, 2}
    assert len(set(texts.values())) == 1
    assert (
        "key 'b' was declared in two ways: count() (ranks 0 and 2); maximum() (rank 1)"
        in (texts[0])
    )


def test_four_threads_may_log_at_once_and_be_interrupted(tmp_path: Path) -> None:
    """The process ends soon, and rows that were flushed before the signal can be read."""
    script = (
        "import sys, threading, time, distmetrics as dm\n"
        "logger = dm.Logger(run_dir=sys.argv[1], on_step_regress='accept')\n"
        "def work(k):\n"
        "    for i in range(100): logger.log({f'k{k}': dm.Count(1)}, step=i)\n"
        "threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "logger.flush(wait=True)\n"
        "print('flushed', flush=True)\n"
        "while True: logger.log({'more': dm.Count(1)}); time.sleep(0.001)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "flushed\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    records = [dm.Record.from_json(line) for line in lines]
    for k in range(4):
        assert sum(record.values.get(f"k{k}", 0) for record in records) == 100  # type: ignore[misc]


def test_a_sink_that_never_closes_does_not_keep_the_process(tmp_path: Path) -> None:
    """Two ranks end with a warning and exit code 0."""
    script = (
        "import threading, distmetrics as dm\n"
        "from distmetrics.testing import run_ranks\n"
        "class Stuck:\n"
        "    close_timeout = 0.5\n"
        "    def open(self, run): pass\n"
        "    def write(self, record): pass\n"
        "    def close(self): threading.Event().wait()\n"
        "def rank():\n"
        "    with dm.Logger(sinks=[Stuck()]) as logger: logger.log({'n': dm.Count(1)}, step=0)\n"
        "run_ranks(rank, 2)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("did not close within") == 1
