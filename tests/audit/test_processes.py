"""Running commands without leaving anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distmetrics.audit.processes import MARK, Outcome, run_command

SLEEPER = "import time; print('up', flush=True); time.sleep(600)"
DETACHED = (
    "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {child!r}], "
    "start_new_session=True); print(child.pid, flush=True); "
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPER


def run(folder: Path, script: str, **options: object) -> Outcome:
    """How a Python script ended; its output is in `out.log`."""
    settings = {"timeout": 60.0, "environment": dict(os.environ)} | options
    return run_command(
        [sys.executable, "-c", script],
        output=folder / "out.log",
        folder=folder,
        **settings,  # type: ignore[arg-type]
    )


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def first_number(folder: Path) -> int:
    """The first number that the command printed."""
    return int((folder / "out.log").read_text().split()[0])


def test_exit_status_and_output_are_kept(tmp_path: Path) -> None:
    """Both streams are in the file."""
    outcome = run(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)")
    assert outcome.returncode == 3
    assert not outcome.good
    assert (tmp_path / "out.log").read_text().split() == ["one", "two"]


def test_a_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    """Children in sessions of their own end too, also those that ignore SIGTERM."""
    script = DETACHED.format(child=SLEEPER) + SLEEPER
    begin = time.monotonic()
    outcome = run(tmp_path, script, timeout=2.0)
    assert outcome.timed_out
    assert not outcome.good
    assert not alive(first_number(tmp_path))
    assert time.monotonic() - begin < 30


def test_what_outlives_its_parent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper may go on for a while after the command; then it is ended."""
    monkeypatch.setattr("distmetrics.audit.processes._LINGER", 1.0)
    outcome = run(tmp_path, DETACHED.format(child=SLEEPER))
    assert outcome.good
    assert not alive(first_number(tmp_path))


@pytest.mark.heavy
def test_the_stubborn_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ignores SIGTERM gets SIGKILL."""
    monkeypatch.setattr("distmetrics.audit.processes._GRACE", 1.0)
    outcome = run(tmp_path, f"import os; print(os.getpid(), flush=True); {STUBBORN}", timeout=1.5)
    assert outcome.timed_out
    assert not alive(first_number(tmp_path))


def test_it_stops_when_it_has_seen_enough(tmp_path: Path) -> None:
    """`until` ends a command, which then counts as good."""
    outcome = run(tmp_path, SLEEPER, until=lambda: (tmp_path / "out.log").stat().st_size > 0)
    assert outcome.stopped
    assert outcome.good


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_no_child_outlives_the_audit(tmp_path: Path, number: signal.Signals) -> None:
    """Whatever ends the audit's own process ends what it runs."""
    inner = f"import os; print(os.getpid(), flush=True); {SLEEPER}"
    script = (
        "import os, sys, pathlib\n"
        "from distmetrics.audit.processes import run_command\n"
        f"run_command([sys.executable, '-c', {inner!r}], output=pathlib.Path('out.log'), "
        "folder=pathlib.Path(), environment=dict(os.environ), timeout=100)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment.pop(MARK, None)
    audit = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
    )
    try:
        pid = _wait_for(lambda: first_number(tmp_path))
        audit.send_signal(number)
        audit.wait(20)
        _wait_for(lambda: not alive(pid) or None)
    finally:
        audit.kill()
        audit.wait()


def _wait_for(look: object) -> int:
    """What a function returns as soon as it returns something; fails after 20 seconds."""
    assert callable(look)
    limit = time.monotonic() + 20
    while time.monotonic() < limit:
        try:
            found = look()
        except (OSError, IndexError, ValueError):
            found = None
        if found is not None:
            return int(found)
        time.sleep(0.05)  # polling what another process does
    pytest.fail("nothing came in 20 seconds")
