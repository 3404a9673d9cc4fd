"""Values that live on a CUDA device: gathered there, copied to pinned memory in few transfers.

The copy is queued on the stream on which the values were taken, so that it sees them as they were
at the call, and nobody waits for it but the worker.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from distmetrics.errors import InvalidValue
from distmetrics.snapshot import Route, Snapshot
from distmetrics.snapshot.plan import check_weights

BYTES = 1 << 20
"""Bytes of values that gather on devices before they are copied, if no window ends earlier."""


@dataclass(frozen=True)
class InFlight:
    """A part of a transfer to the host.

    Attributes:
        buffer: pinned memory that the transfer fills.
        start: where the part begins.
        stop: where it ends.
        event: recorded behind the transfer; None where the transfer was synchronous.
    """

    buffer: torch.Tensor
    start: int
    stop: int
    event: Any

    @property
    def arrived(self) -> bool:
        """Whether the transfer is done."""
        return self.event is None or bool(self.event.query())

    def array(self) -> NDArray[Any]:
        """The values on the host; waits for the transfer."""
        if self.event is not None:
            self.event.synchronize()
        array: NDArray[Any] = self.buffer.numpy()
        return array[self.start : self.stop]


class Staging:
    """The snapshots of a logger that hold values on a device and have not been copied yet."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Snapshot, list[Any]]] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, snapshot: Snapshot) -> None:
        """Take a snapshot that is not staged yet."""
        self._waiting.append((snapshot, [_stream_of(array) for array in snapshot.arrays]))
        self._bytes += sum(a.nbytes for a in snapshot.arrays if isinstance(a, torch.Tensor))
        if self._bytes > BYTES:
            self.copy()

    def copy(self) -> None:
        """Queue the transfers: one for each dtype, device and stream. Waits for nothing."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        groups: dict[Any, list[tuple[Snapshot, int]]] = {}
        for snapshot, streams in waiting:
            for index, array in enumerate(snapshot.arrays):
                if isinstance(array, torch.Tensor):
                    kind = (array.dtype, array.device, streams[index])
                    groups.setdefault(kind, []).append((snapshot, index))
        for (_, _, stream), members in groups.items():
            _transfer(stream, members)
        for snapshot, _ in waiting:
            snapshot.staged = True


def arrived(snapshot: Snapshot) -> bool:
    """Whether all values of a staged snapshot are on the host."""
    return all(array.arrived for array in snapshot.arrays if isinstance(array, InFlight))


def land(snapshot: Snapshot) -> list[InvalidValue]:
    """Replace what is in flight by arrays on the host; waits for the transfers.

    Returns:
        What is wrong with weights, which could not be looked at before: such a weight becomes 0,
        so that the contribution is left out.
    """
    flying = [type(array) is InFlight for array in snapshot.arrays]
    if True not in flying:
        return []
    snapshot.arrays = [
        array.array() if isinstance(array, InFlight) else array for array in snapshot.arrays
    ]
    errors = []
    for route in snapshot.plan.routes:
        if route.weights is not None and flying[route.weights[0]] and not route.reduction.pairs:
            errors += _mend_weights(snapshot, route)
    return errors


def _mend_weights(snapshot: Snapshot, route: Route) -> list[InvalidValue]:
    assert route.weights is not None
    array, columns = route.weights
    sizes = snapshot.sizes[array] if snapshot.sizes else [1] * len(snapshot.arrays[array])
    errors = []
    for key, column in zip(route.keys, columns, strict=True):
        start = sum(sizes[:column])
        weights = snapshot.arrays[array][start : start + sizes[column]]
        try:
            check_weights(key.full, weights)
        except InvalidValue as error:
            errors.append(error)
            snapshot.arrays[array] = snapshot.arrays[array].copy()
            snapshot.arrays[array][start : start + sizes[column]] = 0
    return errors


def _stream_of(array: Any) -> Any:
    """The CUDA stream on which a tensor was made just now; None for anything else."""
    on_cuda = isinstance(array, torch.Tensor) and array.is_cuda
    return torch.cuda.current_stream(array.device) if on_cuda else None


def _transfer(stream: Any, members: list[tuple[Snapshot, int]]) -> None:
    parts = [snapshot.arrays[index] for snapshot, index in members]
    on_stream = contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)
    with torch.no_grad(), on_stream:
        joined = torch.cat(parts)
        event = None
        if stream is None:
            host = joined.to("cpu")
        else:
            host = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
            host.copy_(joined, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
    start = 0
    for (snapshot, index), part in zip(members, parts, strict=True):
        stop = start + part.numel()
        snapshot.arrays[index] = InFlight(host, start, stop, event)
        start = stop
