"""The contract of a sink: where records go. All of it is documented here, not in the back ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from distmetrics.record import Record

if TYPE_CHECKING:
    from distmetrics.registry import Registry


@dataclass(frozen=True)
class Run:
    """What a sink is told of the run when it opens.

    Attributes:
        directory: the run directory; None for a run that keeps no files.
        name: the run's name, the last part of the directory.
        registry: what each key means (unit, help text, group).
        config: the user's configuration.
        world_size: the number of ranks.
        attempt: 0, and one more with every resume.
        resumed_from: the first step that this attempt writes again; None in the first attempt.
        state: what the sink of this name returned from `state` in the attempt that is resumed.
    """

    directory: Path | None
    name: str
    registry: Registry
    config: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    attempt: int = 0
    resumed_from: int | None = None
    state: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Sink(Protocol):
    """Where records go. Used on rank 0 only, from one thread, in this order.

    A sink may raise, block or be slow: the logger isolates it from the training and from the
    other sinks. A record that a sink raised on is not offered to it again.

    A sink may also have

    - ``name``: its name in messages, in `Logger.stats` and for `Logger.sink`;
    - ``handle``: what `Logger.sink` returns, the writer or run of the back end. It may be asked
      for from any thread;
    - ``state()``: a dict of plain values that finds the back end's run again after a restart. It
      comes back as `Run.state`;
    - ``close_timeout``: seconds that its `close` may take, where 10 are too few;
    - ``needs_directory = True``: it keeps files, so that a logger without ``run_dir`` refuses it;
    - ``direct = True``: its `write` takes microseconds and never waits for a network, so that the
      logger's worker calls it itself. Every other sink gets a thread and a bounded queue of its
      own (`distmetrics.sinks.isolated`). A direct sink may have ``write_many(records)``.
    """

    def open(self, run: Run) -> None:
        """Called once, before the first record."""

    def write(self, record: Record) -> None:
        """Called for each record, in order of windows within a logger or child."""

    def close(self) -> None:
        """Called once, after the last record; makes everything written durable."""


RecordFunction = Callable[[Record], object]
"""The simplest sink: a function that is called with each record."""
