"""The way that one-shot reductions take: a window that all ranks close together, in one round.

Values travel in a stream for each kind of call. A second stream carries *marks*, so that every
rank learns which call the others made, whether one had to refuse a value, and which are float64.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from distmetrics.comm import LaunchEnv
from distmetrics.comm.communicator import Communicator, connect, current, name_ranks
from distmetrics.comm.world import default_group
from distmetrics.errors import (
    DeclarationConflict,
    DistmetricsError,
    DistmetricsWarning,
    NotInitialized,
    PeerTimeoutError,
)
from distmetrics.exchange.round import Offer, Offered, run_round
from distmetrics.exchange.schema import COLLECTIVE, Schema
from distmetrics.exchange.topology import Topology
from distmetrics.record import Scalar
from distmetrics.reduced import Reduced
from distmetrics.reduced.batch import Layout, batches
from distmetrics.reductions import Counter
from distmetrics.registry import Registry
from distmetrics.snapshot import Snapshotter
from distmetrics.snapshot.staging import Staging, land
from distmetrics.window.fold import fold
from distmetrics.window.labels import label_of
from distmetrics.window.stream import Window
from distmetrics.worker.worker import drive

PATIENCE = 1800.0
"""Seconds that a call waits for the other ranks, as long as torch's own collectives do."""
NOTICE_AFTER = 30.0
"""Seconds after which the first call names the ranks that have not come."""

Outputs = Callable[[Registry], Mapping[str, Any]]
"""Gives what a rank has, by what the keys mean; may refuse by raising."""

_MARKS = f"{COLLECTIVE}marks"
_CALL, _REFUSED, _WIDE = "call/", "refused/", "wide/"


@dataclass(frozen=True)
class Call:
    """One of the functions, with the options that must be the same on every rank.

    Attributes:
        name: for messages.
        meaning: what tells it from calls that reduce in another way.
        registry: makes what the keys mean in it; asked once for each meaning.
    """

    name: str
    meaning: str
    registry: Callable[[], Registry]


@dataclass(frozen=True)
class Result:
    """A reduced value, and the dtype in which it comes back."""

    value: Scalar
    dtype: torch.dtype


def reduce(call: Call, outputs: Outputs) -> dict[str, Result]:
    """The reduced value of every key that any rank gave.

    Whatever fails on one rank is an error on all of them, after which they begin anew.

    Ranks: all.
    Collective: 3, and 2 more where a key is new; on a group of its own, made at the first call.
    """
    home = current() or default_group() or _alone(call)
    channel = _channels.get(home)
    if channel is None:
        channel = _channels[home] = Channel(_connected(call))
    with channel.lock:
        try:
            return channel.reduce(call, outputs)
        except BaseException:
            _channels.pop(home, None)
            channel.communicator.close()
            raise


class _Alone:
    """Stands for the process group where there is none."""


_ALONE = _Alone()
_channels: WeakKeyDictionary[Any, Channel] = WeakKeyDictionary()


def _alone(call: Call) -> _Alone:
    env = LaunchEnv.detect()
    if env.world_size > 1:
        raise NotInitialized(
            f"this is rank {env.rank} of {env.world_size} processes, but torch.distributed is not "
            f"initialised; call dm.setup_distributed() before {call.name}"
        )
    return _ALONE


def _connected(call: Call) -> Communicator:
    def notice(text: str) -> None:
        warnings.warn(f"{call.name}: {text}", DistmetricsWarning, stacklevel=2)

    try:
        return connect(PATIENCE, PATIENCE, NOTICE_AFTER, notice)
    except PeerTimeoutError as error:
        raise PeerTimeoutError(
            f"{call.name}: {name_ranks(error.ranks)} did not call it within {PATIENCE:g} s; every "
            "rank must call it",
            error.ranks,
        ) from error


class _Stream:
    """One kind of call on this rank: each is one window, as of a logger with ``every=1``.

    Args:
        registry: what the keys mean.
    """

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._taker = Snapshotter(registry, "", None, lambda text: None)
        self._windows: dict[int, Window] = {}
        self._calls = 0

    def put(self, outputs: Mapping[str, Any]) -> None:
        """Take this rank's part of the next window.

        Raises:
            InvalidType, InvalidValue, UnknownKey: a value is not accepted.
        """
        snapshot = self._taker.take(outputs)
        if snapshot is None:
            return
        if not snapshot.staged:
            staging = Staging()
            staging.add(snapshot)
            staging.copy()
        for error in land(snapshot):
            raise error
        window = Window(0.0)
        window.steps.add(self._calls)
        window.main.pending.append((snapshot, self._calls))
        fold([window.main], self._taker.table)
        self._windows[label_of(self._calls)] = window

    def close(self) -> None:
        """Close the window, with or without a part of this rank."""
        self._calls += 1

    def offered(self) -> Offered:
        """What the rank brings to the round that reduces the window, once."""
        windows, self._windows = self._windows, {}
        watermark, latest = label_of(self._calls), self._calls - 1
        return Offered(1, False, watermark, True, windows, self._taker.table, latest)


