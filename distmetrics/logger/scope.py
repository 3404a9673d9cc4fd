"""What a logger and a child have in common: `log`, `flush` and `latest` on one stream."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.logger.clock import ChildClock
from distmetrics.logger.core import Core
from distmetrics.logger.timers import Timers
from distmetrics.record import Value
from distmetrics.window.labels import MAX_STEP, first_step
from distmetrics.worker.events import Flushed, Logged, Ticket


class Scope:
    """A stream of windows that the training thread logs to.

    Attributes:
        name: the child's name, "" for the logger itself.
        every: steps of a window; None: one window until a flush.
    """

    def __init__(self, core: Core, name: str, every: int | None) -> None:
        self._core = core
        self.name = name
        self.every = every
        self._high = -1  # the highest step of any call
        self._floor = 0  # the first step that an earlier flush or promise left
        self._grid = -1
        self._snapshotter = core.open(name, every)
        self._clock = ChildClock(core.clock, every is not None) if name else core.clock
        self._timers = Timers(self._clock.now, self._snapshotter)
        core.enter(self)

    def log(
        self, outputs: Mapping[str, Any], step: int | None = None, *, weight: Any = None
    ) -> None:
        """Log what this rank has for a step. Copies the values and returns.

        Several calls may share a step (micro-batches); ranks may log different keys and steps.
        ``log({}, step=s)`` logs nothing and promises nothing more below `s`, so that the other
        ranks' records need not wait for this rank.

        Args:
            outputs: key to value; nested dicts are joined with ``/``, None is left out. It is not
                changed, and may be changed afterwards.
            step: the optimizer step; by default one more than the highest so far.
            weight: the weight of averages that name none: of the shape of their values.

        Ranks: any.
        Collective: none.

        Raises:
            InvalidType, InvalidValue: a value or the step is not accepted; nothing is logged.
            DeclarationConflict: a key is declared in two ways. Where only another rank can see
                that, it is raised once, after the call has been taken.
            UnknownKey: the registry is strict and does not know a key.

        Example:
            >>> import distmetrics as dm
            >>> memory = dm.sinks.MemorySink()
            >>> logger = dm.Logger(sinks=[memory])
            >>> logger.log({"n": dm.Count(3), "acc": dm.Ratio(2, 3)}, step=0)
            >>> logger.log({"n": dm.Count(5), "acc": dm.Ratio(1, 5)}, step=0)  # a micro-batch
            >>> logger.close()
            >>> memory.records[0].values
            {'n': 8, 'acc': 0.375}
        """
        core = self._core
        if core.disabled:
            core.say_why()
            return
        with core.lock:
            core.check_open()
            own = step is None
            at = self._next() if own else _checked_step(step)
            if at < self._high and self.every is not None:
                core.regress(at, self._high)
            snapshot = self._snapshotter.take(outputs, weight)
            named = None if own and self.every is None else at
            if core.staging and self._leaves(at):
                core.staging.copy()
            if snapshot is not None and not snapshot.staged:
                core.staging.add(snapshot)
            if at > self._high and named is not None:
                self._high = at
            if snapshot is not None or named is not None:
                core.push(Logged(self.name, named, snapshot, own, self._clock.now()))
            if snapshot is not None:
                self._log_timed(named, own)
        if core.notices:
            core.notices.tell()

    def flush(self, step: int | None = None, wait: bool = False) -> dict[str, Value] | None:
        """Close the windows through a step, so that they are reduced and written.

        Every rank should flush at the same step: a flush inside a window splits it.

        Args:
            step: the last step of the window; by default all that is logged, and for a child with
                ``every=None`` the latest step of its parent.
            wait: return the reduced values.

        Ranks: any; with `wait` all. A rank that has closed is not waited for: all that it has
            logged is in the values.
        Collective: none; with `wait` up to two rounds of the workers.

        Returns:
            None; with `wait` the last reduced values, the same dict on every rank.

        Raises:
            PeerTimeoutError: `wait`, and some ranks did not call this within `peer_timeout`; it
                names them.
            PeerLostError: `wait`, and a rank is gone.
        """
        core = self._core
        if core.disabled:
            core.say_why()
            return {} if wait else None
        ticket = Ticket(self.name) if wait else None
        with core.lock:
            core.check_open()
            at = self._default_flush() if step is None else _checked_step(step)
            self.log_rest()
            core.staging.copy()
            self._floor = max(self._floor, at + 1)
            core.push(Flushed(self.name, at, self._clock.now(), ticket))
            core.spool_soon()
        core.give_way()
        values = None
        if ticket is not None:
            values = core.wait(ticket, at, "flush(wait=True)")
            self._floor = max(self._floor, first_step(ticket.reached))
        if core.notices:
            core.notices.tell()
        return values

    def timer(self, name: str) -> AbstractContextManager[None]:
        """A context that adds the seconds spent in it to a key.

        They are logged with the next call of `log`, those of several blocks as one sum; what is
        left at a `flush`, or at the end, goes into the window that is closed. Time in `pause` does
        not count. The key is declared as any other: an average is then the seconds a call, a
        maximum those of the slowest rank, and a rate may have it as its ``seconds=``.

        Args:
            name: the key.

        Ranks: any.
        Collective: none.

        Raises:
            InvalidType, InvalidValue, UnknownKey, DeclarationConflict: on entering, where the
                key takes no number.

        Example:
            >>> import distmetrics as dm
            >>> memory = dm.sinks.MemorySink()
            >>> with dm.Logger(sinks=[memory]) as logger:
            ...     with logger.timer("data_seconds"):
            ...         batch = list(range(1000))
            ...     logger.log({"n": dm.Count(len(batch))}, step=0)
            >>> sorted(memory.records[0].values)
            ['data_seconds', 'n']
        """
        return nullcontext() if self._core.disabled else self._timers.measure(name)

    def log_rest(self) -> None:
        """Log the seconds that no call has taken along, where a window is open to take them."""
        if self.every is None:
            self._log_timed(None, own=True)
        elif self._high >= self._floor:
            self._log_timed(self._high, own=False)

    def _log_timed(self, step: int | None, own: bool) -> None:
        timed = self._timers.take()
        if timed is not None:
            self._core.push(Logged(self.name, step, timed, own, self._clock.now()))

    def rest(self) -> Flushed:
        """What closes all that is logged, for whoever must not wait for the lock."""
        return Flushed(self.name, self._default_flush(), self._clock.now(), None)

    def __reduce__(self) -> str:
        raise InvalidType(
            "a logger cannot be sent to another process: it belongs to the process of its rank. "
            "Return what is to be logged to that process, and leave the logger out of what is sent "
            "(a dataset, say)"
        )

    @property
    def latest(self) -> dict[str, Value]:
        """The latest reduced value of every key, of the children too; on all ranks."""
        return self._core.latest(f"{self.name}/" if self.name else "")

    def restore(self, latest: int, floor: int) -> None:
        """Go on after the step `latest`, with nothing below `floor` to come."""
        self._high = latest
        self._floor = max(self._floor, floor)

    def _next(self) -> int:
        return max(self._high + 1, self._floor)

    def _leaves(self, step: int) -> bool:
        """Whether a step begins a window, so that the values before it should reach the host."""
        grid = self._grid
        self._grid = 0 if self.every is None else step // self.every
        return grid != self._grid

    def _default_flush(self) -> int:
        if self.every is not None:
            return self._high
        parent = self._core.reached() if self.name else -1
        if parent >= 0:
            return parent
        return max(self._high, self._floor)


def _checked_step(step: Any) -> int:
    """A step as an int.

    Raises:
        InvalidType, InvalidValue: it is no whole number from 0 on.
    """
    if type(step) is int:
        value = step
    elif isinstance(step, bool | np.bool_):
        raise InvalidType(f"step={step!r} is a bool; a step is a whole number")
    elif isinstance(step, float | np.floating):
        if not float(step).is_integer():
            raise InvalidValue(f"step={step!r} is no whole number; pass the optimizer step")
        value = int(step)
    elif isinstance(step, torch.Tensor | np.ndarray):
        if step.ndim != 0:
            raise InvalidType(f"step= has shape {tuple(step.shape)}; a step is one whole number")
        return _checked_step(step.item())
    else:
        try:
            value = operator.index(step)
        except TypeError:
            raise InvalidType(
                f"step={step!r} is a {type(step).__name__}; a step is a whole number"
            ) from None
    if not 0 <= value < MAX_STEP:
        raise InvalidValue(f"step={value} is out of range; a step is from 0 to {MAX_STEP - 1}")
    return value
