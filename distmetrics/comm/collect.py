"""The primitive of all gathers: each rank's bytes to all, or to one, in two collectives.

A rank whose input is not accepted takes part all the same and sends its error instead, so that
every rank raises the same error and none is left waiting.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from distmetrics.comm import communicator
from distmetrics.comm.cpu import cpu_group
from distmetrics.comm.ranks import is_member
from distmetrics.comm.roll_call import call_roll, dismiss
from distmetrics.comm.world import default_group
from distmetrics.errors import (
    DistmetricsError,
    InvalidType,
    InvalidValue,
    PeerLostError,
    PeerTimeoutError,
)

Marks = tuple[int, int]
"""Two integers that every rank tells every other before the payloads travel."""

_ERRORS: tuple[type[DistmetricsError], ...] = (InvalidType, InvalidValue)
_IN_PROCESS_TIMEOUT = 600.0  # seconds


@dataclass(frozen=True)
class Parcel:
    """What one rank gives: its bytes (a 1-D uint8 tensor on the CPU), its marks, or its error."""

    data: torch.Tensor
    marks: Marks = (0, 0)
    error: DistmetricsError | None = None

    @classmethod
    def failed(cls, error: DistmetricsError) -> Parcel:
        """A parcel that makes every rank raise this error."""
        text = bytearray(str(error).encode())
        return cls(torch.frombuffer(text, dtype=torch.uint8), (0, 0), error)

    @property
    def header(self) -> list[int]:
        """Length, marks, and which error: 0 for none."""
        kind = 0 if self.error is None else 1 + isinstance(self.error, InvalidValue)
        return [self.data.numel(), *self.marks, kind]


@dataclass(frozen=True)
class Route:
    """The way among the ranks of a group: a CPU process group, or threads as ranks, or neither."""

    rank: int
    size: int
    group: dist.ProcessGroup | None = None
    endpoint: communicator.Endpoint | None = None

    @classmethod
    def to(cls, group: dist.ProcessGroup | None) -> Route | None:
        """The route among the ranks of `group` (default: all); None for a caller outside it.

        Ranks: all of the group.
        Collective: see `cpu_group`.
        """
        if group is not None:
            if not is_member(group):
                return None
        else:
            here = communicator.current()
            if here is not None:
                return cls(here.rank, here.world_size, endpoint=here)
            group = default_group()
            if group is None:
                return cls(0, 1)
        return cls(group.rank(), group.size(), cpu_group(group))


def collect(
    route: Route,
    parcel: Parcel,
    *,
    operation: str,
    timeout: float | None = None,
    dst: int | None = None,
    check: Callable[[Sequence[Marks]], None] | None = None,
) -> list[Parcel]:
    """Every rank's parcel, in rank order: on all ranks, or on `dst` and an empty list elsewhere.

    Args:
        route: among whom.
        parcel: this rank's.
        operation: its name, for messages.
        timeout: seconds to wait for the other ranks; all give one, or none does.
        dst: the rank within the group that receives.
        check: raises on marks that do not fit together; called on all ranks with the same marks.

    Ranks: all of the group.
    Collective: two all-gathers (with `dst` an all-gather and a gather); none for a single rank.

    Raises:
        InvalidType, InvalidValue: a rank's input was not accepted; the same on all ranks.
        PeerTimeoutError: some ranks did not come within `timeout`; it names them.
        PeerLostError: the connection to a rank broke.
    """
    if dst is not None and not 0 <= dst < route.size and parcel.error is None:
        parcel = Parcel.failed(InvalidValue(f"dst={dst} is not within 0 .. {route.size - 1}"))
    if timeout is not None and not (timeout > 0 and math.isfinite(timeout)):
        raise InvalidValue(f"{operation}: timeout={timeout!r}: seconds above 0 are expected")
    if route.endpoint is not None and route.size > 1:
        return _among_threads(route.endpoint, parcel, operation, timeout, dst, check)
    if route.group is None or route.size == 1:
        _settle([parcel.header], [parcel], operation, check)
        return [parcel]
    if timeout is not None:
        _arrive(route, operation, timeout)
    headers = [
        row.tolist()
        for row in _all_gather(route, torch.tensor(parcel.header, dtype=torch.int64), operation)
    ]
    failed = any(header[3] for header in headers)
    if not failed:
        _settle(headers, [], operation, check)
    width = max(header[0] for header in headers)
    padded = torch.zeros(width, dtype=torch.uint8)
    padded[: parcel.data.numel()] = parcel.data
    if width == 0:
        rows = [padded] * route.size if dst in (None, route.rank) else []
    elif dst is None or failed:
        rows = _all_gather(route, padded, operation)
    else:
        rows = _gather(route, padded, dst, operation)
    parcels = [
        Parcel(row[:length], (one, two))
        for row, (length, one, two, _) in zip(rows, headers, strict=False)
    ]
    if failed:
        _settle(headers, parcels, operation, check)
    return parcels


def _settle(
    headers: Sequence[Sequence[int]],
    parcels: Sequence[Parcel],
    operation: str,
    check: Callable[[Sequence[Marks]], None] | None,
) -> None:
    """Raise what a rank could not give, or what does not fit together; alike on all ranks."""
    for rank, header in enumerate(headers):
        if header[3]:
            text = bytes(parcels[rank].data.tolist()).decode()
            where = f" on rank {rank} of the group" if len(headers) > 1 else ""
            raise _ERRORS[header[3] - 1](f"{operation}{where}: {text}")
    if check is not None:
        check([(header[1], header[2]) for header in headers])


def _among_threads(
    endpoint: communicator.Endpoint,
    parcel: Parcel,
    operation: str,
    timeout: float | None,
    dst: int | None,
    check: Callable[[Sequence[Marks]], None] | None,
) -> list[Parcel]:
    seconds = timeout or _IN_PROCESS_TIMEOUT
    header = torch.tensor(parcel.header, dtype=torch.int64).numpy().tobytes()
    peers = endpoint.connect(seconds, seconds)
    gathered = peers.all_gather(header + parcel.data.numpy().tobytes())
    split = len(header)
    headers = [
        torch.frombuffer(bytearray(each[:split]), dtype=torch.int64).tolist() for each in gathered
    ]
    parcels = [
        Parcel(_bytes_tensor(each[split:]), (row[1], row[2]))
        for each, row in zip(gathered, headers, strict=True)
    ]
    _settle(headers, parcels, operation, check)
    return parcels if dst in (None, endpoint.rank) else []


def _bytes_tensor(data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


_meetings: WeakKeyDictionary[dist.ProcessGroup, itertools.count[int]] = WeakKeyDictionary()


def _arrive(route: Route, operation: str, timeout: float) -> None:
    """Wait until every rank is at this call, so that the collective itself has no one to wait for.

    A time-out of the collective would break Gloo's connections for good and name nobody.
    """
    group = route.group
    assert group is not None
    number = next(_meetings.setdefault(group, itertools.count()))
    store = dist.distributed_c10d._get_process_group_store(group)  # noqa: SLF001 (no public way)
    purpose = f"{operation} with timeout={timeout:g} s"
    call_roll(
        PrefixStore(f"distmetrics/meeting/{number}", store),
        route.rank,
        route.size,
        timeout=timeout,
        purpose=purpose,
    )
    if route.rank == 0 and number > 0:
        # whoever is at this meeting has left the one before
        dismiss(PrefixStore(f"distmetrics/meeting/{number - 1}", store), route.size)


def _all_gather(route: Route, tensor: torch.Tensor, operation: str) -> list[torch.Tensor]:
    rows = torch.empty((route.size, tensor.numel()), dtype=tensor.dtype)
    parts = list(rows.unbind())
    _run(operation, lambda group: group.allgather([parts], [tensor]), route.group)
    return parts


def _gather(route: Route, tensor: torch.Tensor, dst: int, operation: str) -> list[torch.Tensor]:
    options = dist.GatherOptions()
    options.rootRank = dst
    parts: list[torch.Tensor] = []
    if route.rank == dst:
        parts = list(torch.empty((route.size, tensor.numel()), dtype=tensor.dtype).unbind())
    outputs = [parts] if route.rank == dst else []
    _run(operation, lambda group: group.gather(outputs, [tensor], options), route.group)
    return parts


def _run(operation: str, start: Callable[[Any], Any], group: Any) -> None:
    """Run a collective; Gloo's plain RuntimeErrors become ours.

    The group's own methods are called, as those of torch.distributed take ranks of the default
    group, which an independent group does not share.
    """
    try:
        start(group).wait()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        if "imed out" in reason:
            raise PeerTimeoutError(
                f"{operation}: some ranks did not take part within the group's time-out; give "
                f"timeout= to have them named ({reason})"
            ) from error
        raise PeerLostError(f"{operation}: the connection to a rank broke ({reason})") from error