class Channel:
    """What the calls on one process group share: a communicator, and what the ranks agreed on.

    Args:
        communicator: used by these calls alone.
    """

    def __init__(self, communicator: Communicator) -> None:
        self.communicator = communicator
        self.lock = threading.Lock()
        self._topology = Topology(communicator.rank, communicator.world_size)
        self._schema = Schema(distinct=False)
        self._layouts: dict[str, Layout] = {}
        self._marks = _Stream(Registry("count"))
        self._streams = {_MARKS: self._marks}

    def reduce(self, call: Call, outputs: Outputs) -> dict[str, Result]:
        """The reduced value of every key; see `distmetrics.functional.channel.reduce`."""
        name = f"{COLLECTIVE}{call.meaning}"
        marks = {_CALL + call.meaning: 1}
        failure = None
        try:
            stream = self._streams.get(name) or self._open(name, call)
            given = outputs(stream.registry)
            stream.put(given)
            stream.close()
            marks |= {_WIDE + key: 1 for key, value in given.items() if _is_wide(value)}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
            failure = error
            marks[f"{_REFUSED}{self._topology.rank}"] = 1
        self._marks.put(marks)
        self._marks.close()
        rows = self._meet()
        if failure is not None:
            raise failure
        told = rows[_MARKS].values
        self._check(call, told)
        return _results(rows.get(name), told)

    def _open(self, name: str, call: Call) -> _Stream:
        registry = call.registry()
        for metric in registry:
            self._topology.check(metric.replicated_over, metric.pattern)
        stream = self._streams[name] = _Stream(registry)
        return stream

    def _meet(self) -> dict[str, Reduced]:
        """The windows that all ranks have closed now, reduced, by stream."""
        offered = {name: stream.offered() for name, stream in self._streams.items()}
        round_ = run_round(Offer(offered, {}, False, {}), self._schema, self._topology)
        outcome = drive(round_, self.communicator)
        for text in outcome.conflicts:
            raise DeclarationConflict(text)
        for _, text in outcome.warnings:
            warnings.warn(text, DistmetricsWarning, stacklevel=5)
        return {
            row.stream.name: Reduced(batch, index, self._topology, {})
            for batch in batches(outcome.rows, self._layouts)
            for index, row in enumerate(batch.rows)
        }

    def _check(self, call: Call, marks: Mapping[str, Any]) -> None:
        """Raise what went wrong on other ranks."""
        refused = [int(mark.removeprefix(_REFUSED)) for mark in marks if mark.startswith(_REFUSED)]
        if refused:
            raise DistmetricsError(
                f"{call.name}: {name_ranks(refused)} gave a value that is not accepted, so that "
                "nothing is reduced; the error there names it"
            )
        calls = [mark.removeprefix(_CALL) for mark in marks if mark.startswith(_CALL)]
        if len(calls) > 1:
            made = ", ".join(f"{name} ({marks[_CALL + name]} ranks)" for name in calls)
            raise DistmetricsError(
                f"ranks made different calls at the same time: {made}; every rank must make the "
                "same one, with the same registry"
            )


def _results(reduced: Reduced | None, marks: Mapping[str, Any]) -> dict[str, Result]:
    if reduced is None:
        return {}
    counters = reduced.row.counters
    nonfinite = counters[:, Counter.NAN : Counter.NEGATIVE_INFINITY + 1].any(axis=1)
    floats = ((counters[:, Counter.FLOATS] > 0) | nonfinite).tolist()
    results = {}
    for key, float_given in zip(reduced.row.stream.table, floats, strict=False):
        value = reduced.value_of(key)
        if key.reduction.virtual or not isinstance(value, int | float):
            continue  # not of this call, or no single number
        if isinstance(value, int):
            dtype = torch.int64
        elif float_given and _WIDE + key.name not in marks:
            dtype = torch.float32
        else:
            dtype = torch.float64
        results[key.name] = Result(value, dtype)
    return results


def _is_wide(value: Any) -> bool:
    """Whether the result should be float64 for the sake of this value."""
    if isinstance(value, torch.Tensor):
        return value.dtype is torch.float64
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind == "f" and value.dtype.itemsize >= 8
    return isinstance(value, float)
