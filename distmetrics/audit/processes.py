"""Running one command with a time limit, and leaving none of its processes behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from distmetrics.errors import MissingPackage

MARK = "DISTMETRICS_AUDIT_MARK"
"""Environment variable by which the processes of a run are found, whoever their parent is."""

_GRACE = 10.0
_LINGER = 10.0  # seconds that helpers of a finished script have to write their files
_POLL = 0.3
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        returncode: its exit status; negative: the signal that ended it.
        seconds: how long it ran.
        timed_out: it was ended because its time was up.
        stopped: it was ended because `until` was satisfied.
    """

    returncode: int
    seconds: float
    timed_out: bool = False
    stopped: bool = False

    @property
    def good(self) -> bool:
        """Whether it did what it was asked to do."""
        return self.stopped or (self.returncode == 0 and not self.timed_out)


def run_command(
    command: Sequence[str],
    *,
    output: Path,
    folder: Path,
    environment: Mapping[str, str],
    timeout: float,
    until: Callable[[], bool] | None = None,
    tick: Callable[[str], None] = lambda mark: None,
) -> Outcome:
    """How a command ended; its output is in the file `output`.

    The command is ended with all its descendants, also those in sessions of their own, when its
    time is up, when `until` returns True, when this process gets SIGTERM or is interrupted, and
    when it ends itself and leaves some behind. `tick` is called a few times a second with the
    mark that the processes of this command carry.

    Raises:
        MissingPackage: psutil is not installed.
    """
    _psutil()
    mark = uuid.uuid4().hex
    begin = time.monotonic()
    timed_out = stopped = False
    with output.open("wb") as file, _Terminable():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, MARK: mark},
            start_new_session=True,
            preexec_fn=_end_with_parent() if sys.platform == "linux" else None,  # noqa: PLW1509
        )
        try:
            while process.poll() is None:
                tick(mark)
                timed_out = time.monotonic() - begin > timeout
                stopped = not timed_out and until is not None and until()
                if timed_out or stopped:
                    break
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_POLL)
            else:
                _wait_for_helpers(mark)
        finally:
            _end(process, mark)
    return Outcome(process.returncode, time.monotonic() - begin, timed_out, stopped)


def _end_with_parent() -> Callable[[], None]:
    """What a child does before it becomes the command: ask to be ended when its parent dies."""
    prctl: Any = ctypes.CDLL(None).prctl  # looked up here: a child after fork should do little
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_helpers(mark: str) -> None:
    """Waits a while for what a finished script left running: a tracker may still write."""
    limit = time.monotonic() + _LINGER
    while marked(mark) and time.monotonic() < limit:
        time.sleep(_POLL)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Ends a process and all that carry the mark: first politely, then for good."""
    for number, patience in ((signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE)):
        if process.poll() is None:
            _signal_group(process.pid, number)
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        limit = time.monotonic() + patience
        while time.monotonic() < limit:
            if process.poll() is not None and not marked(mark):
                return
            time.sleep(_POLL / 2)
    process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _psutil() -> Any:
    try:
        import psutil
    except ImportError as error:
        raise MissingPackage(
            "running a script needs the package psutil, which finds the processes that it leaves "
            "behind: pip install psutil"
        ) from error
    return psutil


def marked(mark: str) -> list[int]:
    """The processes whose environment carries a mark, zombies left out."""
    psutil = _psutil()
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def open_files(mark: str) -> set[Path]:
    """The files that the processes with a mark have open."""
    psutil = _psutil()
    found: set[Path] = set()
    for pid in marked(mark):
        with contextlib.suppress(psutil.Error, OSError):
            found.update(Path(file.path) for file in psutil.Process(pid).open_files())
    return found


class _Terminable:
    """While it is open SIGTERM raises `SystemExit`, so that what `finally` says is done."""

    def __enter__(self) -> None:
        self._before: Any = None
        with contextlib.suppress(ValueError):  # only the main thread may
            self._before = signal.signal(signal.SIGTERM, _leave)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)


def _leave(number: int, frame: object) -> None:
    del frame
    raise SystemExit(128 + number)
