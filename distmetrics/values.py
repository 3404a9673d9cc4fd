"""What a logged value may be: numbers, tensors, arrays, lists, and values tagged with a reduction.

A value becomes a flat array of *contributions* (a tensor where it lives on a device), checked
here so that a wrong one is an error at the call, with its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distmetrics import reductions
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions import Reduction

Flat = NDArray[Any] | torch.Tensor
"""Contributions as a one-dimensional array, or tensor where they live on a device."""

MAX_ELEMENTS = 2**24
ACCEPTED = (
    "a number, a bool, a tensor or array of any shape with a real dtype, or a list of numbers"
)


class Tagged:
    """A value that carries its own reduction.

    Args:
        value: as for a registered key.

    Example:
        >>> import distmetrics as dm
        >>> dm.Count(3).reduction.kind
        'count'
    """

    __slots__ = ("reduction", "value", "weight")

    def __init__(self, value: Any, weight: Any, reduction: Reduction) -> None:
        self.value = value
        self.weight = weight
        self.reduction = reduction

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value!r})"


class Count(Tagged):
    """Summed over ranks and micro-batches, for each step of the window."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.count())


class Total(Tagged):
    """Summed over ranks, and over all steps since the run began."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.total())


class Average(Tagged):
    """Averaged over all elements, weighted with `weight` of the same shape (default: 1 each)."""

    __slots__ = ()

    def __init__(self, value: Any, weight: Any = None) -> None:
        super().__init__(value, weight, reductions.average())


class Ratio(Tagged):
    """The sum of all numerators over the sum of all denominators, of the same shape."""

    __slots__ = ()

    def __init__(self, numerator: Any, denominator: Any) -> None:
        super().__init__(numerator, denominator, reductions.ratio())


class Minimum(Tagged):
    """The smallest element."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.minimum())


class Maximum(Tagged):
    """The largest element."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.maximum())


class Std(Tagged):
    """The standard deviation of all elements; `ddof=1` for that of a sample."""

    __slots__ = ()

    def __init__(self, value: Any, weight: Any = None, ddof: int | float = 0) -> None:
        super().__init__(value, weight, reductions.std(ddof))


class L2Norm(Tagged):
    """The root of the sum of squares, e.g. a gradient norm from shards."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.l2_norm())


class Same(Tagged):
    """A value on which all ranks should agree."""

    __slots__ = ()

    def __init__(self, value: Any) -> None:
        super().__init__(value, None, reductions.same())


def flatten(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs with nested dicts joined by ``/``; absent values (None) are left out.

    Raises:
        InvalidType: `outputs` is no mapping, or a key is no string.
        InvalidValue: a key is empty, or two ways lead to the same key.
    """
    if not isinstance(outputs, Mapping):
        raise InvalidType(
            f"log takes a dict of key to value, not {type(outputs).__name__}; "
            'write log({"loss": loss})'
        )
    flat: dict[str, Any] = {}
    for key, value in _walk(outputs, ""):
        if key in flat:
            raise InvalidValue(
                f"key {key!r} comes twice in one call, as itself and through a nested dict; "
                "rename one of them"
            )
        flat[key] = value
    return {key: value for key, value in flat.items() if value is not None}


def _walk(outputs: Mapping[str, Any], prefix: str) -> Iterable[tuple[str, Any]]:
    for key, value in outputs.items():
        if not isinstance(key, str):
            raise InvalidType(f"key {key!r} is a {type(key).__name__}; keys are strings")
        if not key:
            raise InvalidValue(f"an empty key (in {prefix or 'outputs'!r}); keys are not empty")
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value


def is_scalar(value: Any) -> bool:
    """Whether an unregistered value is one number, hence taken as an average."""
    if isinstance(value, bool | int | float):
        return True
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and value.layout is torch.strided and not value.is_complex()
    if isinstance(value, np.ndarray | np.generic):
        return value.size == 1 and value.dtype.kind in "biuf"
    return False


def to_flat(key: str, value: Any, role: str = "value") -> tuple[Flat, tuple[int, ...]]:
    """A copy of `value` as flat contributions, and the shape it came in.

    Half precision becomes float32 and quantities on a device stay there; nothing waits for the
    device. Python integers beyond 64 bits give an array of objects.

    Raises:
        InvalidType, InvalidValue: `value` is not accepted; the message names `key`.
    """
    if isinstance(value, bool | int | float | np.generic):
        return _array(key, np.asarray(value), role), ()
    if isinstance(value, torch.Tensor):
        return _tensor(key, value, role)
    if isinstance(value, np.ndarray):
        return _array(key, value, role), value.shape
    if isinstance(value, list | tuple):
        if not all(isinstance(part, bool | int | float | np.number | np.bool_) for part in value):
            raise _wrong(key, role, f"a {type(value).__name__} that holds more than numbers")
        array = np.asarray(value) if value else np.zeros(0)
        if array.dtype.kind == "f" and all(isinstance(part, int) for part in value):
            array = np.array(value, dtype=object)  # NumPy took float64 for want of a wide integer
        return _array(key, array, role), array.shape
    raise _wrong(key, role, f"{type(value).__name__} {str(value)[:60]!r}")


def _array(key: str, array: NDArray[Any], role: str) -> NDArray[Any]:
    if array.size > MAX_ELEMENTS:
        raise _too_large(key, role, array.size)
    if array.dtype == object and all(type(part) is int for part in array.flat):
        return array.reshape(-1).copy()  # beyond 64 bits
    if array.dtype.kind not in "biuf":
        raise _wrong(key, role, f"an array of dtype {array.dtype}")
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.reshape(-1).copy()


def _tensor(key: str, tensor: torch.Tensor, role: str) -> tuple[Flat, tuple[int, ...]]:
    if type(tensor).__name__ == "DTensor":
        tensor = _replicated(key, tensor, role)
    if tensor.is_complex() or tensor.is_quantized or tensor.layout is not torch.strided:
        raise _wrong(key, role, f"a tensor of dtype {tensor.dtype} and layout {tensor.layout}")
    if tensor.device.type == "meta":
        raise _wrong(key, role, "a meta tensor, which has no data")
    if tensor.numel() > MAX_ELEMENTS:
        raise _too_large(key, role, tensor.numel())
    shape = tuple(tensor.shape)
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)
        if flat.dtype.is_floating_point and flat.dtype not in (torch.float32, torch.float64):
            flat = flat.float()
        if flat.device.type != "cpu":
            return flat.clone(), shape
        return flat.numpy().copy(), shape


def _replicated(key: str, tensor: Any, role: str) -> torch.Tensor:
    if not all(placement.is_replicate() for placement in tensor.placements):
        raise InvalidType(
            f"key {key!r}: the {role} is a DTensor placed as {list(tensor.placements)}; accepted "
            "is a replicated one: pass tensor.full_tensor(), or tensor.to_local() where every "
            "rank's shard is a part of what the reduction adds up"
        )
    local: torch.Tensor = tensor.to_local()
    return local


def _wrong(key: str, role: str, what: str) -> InvalidType:
    return InvalidType(f"key {key!r}: the {role} is {what}; accepted is {ACCEPTED}")


def _too_large(key: str, role: str, size: int) -> InvalidValue:
    return InvalidValue(
        f"key {key!r}: the {role} has {size} elements; at most 2^24 are accepted in one call: "
        "reduce it first, or register another key"
    )
