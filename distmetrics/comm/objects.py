"""Collectives on Python objects, over the CPU side of a group.

Objects are pickled, so the ranks of a group must trust each other. Tensors inside them arrive on
the CPU, detached, with their values only: a device index of one rank means nothing on another, and
a view does not drag its whole storage along.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from distmetrics.comm.collect import Parcel, Route, collect
from distmetrics.errors import InvalidType

T = TypeVar("T")


def all_gather(
    obj: T, group: dist.ProcessGroup | None = None, timeout: float | None = None
) -> list[T]:
    """Every rank's `obj`, in rank order, on every rank.

    Args:
        obj: anything that can be pickled; may differ in type and size between ranks.
        group: the ranks that take part, by default all. A caller outside it gets an empty list.
        timeout: seconds to wait for the other ranks; given on all ranks or on none. Without it
            the group's own time-out holds, which names nobody.

    Ranks: all of the group.
    Collective: two on the group's CPU side; none for a single process.

    Raises:
        InvalidType: a rank's object cannot be pickled; the same error on all ranks.
        PeerTimeoutError: some ranks did not come in time; it names them.
        PeerLostError: the connection to a rank broke.

    Example:
        >>> all_gather("a")
        ['a']
    """
    return _gather(_packed(obj), group, timeout, None, "all_gather")


def gather(
    obj: T,
    dst: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
) -> list[T]:
    """Every rank's `obj`, in rank order, on rank `dst`; an empty list elsewhere.

    Args:
        obj: see `all_gather`.
        dst: the receiving rank, counted within `group`.
        group: see `all_gather`.
        timeout: see `all_gather`.

    Ranks: all of the group.
    Collective: two on the group's CPU side; none for a single process.

    Raises:
        InvalidType, InvalidValue, PeerTimeoutError, PeerLostError: see `all_gather`; `dst` is no
            rank of the group.

    Example:
        >>> gather({"a": 1})
        [{'a': 1}]
    """
    return _gather(_packed(obj), group, timeout, dst, "gather")


def gather_objects(
    items: Sequence[T], group: dist.ProcessGroup | None = None, timeout: float | None = None
) -> list[T]:
    """The items of all ranks' lists, one after the other in rank order, on every rank.

    Args:
        items: a list, of any length on each rank, also empty.
        group: see `all_gather`.
        timeout: see `all_gather`.

    Ranks: all of the group.
    Collective: two on the group's CPU side; none for a single process.

    Raises:
        InvalidType, PeerTimeoutError, PeerLostError: see `all_gather`; a rank gave no list.

    Example:
        >>> gather_objects(["a", "b"])
        ['a', 'b']
    """
    parcel = _packed(items)
    if isinstance(items, str | bytes) or not isinstance(items, Sequence):
        text = f"a list of items is expected, not {type(items).__name__}"
        parcel = Parcel.failed(InvalidType(text))
    lists = _gather(parcel, group, timeout, None, "gather_objects")
    return [item for each in lists for item in each]


def shared_random_seed(timeout: float | None = None) -> int:
    """A random number in 0 .. 2^31 - 1 that is the same on all ranks: the one that rank 0 drew.

    Drawn from PyTorch's CPU generator, so that `torch.manual_seed` makes it repeatable.

    Args:
        timeout: see `all_gather`.

    Ranks: all.
    Collective: two on the default group's CPU side; none for a single process.

    Raises:
        PeerTimeoutError, PeerLostError: see `all_gather`.

    Example:
        >>> 0 <= shared_random_seed() < 2**31
        True
    """
    drawn = int(torch.randint(2**31, ()).item())
    seeds: list[int] = _gather(_packed(drawn), None, timeout, None, "shared_random_seed")
    return seeds[0]


def _gather(
    parcel: Parcel,
    group: dist.ProcessGroup | None,
    timeout: float | None,
    dst: int | None,
    operation: str,
) -> list[Any]:
    route = Route.to(group)
    if route is None:
        return []
    parcels = collect(route, parcel, operation=operation, timeout=timeout, dst=dst)
    return [pickle.loads(each.data.numpy().data) for each in parcels]  # noqa: S301 (own ranks)


def _packed(obj: object) -> Parcel:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(obj)
    except Exception as error:  # noqa: BLE001 (pickling runs the object's own code)
        failure = InvalidType(f"the object ({type(obj).__name__}) cannot be pickled: {error}")
        return Parcel.failed(failure)
    return Parcel(torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8))


class _Pickler(pickle.Pickler):
    """Pickles tensors as values on the CPU."""

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, torch.Tensor):
            return NotImplemented
        return _reduced(obj.detach())


def _reduced(tensor: torch.Tensor) -> tuple[Callable[..., Any], tuple[Any, ...]] | Any:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        # these know best how to pickle themselves
        return (tensor if tensor.is_meta else tensor.cpu()).__reduce_ex__(2)
    data = tensor_bytes(tensor).numpy().tobytes()
    return restore_tensor, (data, tensor.dtype, tuple(tensor.shape))


def tensor_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a strided tensor as a 1-D uint8 tensor on the CPU."""
    if tensor.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)  # its strides may not allow the view below
    values = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return values.reshape(-1).view(torch.uint8)


def restore_tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor of these raw bytes, on the CPU."""
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
