"""What a training thread does, as events for its worker."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distmetrics.exchange.topology import Topology
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot.table import KeyTable


class Opened(NamedTuple):
    """A logger or child was made."""

    stream: str
    every: int | None
    table: KeyTable
    now: float


class Logged(NamedTuple):
    """Values were logged; without a snapshot a promise of nothing more below the step."""

    stream: str
    step: int | None
    snapshot: Snapshot | None
    own_step: bool
    now: float


@dataclass
class Ticket:
    """Someone in the training thread waits for a stream to be reduced.

    Attributes:
        stream: its name.
        label: of the window that this call closed here.
        absent: the ranks that do not wait for it yet, and their last steps.
        elsewhere: of these, the streams that they wait for instead, by rank.
        closed: the ranks that had closed, and have no part in `values`.
        values: the values of the stream's last row, once it is reduced.
        reached: the watermark of the stream then, the same on every rank.
        error: why it will not be.
        taken: `values` or `error` are on their way.
        withdrawn: nobody waits any more.
        done: set when `values` or `error` is there.
    """

    stream: str
    label: int = -1
    absent: dict[int, int] = field(default_factory=dict)
    elsewhere: dict[int, list[str]] = field(default_factory=dict)
    closed: Sequence[int] = ()
    values: dict[str, Any] = field(default_factory=dict)
    reached: int = 0
    error: Exception | None = None
    taken: bool = False
    withdrawn: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Flushed(NamedTuple):
    """A flush through a step, and who waits for it."""

    stream: str
    step: int
    now: float
    ticket: Ticket | None


class Restored(NamedTuple):
    """A stream goes on where a checkpoint was taken."""

    stream: str
    saved: Mapping[str, Any]
    topology: Topology
    now: float


class Ended(NamedTuple):
    """The logger was closed."""

    now: float


Event = Opened | Logged | Flushed | Restored | Ended
