"""The launcher: errors of ranks are shown, and no process outlives it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distmetrics.demo import launch
from distmetrics.errors import DistmetricsError

ROOT = Path(__file__).parents[2]
CALL = """
import signal, sys
for number in (signal.SIGINT, signal.SIGHUP):  # a job in the background may be started without
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
from distmetrics.demo.launch import torchrun
torchrun(sys.argv[1], sys.argv[2:], nproc=2)
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket on loopback that ranks report to; it waits a minute at most."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def accept_ranks(server: socket.socket, number: int) -> list[socket.socket]:
    """The connections of all ranks, each of which is known to be running."""
    connections = [server.accept()[0] for _ in range(number)]
    for connection in connections:
        connection.settimeout(30)
        assert connection.recv(64).strip().isdigit()
    return connections


def test_a_failing_rank_shows_its_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The traceback of the rank that failed is printed, and the launcher raises."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with pytest.raises(DistmetricsError, match=r"failing_rank failed on 2 processes"):
        launch.torchrun("tests.demo.failing_rank", [], 2)
    assert "RuntimeError: planted fault in rank 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "options", "status"),
    [
        pytest.param(signal.SIGINT, [], -signal.SIGINT, marks=pytest.mark.heavy),
        pytest.param(signal.SIGTERM, [], 128 + signal.SIGTERM, marks=pytest.mark.heavy),
        (signal.SIGHUP, ["ignore"], 128 + signal.SIGHUP),
    ],
)
def test_no_rank_outlives_an_interrupted_launcher(
    number: signal.Signals,
    options: list[str],
    status: int,
    listener: socket.socket,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Interrupted or terminated, the launcher ends every rank, also one that ignores SIGTERM."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    port = str(listener.getsockname()[1])
    command = [sys.executable, "-c", CALL, "tests.demo.waiting_rank", port, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as launcher:
        ranks = accept_ranks(listener, 2)
        launcher.send_signal(number)
        try:
            _, errors = launcher.communicate(timeout=30)
        finally:
            launcher.kill()
        assert launcher.returncode == status
        # torchrun is not heard of: its report of the signal would hide what happened
        assert b"SignalException" not in errors
        for rank in ranks:
            assert rank.recv(1) == b"", "a rank still holds its connection"
            rank.close()


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults for the ranks' environment give way to the user's own variables."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    environment = launch._environment()
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["WANDB_MODE"] == "offline"
