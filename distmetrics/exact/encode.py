"""Numbers as signed integer mantissas and shifts, by integer operations on their bits."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distmetrics.errors import InvalidType, InvalidValue

BITS = 32
"""Payload bits of a limb."""
UNIT_LIMB = 34
"""The limb that weighs 1."""
LIMBS = 67
"""Limbs that hold 2**31 sums of 2**31 float64 each; only larger integers reach beyond."""
ORIGIN = BITS * UNIT_LIMB
"""A shift counts bits above 2**-ORIGIN."""

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[Any]


class Mantissas(NamedTuple):
    """Finite floats as `mantissa * 2**(shift - ORIGIN)`, all exact.

    A zero has mantissa 0 and the largest shift of its array, so that it never widens the range.
    `lowest` and `highest` are the extreme shifts; `empty` says that every value is zero.
    """

    mantissa: Integers
    shift: Integers
    lowest: int
    highest: int
    bits: int

    @property
    def empty(self) -> bool:
        return self.highest < self.lowest


class _Format(NamedTuple):
    """An IEEE 754 interchange format: the fields of its bits."""

    bits: type[np.signedinteger[Any]]
    fraction: int  # stored bits of the mantissa
    bias: int  # shift of the mantissa's lowest bit, less the exponent field

    @property
    def top(self) -> int:
        return int(np.iinfo(self.bits).max >> self.fraction)


_DOUBLE = _Format(np.int64, 52, ORIGIN - 1075)
_SINGLE = _Format(np.int32, 23, ORIGIN - 150)


def mantissas(values: Numbers) -> Mantissas:
    """The signed integer mantissas and the shifts of float64, float32 or float16 values.

    Raises:
        InvalidType: floats of another width.
        InvalidValue: NaN or an infinity among the values.
    """
    size = values.dtype.itemsize
    if size == 8:
        return _fields(np.asarray(values, dtype=np.float64).view(np.int64), _DOUBLE)
    if size == 4:
        return _fields(np.asarray(values, dtype=np.float32).view(np.int32), _SINGLE)
    if size == 2:  # every float16 is a normal float32, so no mode can flush it
        return _fields(np.asarray(values, dtype=np.float32).view(np.int32), _SINGLE)
    raise InvalidType(
        f"exact sums take float16, float32 and float64, got {values.dtype}: convert the values"
    )


def _fields(bits: NDArray[Any], form: _Format) -> Mantissas:
    if not bits.size:
        nothing = np.zeros(0, np.int64)
        return Mantissas(nothing, nothing, 0, -1, form.fraction + 1)
    sign = bits >> (8 * bits.dtype.itemsize - 1)  # -1 or 0
    exponent = bits >> form.fraction
    exponent &= form.top
    mantissa = bits & ((1 << form.fraction) - 1)
    lowest, highest = int(exponent.min()), int(exponent.max())
    if highest == form.top:
        raise InvalidValue("an exact sum takes finite values only: count NaN and infinities apart")
    if lowest:
        mantissa |= 1 << form.fraction
    else:  # zeros or subnormals among them
        mantissa |= (exponent != 0).astype(bits.dtype) << form.fraction
        np.maximum(exponent, 1, out=exponent)
        nonzero = mantissa != 0
        if not nonzero.any():
            lowest, highest = 1, 0
        else:
            highest = int(exponent.max())
            exponent[~nonzero] = highest
            lowest = int(exponent.min())
    mantissa ^= sign
    mantissa -= sign
    shift = exponent.astype(np.int64)
    shift += form.bias
    return Mantissas(
        mantissa.astype(np.int64, copy=False),
        shift,
        lowest + form.bias,
        highest + form.bias,
        form.fraction + 1,
    )
