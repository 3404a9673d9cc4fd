"""SIGTERM, SIGINT and errors that end a program: what was logged is kept, and nobody waits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.spool.merge import merge
from distmetrics.testing import run_ranks_in_process
from tests.comm.forks import by_hand
from tests.faults import work
from tests.faults.programs import Program, programs

FLUSHES = """
for step in range(5):
    logger.log({"n": step}, step=step)
    logger.flush()
"""
TEXTS = {
    "minded": f"""
logger = dm.Logger(registry, run_dir=run_dir, every=10, handle_sigterm=True)
{FLUSHES}
logger.log({{"n": 5}}, step=5)
say("ready")
time.sleep(60)
""",
    "chained": f"""
def before(number, frame):
    say("mine")
signal.signal(signal.SIGTERM, before)
logger = dm.Logger(registry, run_dir=run_dir, every=10, handle_sigterm=True)
{FLUSHES}
logger.log({{"n": 5}}, step=5)
say("ready")
sys.stdin.readline()
rows = open(os.path.join(run_dir, "metrics.jsonl")).read().count(chr(10))
say(f"rows {{rows}}")
logger.log({{"n": 20}}, step=20)
logger.close()
assert signal.getsignal(signal.SIGTERM) is before
say("closed")
""",
    "ignored": f"""
logger = dm.Logger(registry, run_dir=run_dir, every=10)
assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
{FLUSHES}
while logger.stats()["spooled_step"] < 4:
    time.sleep(0.001)
say("ready")
time.sleep(60)
""",
    "interrupted": """
logger = dm.Logger(registry, run_dir=run_dir, every=1)
children = [logger.child(f"t{i}", every=1) for i in range(4)]
logger.log({"n": 1}, step=0)
logger.flush(wait=True)
stop = threading.Event()

def work(child):
    for step in range(1_000_000):
        if stop.wait(0.001):
            return
        try:
            child.log({"n": 1}, step=step)
            child.flush()
        except dm.DistmetricsError:
            return  # it was closed

threads = [threading.Thread(target=work, args=(child,)) for child in children]
with logger:
    for thread in threads:
        thread.start()
    while logger.latest.get("t3/n") is None:
        time.sleep(0.01)
    say("ready")
    try:
        for thread in threads:
            thread.join()
    finally:
        stop.set()
""",
}


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
    say("raises")
    sys.stdin.readline()
    raised = time.monotonic()
    raise ValueError("mine")
say("ready")
sys.stdin.readline()
logger.log({"n": 1}, step=5)
logger.close()
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Program]]:
    """All programs of this file, started together."""
    folder = tmp_path_factory.mktemp("signals")
    with programs(TEXTS, folder) as started:
        for rank, environ in enumerate(by_hand(2)):
            started[f"fails{rank}"] = Program(FAILS, folder / "fails", environ, f".{rank}")
        try:
            yield started
        finally:
            for rank in range(2):
                started[f"fails{rank}"].stop()


def _counts(run_dir: Path) -> list[tuple[int, int]]:
    return [(row.window, row.values["n"]) for row in work.rows_of(run_dir)]


def test_sigterm_is_minded_on_request(running: dict[str, Program]) -> None:
    """What was flushed and what was open is written, and the process ends by the signal."""
    program = running["minded"]
    program.expect("ready")
    program.send(signal.SIGTERM)
    ended = program.end()
    assert ended.code == -signal.SIGTERM
    assert ended.seconds < 5
    assert _counts(program.run_dir) == [*((step, step) for step in range(5)), (9, 5)]
    assert not (program.run_dir / "spool").exists()


def test_sigterm_goes_on_to_the_handler_of_before(running: dict[str, Program]) -> None:
    """All that was logged is written before it runs; logging goes on, and it is restored."""
    program = running["chained"]
    program.expect("ready")
    program.send(signal.SIGTERM)
    program.expect("mine")
    program.tell()
    program.expect("rows 6")
    program.expect("closed")
    ended = program.end()
    assert ended.code == 0, ended.errors
    assert _counts(program.run_dir) == [*((step, step) for step in range(6)), (29, 20)]


def test_without_the_request_sigterm_does_what_it_does(running: dict[str, Program]) -> None:
    """No handler is set; what had been spooled is merged."""
    program = running["ignored"]
    program.expect("ready")
    program.send(signal.SIGTERM)
    assert program.end().code == -signal.SIGTERM
    merge(program.run_dir)
    assert _counts(program.run_dir) == [(step, step) for step in range(5)]


def test_an_interrupt_while_threads_log_ends_the_program(running: dict[str, Program]) -> None:
    """Within seconds, by KeyboardInterrupt; what was flushed before is readable."""
    program = running["interrupted"]
    program.expect("ready")
    program.send(signal.SIGINT)
    ended = program.end()
    assert ended.code == -signal.SIGINT
    assert ended.seconds < 5
    assert "KeyboardInterrupt" in ended.errors
    merge(program.run_dir)
    rows = work.rows_of(program.run_dir)
    assert {row.logger for row in rows} == {None, "t0", "t1", "t2", "t3"}
    for child in ("t0", "t1", "t2", "t3"):
        steps = [row.step for row in rows if row.logger == child]
        assert steps == list(range(len(steps)))


def test_sigterm_needs_the_main_thread() -> None:
    """Elsewhere Python handles no signals: an error says so before anything is made."""

    def make() -> None:
        with pytest.raises(InvalidValue, match="handle_sigterm=True in a thread"):
            dm.Logger(handle_sigterm=True)

    run_ranks_in_process(make, 1)


def test_an_error_ends_a_program_that_never_closes(running: dict[str, Program]) -> None:
    """It passes as it is, though the other rank trains on; its last window is merged."""
    writer, fails = running["fails0"], running["fails1"]
    writer.expect("ready")
    fails.expect("raises")
    fails.tell()
    ended = fails.end()
    assert ended.code == 1
    assert float(ended.output) < 5
    assert "ValueError: mine" in ended.errors
    assert "DistmetricsWarning" not in ended.errors
    writer.tell()
    assert writer.end().code == 0
    merge(writer.run_dir)
    assert _counts(writer.run_dir) == [(step, 2) for step in range(6)]
