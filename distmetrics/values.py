"""What a logged value may be: numbers, tensors, arrays, lists, and values tagged with a reduction.

A value becomes a flat array of *contributions* (a tensor where it lives on a device), checked
here so that a wrong one is an error at the call, with its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distmetrics import reductions
from distmetrics.errors import DistmetricsError, InvalidType, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry.keys import checked_key, shown

Flat = NDArray[Any] | torch.Tensor
"""Contributions as a one-dimensional array, or tensor where they live on a device."""

MAX_ELEMENTS = 2**24
MAX_BITS = 4096
"""Of an integer; its sums are then far shorter than what Python, and JSON, write as digits."""
_EXACT = 1 << 53
"""Float64 holds every integer up to this."""
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


Refuse = Callable[[str, DistmetricsError], object]
"""Receives what is left out of a call, by key, and why; it may raise the error."""


def raise_at_once(key: str, error: DistmetricsError) -> None:
    """The strictest `Refuse`."""
    raise error


def flatten(outputs: object, refuse: Refuse = raise_at_once) -> dict[str, Any]:
    """The outputs with nested dicts joined by ``/``; absent values (None) are left out.

    Raises:
        InvalidType: `outputs` is no mapping, or a key is no string.
        InvalidValue: a text that is no key, or two ways that lead to the same key.
    """
    if not isinstance(outputs, Mapping):
        refuse(
            "outputs",
            InvalidType(
                f"outputs are a dict of key to value, not {shown(outputs)}; "
                'write log({"loss": loss})'
            ),
        )
        return {}
    flat: dict[str, Any] = {}
    for key, value in _walk(outputs, "", refuse):
        if key in flat:
            error = InvalidValue(
                f"key {key!r} comes twice in one call, as itself and through a nested dict; "
                "rename one of them"
            )
            refuse(key, error)
        else:
            flat[key] = value
    return {key: value for key, value in flat.items() if value is not None}


def _walk(outputs: Mapping[str, Any], prefix: str, refuse: Refuse) -> Iterable[tuple[str, Any]]:
    within = f"outputs: in {prefix!r}" if prefix else "outputs"
    for key, value in outputs.items():
        try:
            text = prefix + checked_key(key, within)
        except (InvalidType, InvalidValue) as error:
            refuse(prefix + str(key), error)
            continue
        if isinstance(value, Mapping):
            yield from _walk(value, f"{text}/", refuse)
        else:
            yield text, value


def is_scalar(value: Any) -> bool:
    """Whether an unregistered value is one number, hence logged by default."""
    if isinstance(value, bool | int | float):
        return True
    if isinstance(value, torch.Tensor):
        return _is_plain(value) and not value.is_meta and value.numel() == 1
    if isinstance(value, np.ndarray | np.generic):
        return value.size == 1 and value.dtype.kind in "biuf"
    return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a dense array of real numbers."""
    return (
        tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_complex()
    )


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
    if isinstance(value, np.ma.MaskedArray):
        raise _wrong(key, role, "a masked array (pass value.compressed(), or weights of 0)")
    if isinstance(value, np.ndarray):
        return _array(key, np.asarray(value), role), value.shape
    if isinstance(value, list | tuple):
        return _array(key, _listed(key, value, role), role), (len(value),)
    raise _wrong(key, role, shown(value))


def _listed(key: str, value: list[Any] | tuple[Any, ...], role: str) -> NDArray[Any]:
    """The numbers of a list; integers stay exact, however large.

    Raises:
        InvalidType: it holds something else.
        InvalidValue: it mixes floats with integers that no float64 holds.
    """
    if not all(isinstance(part, bool | int | float | np.number | np.bool_) for part in value):
        raise _wrong(key, role, f"a {type(value).__name__} that holds more than numbers")
    array = np.asarray(value, None if value else np.float64)
    if array.dtype.kind in "biu":
        return array
    integers = [int(part) for part in value if isinstance(part, int | np.integer | np.bool_)]
    if integers and len(integers) == len(value):
        return np.array(integers, object)  # a wide integer among them
    wide = next((integer for integer in integers if not -_EXACT <= integer <= _EXACT), None)
    if wide is not None:
        raise InvalidValue(
            f"key {key!r}: the {role} is a list of floats with an integer beyond 2**53 among them, "
            f"{shown(wide)}, which float64 may not hold; log the integers in a call of their own"
        )
    return array


def _array(key: str, array: NDArray[Any], role: str) -> NDArray[Any]:
    if array.size > MAX_ELEMENTS:
        raise _too_large(key, role, array.size)
    if array.dtype == object and all(type(part) is int for part in array.flat):
        bits = max((part.bit_length() for part in array.flat), default=0)
        if bits > MAX_BITS:
            raise InvalidValue(
                f"key {key!r}: the {role} is an integer of {bits} bits; at most {MAX_BITS} are "
                "accepted: pass it as a float, or scale it down"
            )
        return array.reshape(-1).copy()  # beyond 64 bits
    if array.dtype.kind not in "biuf":
        raise _wrong(key, role, f"an array of dtype {array.dtype}")
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    return array.reshape(-1).copy()


def _tensor(key: str, tensor: torch.Tensor, role: str) -> tuple[Flat, tuple[int, ...]]:
    if type(tensor).__name__ == "DTensor":
        tensor = _replicated(key, tensor, role)
    if not _is_plain(tensor):
        kind = "a nested tensor" if tensor.is_nested else f"a tensor with {tensor.layout}"
        raise _wrong(key, role, f"{kind} and {tensor.dtype}")
    if tensor.is_meta:
        raise _wrong(key, role, "a meta tensor, which has no data")
    if tensor.numel() > MAX_ELEMENTS:
        raise _too_large(key, role, tensor.numel())
    shape = tuple(tensor.shape)
    try:
        return _copied(tensor), shape
    except (RuntimeError, TypeError) as error:
        # a dtype that holds no numbers, or a tensor of a transformation, which has no data
        raise _wrong(key, role, f"a {type(tensor).__name__} of {tensor.dtype} ({error})") from error


def _copied(tensor: torch.Tensor) -> Flat:
    with torch.no_grad():
        flat = tensor.detach().reshape(-1).resolve_neg()
        if flat.dtype.is_floating_point and flat.dtype not in (torch.float32, torch.float64):
            flat = flat.float()
        if flat.device.type != "cpu":
            return flat.clone()
        copied: NDArray[Any] = flat.numpy().copy()
        return copied


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
