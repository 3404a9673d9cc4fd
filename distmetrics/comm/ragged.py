"""Gathering what differs in length between ranks: tensors, and lists of token ids."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from distmetrics.comm.collect import Marks, Parcel, Route, collect
from distmetrics.comm.communicator import name_ranks
from distmetrics.comm.objects import restore_tensor, tensor_bytes
from distmetrics.errors import DistmetricsError, InvalidType, InvalidValue

_DTYPES = tuple(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"),
        *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
    )
)


def gather_ragged(
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    dst: int | None = None,
    timeout: float | None = None,
) -> list[torch.Tensor]:
    """Every rank's tensor with its own shape, in rank order; detached, on this rank's device.

    Args:
        tensor: strided, of any shape; dtype and number of dimensions are the same on all ranks.
            Empty tensors are a normal case and keep dtype and shape.
        group: the ranks that take part, by default all. A caller outside it gets an empty list.
        dst: the rank within `group` that receives (others get an empty list); by default all do.
        timeout: seconds to wait for the other ranks; given on all ranks or on none.

    Ranks: all of the group.
    Collective: two on the group's CPU side whatever the shapes; none for a single process. The
        second is as long as the longest tensor.

    Raises:
        InvalidType: the dtypes differ, or a rank gave something else; the same on all ranks.
        InvalidValue: the numbers of dimensions differ; the same on all ranks.
        PeerTimeoutError: some ranks did not come in time; it names them.
        PeerLostError: the connection to a rank broke.

    Example:
        >>> gather_ragged(torch.zeros(0, 3))
        [tensor([], size=(0, 3))]
    """
    route = Route.to(group)
    if route is None:
        return []
    parcels = collect(
        route,
        _packed_tensor(tensor),
        operation="gather_ragged",
        timeout=timeout,
        dst=dst,
        check=_check_alike,
    )
    return [_unpacked_tensor(each).to(tensor.device) for each in parcels]


def all_gather_token_ids(
    seqs: Sequence[Sequence[int]],
    group: dist.ProcessGroup | None = None,
    timeout: float | None = None,
) -> list[list[int]]:
    """The token ids of all ranks: their sequences one after the other in rank order, as lists.

    Args:
        seqs: any number of sequences on each rank, of any lengths, also none and empty ones; a
            sequence is a list or a 1-D array or tensor of integers. Any int64 may be a token: no
            value is reserved for padding.
        group: see `gather_ragged`.
        timeout: see `gather_ragged`.

    Ranks: all of the group.
    Collective: two on the group's CPU side whatever the sizes; none for a single process.

    Raises:
        InvalidType: a rank gave something else than lists of integers; the same on all ranks.
        InvalidValue: a token is beyond int64; the same on all ranks.
        PeerTimeoutError, PeerLostError: see `gather_ragged`.

    Example:
        >>> all_gather_token_ids([[1, -1], []])
        [[1, -1], []]
    """
    route = Route.to(group)
    if route is None:
        return []
    parcels = collect(
        route, _packed_tokens(seqs), operation="all_gather_token_ids", timeout=timeout
    )
    return list(itertools.chain.from_iterable(_unpacked_tokens(each) for each in parcels))


def _packed_tensor(tensor: Any) -> Parcel:
    problem: DistmetricsError | None = None
    if not isinstance(tensor, torch.Tensor):
        problem = InvalidType(f"a tensor is expected, not {type(tensor).__name__}")
    elif tensor.layout != torch.strided or tensor.is_meta or tensor.dtype not in _DTYPES:
        kind = f"{tensor.dtype} tensor of layout {tensor.layout} on {tensor.device}"
        problem = InvalidType(f"a strided tensor with values is expected, not a {kind}")
    if problem is not None:
        return Parcel.failed(problem)
    shape = tensor_bytes(torch.tensor(tensor.shape, dtype=torch.int64))
    data = torch.cat([shape, tensor_bytes(tensor)])
    return Parcel(data, (_DTYPES.index(tensor.dtype), tensor.dim()))


def _unpacked_tensor(parcel: Parcel) -> torch.Tensor:
    code, ndim = parcel.marks
    data = parcel.data.numpy().tobytes()
    shape = np.frombuffer(data, np.int64, count=ndim)
    return restore_tensor(data[8 * ndim :], _DTYPES[code], tuple(shape.tolist()))


def _check_alike(marks: Sequence[Marks]) -> None:
    """Raise if dtypes or numbers of dimensions differ; the message says which ranks have which."""
    kinds: dict[Marks, list[int]] = {}
    for rank, mark in enumerate(marks):
        kinds.setdefault(mark, []).append(rank)
    if len(kinds) == 1:
        return
    text = "; ".join(
        f"{str(_DTYPES[code]).removeprefix('torch.')} with {ndim} dimensions on {name_ranks(ranks)}"
        for (code, ndim), ranks in kinds.items()
    )
    same_dtype = len({code for code, _ in kinds}) == 1
    what, error = ("number of dimensions", InvalidValue) if same_dtype else ("dtype", InvalidType)
    raise error(f"gather_ragged: the {what} must be the same on all ranks of the group: {text}")


def _packed_tokens(seqs: Any) -> Parcel:
    """Lengths, then tokens, as one row of int64."""
    if isinstance(seqs, str | bytes) or not isinstance(seqs, Sequence | np.ndarray | torch.Tensor):
        kind = type(seqs).__name__
        return Parcel.failed(InvalidType(f"a list of token sequences is expected, not {kind}"))
    arrays: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    for index, seq in enumerate(seqs):
        try:
            arrays.append(_tokens(seq))
        except InvalidValue as error:
            return Parcel.failed(InvalidValue(f"sequence {index}: {error}"))
        except Exception as error:  # noqa: BLE001 (a sequence is the user's object)
            return Parcel.failed(InvalidType(f"sequence {index}: {error}"))
    lengths = np.array([len(array) for array in arrays], np.int64)
    row = np.concatenate([lengths, *arrays])
    return Parcel(torch.from_numpy(row.view(np.uint8)), (len(arrays), 0))


def _tokens(seq: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    if isinstance(seq, torch.Tensor):
        seq = seq.detach().cpu().numpy()
    array = None if isinstance(seq, str | bytes) else np.asarray(seq)
    if array is not None and array.ndim == 1 and array.size == 0:
        return np.empty(0, np.int64)
    if array is None or array.ndim != 1 or array.dtype.kind not in "biuO":
        raise InvalidType(f"a flat list of integers is expected, not {_shown(seq)}")
    if array.dtype.kind == "O" and not all(isinstance(token, int | np.integer) for token in array):
        raise InvalidType(f"a flat list of integers is expected, not {_shown(seq)}")
    info = np.iinfo(np.int64)
    if array.dtype.kind in "uO" and not info.min <= min(array) <= max(array) <= info.max:
        raise InvalidValue(f"tokens are int64, not as large as in {_shown(seq)}")
    return array.astype(np.int64)


def _shown(seq: object) -> str:
    text = repr(seq)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _unpacked_tokens(parcel: Parcel) -> list[list[int]]:
    row = np.frombuffer(parcel.data.numpy().tobytes(), np.int64)
    count = parcel.marks[0]
    ends = np.cumsum(row[:count])
    parts = np.split(row[count:], ends[:-1]) if count else []
    return [part.tolist() for part in parts]
