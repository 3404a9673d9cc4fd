"""SIGTERM, SIGINT and errors that end a program: what was logged is kept, and nobody waits."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.spool.merge import merge
from distmetrics.testing import run_ranks_in_process
from tests.comm.forks import by_hand
from tests.faults import work
from tests.faults.programs import Program
from tests.faults.ranks import Life, Rank, ranks


def _logger(run_dir: Path, **options: Any) -> dm.Logger:
    """A logger whose five first steps are flushed, and that has one more open."""
    registry = dm.Registry()
    registry.count("n")
    logger = dm.Logger(registry, run_dir=run_dir, every=10, **options)
    for step in range(5):
        logger.log({"n": step}, step=step)
        logger.flush()
    logger.log({"n": 5}, step=5)
    return logger


def _counts(run_dir: Path) -> list[tuple[int, Any]]:
    return [(row.window, row.values["n"]) for row in work.rows_of(run_dir)]


def _signalled(rank: Rank, number: signal.Signals) -> tuple[int, float]:
    """How a process ends by a signal that is sent once it is ready: its code, and in how long."""
    rank.expect("ready")
    at = rank.send(number)
    return rank.end(), time.monotonic() - at


def _wait(life: Life, run_dir: Path, handle_sigterm: bool) -> None:
    logger = _logger(run_dir, handle_sigterm=handle_sigterm)
    if not handle_sigterm:
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        while logger.stats()["spooled_step"] < 4:
            time.sleep(0.001)
    life.say("ready")
    time.sleep(60)


def test_sigterm_is_minded_on_request(tmp_path: Path) -> None:
    """What was flushed and what was open is written, and the process ends by the signal."""
    run_dir = tmp_path / "run"
    with ranks(1, _wait, run_dir, True) as (rank,):
        code, seconds = _signalled(rank, signal.SIGTERM)
    assert code == -signal.SIGTERM
    assert seconds < 5
    assert _counts(run_dir) == [*((step, step) for step in range(5)), (9, 5)]
    assert not (run_dir / "spool").exists()


def test_without_the_request_sigterm_does_what_it_does(tmp_path: Path) -> None:
    """No handler is set; what had been spooled is merged."""
    run_dir = tmp_path / "run"
    with ranks(1, _wait, run_dir, False) as (rank,):
        code, _ = _signalled(rank, signal.SIGTERM)
    assert code == -signal.SIGTERM
    merge(run_dir)
    assert _counts(run_dir) == [(step, step) for step in range(5)]


def _go_on(life: Life, run_dir: Path) -> list[tuple[int, Any]]:
    """The rows when the handler of before is called, after which logging goes on."""
    rows: list[tuple[int, Any]] = []

    def before(number: int, frame: object) -> None:
        rows.extend(_counts(run_dir))

    signal.signal(signal.SIGTERM, before)
    logger = _logger(run_dir, handle_sigterm=True)
    life.say("ready")
    life.hear("sent")
    while not rows:
        time.sleep(0.001)
    logger.log({"n": 20}, step=20)
    logger.close()
    assert signal.getsignal(signal.SIGTERM) is before
    return rows


def test_sigterm_goes_on_to_the_handler_of_before(tmp_path: Path) -> None:
    """All that was logged is written before it runs; logging goes on, and it is restored."""
    run_dir = tmp_path / "run"
    with ranks(1, _go_on, run_dir) as (rank,):
        rank.expect("ready")
        rank.send(signal.SIGTERM)
        rank.tell("sent")
        assert rank.result() == [(step, step) for step in range(6)]
    assert _counts(run_dir) == [*((step, step) for step in range(6)), (29, 20)]


def _close_alone(life: Life, run_dir: Path) -> None:
    """Rank 1 gets SIGTERM while rank 0 trains on."""
    logger = _logger(run_dir, handle_sigterm=life.rank == 1)
    logger.flush(wait=True)
    life.say("ready")
    if life.rank == 1:
        time.sleep(60)
    life.hear("go on")
    logger.log({"n": 7}, step=17)
    logger.close()


def test_sigterm_of_one_rank_waits_for_nobody(tmp_path: Path) -> None:
    """It ends within seconds; what it had logged is spooled, and the others' too."""
    run_dir = tmp_path / "run"
    with ranks(2, _close_alone, run_dir) as (writer, ended):
        writer.expect("ready")
        code, seconds = _signalled(ended, signal.SIGTERM)
        assert code == -signal.SIGTERM
        assert seconds < 5
        writer.tell("go on")
        writer.result()
    merge(run_dir)
    rows = _counts(run_dir)
    assert rows[:6] == [(step, 2 * step) for step in range(6)]
    assert rows[6:] == [(19, 7)]


