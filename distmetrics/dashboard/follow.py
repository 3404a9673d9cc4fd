"""Following a live run: its state again whenever its files have grown, until its writer is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from distmetrics.dashboard.subject import Subject, subject_of
from distmetrics.errors import RunDirError

_LOCK = ".lock"
_LOCKS = Path("/proc/locks")
_POLL = 0.5
_SHARE = 5
"""Reading a long run takes a while; it is left alone for so many times as long."""


def followed(place: Path, stop: threading.Event | None = None) -> Iterator[Subject]:
    """The subject at a place, at once and after each growth of its files.

    Ends when `stop` is set, or when the process that wrote to the run directory has let go of it.

    Raises:
        RunDirError: there is no run at the place, and no run directory that may become one.
    """
    stop = stop or threading.Event()
    size, written = -1, False
    while not stop.is_set():
        alive = has_writer(place)  # before the size, so that what comes last is seen
        now = _size(place)
        if now != size:
            size = now
            began = time.monotonic()
            try:
                yield subject_of(place)
            except RunDirError:
                if not place.exists():
                    raise
            stop.wait(_SHARE * (time.monotonic() - began))
        elif written and not alive:
            return
        written = written or alive
        stop.wait(_POLL)


def has_writer(run_dir: Path) -> bool:
    """Whether a process of this machine holds the run directory's lock.

    It is looked up in the kernel's table and not tried, since a logger that starts at that moment
    would find it taken.
    """
    try:
        stat = (run_dir / _LOCK).stat()
        table = _LOCKS.read_text(encoding="ascii")
    except OSError:
        return False
    ending = f":{stat.st_ino}"
    return any(
        len(fields := line.split()) > 5 and fields[1] == "FLOCK" and fields[5].endswith(ending)
        for line in table.splitlines()
    )


def _size(place: Path) -> int:
    files = [place] if place.is_file() else sorted(place.rglob("*"))
    total = 0
    for file in files:
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:
            continue  # removed since it was listed
    return total
