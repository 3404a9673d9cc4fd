"""Forked children do not keep their parent's connections open.

A child inherits every socket. The peers of a process that dies would not see its connections
close as long as a child of it, such as a worker that loads data, is alive.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

_OPEN_FILES = Path("/proc/self/fd")  # Linux; elsewhere the children keep Gloo's sockets

_sockets: WeakSet[socket.socket] = WeakSet()
_inodes: set[int] = set()


def close_in_children(opened: socket.socket) -> None:
    """Close this socket in every child that is forked from now on."""
    _sockets.add(opened)


@contextmanager
def closed_in_children() -> Iterator[None]:
    """Close the sockets that are opened in here, by libraries too, in children forked later."""
    before = set(_open_sockets().values())
    yield
    now = set(_open_sockets().values())
    _inodes.intersection_update(now)
    _inodes.update(now - before)


def _open_sockets() -> dict[int, int]:
    """The sockets of this process: file descriptor to inode, which no other socket has."""
    found = {}
    try:
        numbers = [int(entry.name) for entry in _OPEN_FILES.iterdir()]
    except OSError:
        return {}
    for number in numbers:
        try:
            status = os.fstat(number)
        except OSError:
            continue  # the descriptor of the listing itself
        if stat.S_ISSOCK(status.st_mode):
            found[number] = status.st_ino
    return found


def _close() -> None:
    """In a child, right after the fork."""
    for opened in list(_sockets):
        opened.close()
    if _inodes:
        for number, inode in _open_sockets().items():
            if inode in _inodes:
                os.close(number)
    _inodes.clear()


os.register_at_fork(after_in_child=_close)