def _log_in_threads(life: Life, run_dir: Path) -> str:
    """Four threads log until the program is interrupted; what came of it."""
    registry = dm.Registry()
    registry.count("n")
    logger = dm.Logger(registry, run_dir=run_dir)
    children = [logger.child(f"t{i}", every=1) for i in range(4)]
    stop = threading.Event()

    def log(child: dm.Child) -> None:
        step = 0
        while not stop.wait(0.001):
            try:
                child.log({"n": 1}, step=step)
                child.flush()
            except dm.DistmetricsError:
                return  # it was closed
            step += 1

    threads = [threading.Thread(target=log, args=(child,)) for child in children]
    try:
        with logger:
            for thread in threads:
                thread.start()
            while len(logger.latest) < 4:
                time.sleep(0.01)
            life.say("ready")
            for thread in threads:
                thread.join()
    except KeyboardInterrupt:
        return "interrupted"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return "not interrupted"


def test_an_interrupt_while_threads_log_passes_unchanged(tmp_path: Path) -> None:
    """Within seconds, as KeyboardInterrupt; what was flushed before is there, in order."""
    run_dir = tmp_path / "run"
    with ranks(1, _log_in_threads, run_dir) as (rank,):
        rank.expect("ready")
        at = rank.send(signal.SIGINT)
        said = rank.expect("result")
        assert said.data == "interrupted"
        assert said.at - at < 5
    rows = work.rows_of(run_dir)
    for child in ("t0", "t1", "t2", "t3"):
        steps = [row.step for row in rows if row.logger == child]
        assert steps
        assert steps == list(range(len(steps)))


def test_sigterm_needs_the_main_thread() -> None:
    """Elsewhere Python handles no signals: an error says so before anything is made."""

    def make() -> None:
        with pytest.raises(InvalidValue, match="handle_sigterm=True in a thread"):
            dm.Logger(handle_sigterm=True)

    run_ranks_in_process(make, 1)


FAILS = """
import atexit
raised = None
atexit.register(lambda: raised and say(time.monotonic() - raised))  # after the logger's
dm.setup_distributed("gloo", timeout=60)
logger = dm.Logger(registry, run_dir=run_dir)
for step in range(5):
    logger.log({"n": 1}, step=step)
logger.flush(wait=True)
if dm.get_rank() == 1:
    logger.log({"n": 1}, step=5)
    raised = time.monotonic()
    raise ValueError("mine")
say("ready")
sys.stdin.readline()
logger.log({"n": 1}, step=5)
logger.close()
"""


@pytest.mark.heavy
def test_an_error_ends_a_program_that_never_closes(tmp_path: Path) -> None:
    """It passes as it is, though the other rank trains on; its last window is merged."""
    run_dir = tmp_path / "run"
    writer, fails = (
        Program(FAILS, run_dir, environ, f".{rank}") for rank, environ in enumerate(by_hand(2))
    )
    try:
        writer.expect("ready")
        ended = fails.end()
        assert ended.code == 1
        assert float(ended.output) < 5
        assert "ValueError: mine" in ended.errors
        assert "DistmetricsWarning" not in ended.errors
        writer.tell()
        assert writer.end().code == 0
    finally:
        writer.stop()
        fails.stop()
    merge(run_dir)
    assert _counts(run_dir) == [(step, 2) for step in range(6)]
