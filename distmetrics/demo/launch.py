"""Runs a script under torchrun on this machine, and leaves no process behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import psutil

from distmetrics.errors import DistmetricsError

GRACE = 3.0
"""Seconds that processes get to leave by themselves before they are killed."""


def torchrun(module: str, arguments: Sequence[str], nproc: int) -> None:
    """Runs ``python -m module arguments`` as `nproc` ranks on this machine, until all have ended.

    Ranks: none; called by the process that launches them. Standard streams are inherited, so a
    failing rank shows its own error. Interrupted or terminated, it ends every rank first.

    Raises:
        DistmetricsError: a rank failed.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--standalone", "--local-addr=127.0.0.1", f"--nproc-per-node={nproc}"),
        *("--module", module, *arguments),
    ]
    with _termination_as_exit():
        # In a session of its own, so that an interrupt at the terminal reaches this process alone
        # and torchrun is ended without its report of the signal.
        launcher = subprocess.Popen(command, env=_environment(), start_new_session=True)
        try:
            status = launcher.wait()
        finally:
            _end(launcher)
    if status != 0:
        raise DistmetricsError(
            f"{module} failed on {nproc} processes (torchrun ended with status {status}); "
            "the error of the rank that failed stands above"
        )


def _environment() -> dict[str, str]:
    """The ranks' environment: one thread each, loopback only, W&B offline.

    Whatever the user has set stays.
    """
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    defaults = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
        "WANDB_MODE": "offline",
    }
    return defaults | os.environ


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into `SystemExit`, so that clean-up runs."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _end(launcher: subprocess.Popen[bytes]) -> None:
    """Ends torchrun, if it is still there, and all that it has started."""
    if launcher.poll() is not None:
        return
    # torchrun first, as it would report or restart ranks that end; they have sessions of their
    # own, so they are found through it while it still stands.
    root = psutil.Process(launcher.pid)
    root.suspend()
    started = root.children(recursive=True)
    launcher.kill()
    launcher.wait()
    for process in started:
        _signal(process, signal.SIGTERM)
    _, alive = psutil.wait_procs(started, timeout=GRACE)
    for process in alive:
        _signal(process, signal.SIGKILL)
    psutil.wait_procs(alive, timeout=GRACE)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
