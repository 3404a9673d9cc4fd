"""One TensorBoard event file, written in whole records.

Apart from `tensorboard.py` so that the package of that name is imported here alone, and late.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Mapping
from os import getpid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata

from distmetrics.sinks.append import AppendFile
from distmetrics.sinks.crc32c import crc32c
from distmetrics.sinks.scalars import flat

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_STAMP = re.compile(r"events\.out\.tfevents\.(\d+)\.")


class EventFile:
    """An event file that TensorBoard reads after all others of its folder.

    The bytes go to the operating system with every event, so that a killed process loses none, and
    a full disk leaves no torn event that would hide the later ones. The file is made with the first
    event. Any thread may write.

    TensorBoard's own writer queues events for a thread, which ends for good at the first error of
    the disk; this one reports the error and goes on with the next event.

    Args:
        folder: where the file goes.
        purge_step: steps from this one on in the folder's other files are hidden from now on.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        now, newest = time.time(), _newest_stamp(folder)
        stamp = max(int(now), newest + 1)
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{getpid()}.0"
        version = Event(
            wall_time=now,
            file_version="brain.Event:2",
            source_metadata=SourceMetadata(writer="distmetrics"),
        )
        if purge_step is None and newest < 0:
            # TensorBoard takes the first session of a folder for its beginning, and hides nothing
            # for it: without this mark that would be the first resume.
            purge_step = 0
        header = _framed(version)
        if purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            header += _framed(Event(wall_time=now, step=purge_step, session_log=start))
        self._file = AppendFile(folder / name, header)
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._file.path

    def get_logdir(self) -> str:
        """The folder; named as TensorBoard's writers name it."""
        return str(self._file.path.parent)

    def add_event(self, event: Event) -> None:
        """Write one event.

        Raises:
            OSError: it could not be written; the file is as it was before.
        """
        data = _framed(event)
        with self._lock:
            self._file.append(data)

    def flush(self) -> None:
        """Nothing: every event was handed to the operating system when it came."""

    def reopen(self) -> None:
        """Nothing: the file is open until the sink closes it."""

    def sync_and_close(self) -> None:
        """Put everything on the disk and close the file."""
        with self._lock:
            try:
                self._file.sync()
            finally:
                self._file.close()

    def close(self) -> None:
        """Nothing: a user's `SummaryWriter` ends before the sink does."""


def hyperparameters(config: Mapping[str, Any]) -> Event:
    """The event that tells TensorBoard a run's hyperparameters: the flat form of `config`."""
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb  # takes half a second

    now = time.time()
    summary = hparams_pb(flat(config), start_time_secs=now)
    return Event(wall_time=now, summary=summary)


def summary_writer(events: EventFile) -> SummaryWriter:
    """A `SummaryWriter` of torch, for images, text and figures, writing into `events`."""
    from torch.utils.tensorboard import FileWriter, SummaryWriter

    class SharedFileWriter(FileWriter):
        def __init__(self) -> None:  # not FileWriter's, which would make a file of its own
            self.event_writer = events

    class SharedWriter(SummaryWriter):
        def _get_file_writer(self) -> FileWriter:
            writer: FileWriter | None = getattr(self, "file_writer", None)
            if writer is None:  # at first, and after a user's `close`
                writer = SharedFileWriter()
                self.file_writer = writer  # type: ignore[assignment]  # torch says None, always
                self.all_writers = {events.get_logdir(): writer}  # type: ignore[assignment]
            return writer

    return SharedWriter(log_dir=events.get_logdir())


def _newest_stamp(folder: Path) -> int:
    """The newest time in the names of the folder's event files, -1 where there are none.

    TensorBoard reads a folder's files in the order of their names. Two attempts within one second,
    or on hosts whose clocks differ, must still be read in the order in which they ran.
    """
    if not folder.is_dir():
        return -1
    found = (_STAMP.match(entry.name) for entry in folder.iterdir())
    return max((int(match.group(1)) for match in found if match), default=-1)


def _framed(event: Event) -> bytes:
    """The event as a record of the file format: length, checksum, bytes, checksum."""
    content: bytes = event.SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join((length, _masked(length), content, _masked(content)))


def _masked(data: bytes) -> bytes:
    """The checksum of some bytes, changed so that a checksum of it is no fixed value."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
