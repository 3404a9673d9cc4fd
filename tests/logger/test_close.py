"""The end: `close`, the context manager, exits with and without an error."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import distmetrics as dm
from distmetrics.errors import DistmetricsError
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.logger.ranks import records, values


def test_close_writes_what_is_open_and_waits_for_the_others() -> None:
    """After it, every record is in every sink."""
    memory = MemorySink()

    def rank() -> None:
        logger = dm.Logger(sinks=[memory] if dm.get_rank() == 0 else [], every=10)
        for step in range(15):
            logger.log({"n": dm.Count(1)}, step=step)
        logger.close()
        if dm.get_rank() == 0:
            assert values(memory.records) == [{"n": 3}, {"n": 3}]

    run_ranks_in_process(rank, 3)


def test_close_may_be_called_again() -> None:
    """It is idempotent, also inside `with`, and returns at once."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=0)
        for _ in range(3):
            logger.close()

    assert values(records(2, train)) == [{"n": 2}]


def test_a_closed_logger_takes_nothing_more() -> None:
    """Each call says that the logger is closed; what is known stays readable."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        logger.log({"n": dm.Count(1)}, step=0)
        logger.close()
        for call in (
            lambda: logger.log({"n": dm.Count(1)}),
            lambda: val.log({"n": dm.Count(1)}),
            logger.flush,
            lambda: val.flush(wait=True),
            lambda: logger.reduce({"n": dm.Count(1)}),
        ):
            with pytest.raises(DistmetricsError, match="this logger is closed"):
                call()
        assert logger.latest == {"n": 2}
        assert logger.stats()["queued"] == 0

    assert values(records(2, train)) == [{"n": 2}]


def test_a_rank_that_closes_early_takes_part_until_the_others_have() -> None:
    """Records of the ranks that train on are complete and come while they do."""
    memory = MemorySink()
    barrier = threading.Barrier(2)

    def rank() -> None:
        logger = dm.Logger(sinks=[memory] if dm.get_rank() == 0 else [])
        for step in range(3):
            logger.log({"n": dm.Count(1)}, step=step)
        if dm.get_rank() == 0:
            closer = threading.Thread(target=logger.close)
            closer.start()
            barrier.wait(20)
            closer.join(20)
            assert not closer.is_alive()
        else:
            for step in range(3, 6):
                logger.log({"n": dm.Count(1)}, step=step)
            assert logger.flush(wait=True) == {"n": 1}
            barrier.wait(20)
            logger.close()

    run_ranks_in_process(rank, 2)
    assert [(r.step, r.values["n"]) for r in memory.records] == [
        *((step, 2) for step in range(3)),
        *((step, 1) for step in range(3, 6)),
    ]


def test_a_close_with_a_timeout_leaves_and_says_what_is_missing() -> None:
    """The windows that the others have not passed are not reduced, and are counted."""
    left = threading.Event()

    def rank() -> None:
        logger = dm.Logger()
        logger.log({"n": dm.Count(1)}, step=0)
        if dm.get_rank() == 0:
            with pytest.warns(dm.DistmetricsWarning, match=r"close\(timeout=0.5\).*1 closed"):
                logger.close(timeout=0.5)
            left.set()
        else:
            assert left.wait(20)
            logger._core.leave()

    run_ranks_in_process(rank, 2)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_leaves_the_context_unchanged_and_soon(error: BaseException) -> None:
    """Even where another rank never comes, the exception gets out within seconds."""
    waiting = threading.Barrier(2)

    def rank() -> None:
        logger = dm.Logger()
        logger.log({"n": dm.Count(1)}, step=0)
        if dm.get_rank() == 1:
            waiting.wait(20)
            logger._core.leave()
            return
        began = time.monotonic()
        with pytest.raises(type(error)) as caught, logger:
            raise error
        assert caught.value is error
        assert caught.value.__context__ is None
        assert time.monotonic() - began < 5
        waiting.wait(20)

    run_ranks_in_process(rank, 2)


def test_an_error_on_every_rank_still_writes_what_was_logged() -> None:
    """Where all leave together, the rounds that are left take place."""
    memory = MemorySink()

    def train() -> None:
        with dm.Logger(sinks=[memory] if dm.get_rank() == 0 else [], every=10) as logger:
            for step in range(12):
                logger.log({"n": dm.Count(1)}, step=step)
            print(1 / 0)

    def rank() -> None:
        with pytest.raises(ZeroDivisionError):
            train()

    run_ranks_in_process(rank, 2)
    assert [record.step for record in memory.records] == [9, 11]


def run_script(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """A training script in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_script_that_never_closes_still_writes_all(tmp_path: Path) -> None:
    """What is open is written at exit."""
    script = (
        "import sys, distmetrics as dm\n"
        "logger = dm.Logger(run_dir=sys.argv[1], every=10)\n"
        "for step in range(25): logger.log({'n': dm.Count(1)}, step=step)\n"
    )
    result = run_script(script, tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [dm.Record.from_json(line).step for line in lines] == [9, 19, 24]


def test_a_script_that_exits_or_fails_still_writes_all(tmp_path: Path) -> None:
    """So does `sys.exit`, and an exception that nobody catches."""
    for number, (end, code) in enumerate((("sys.exit(4)", 4), ("1 / 0", 1))):
        script = (
            "import sys, distmetrics as dm\n"
            "logger = dm.Logger(run_dir=sys.argv[1] + sys.argv[2])\n"
            f"for step in range(5): logger.log({{'n': dm.Count(1)}}, step=step)\n{end}\n"
        ).replace("sys.argv[2]", repr(str(number)))
        result = run_script(script, tmp_path)
        assert result.returncode == code
        assert ("ZeroDivisionError" in result.stderr) is (code == 1)
        lines = (tmp_path / f"run{number}" / "metrics.jsonl").read_text().splitlines()
        assert len(lines) == 5


def test_a_forked_child_process_leaves_its_parents_logger_alone(tmp_path: Path) -> None:
    """What a data loader's worker that inherits it logs goes nowhere, and it closes nothing."""
    script = (
        "import os, sys, distmetrics as dm\n"
        "logger = dm.Logger(run_dir=sys.argv[1])\n"
        "logger.log({'n': dm.Count(1)}, step=0)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    logger.log({'n': dm.Count(1)}, step=1)\n"
        "    logger.close()\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n"
        "logger.log({'n': dm.Count(1)}, step=1)\n"
        "logger.close()\n"
    )
    result = run_script(script, tmp_path)
    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [dm.Record.from_json(line).step for line in lines] == [0, 1]
