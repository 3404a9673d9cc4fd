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
    `lowest` and `highest` are the extreme shifts, in the wrong order where every value is zero.
    No mantissa has more than `bits` bits.
    """

    mantissa: Integers
    shift: Integers
    lowest: int
    highest: int
    bits: int


class _Format(NamedTuple):
    """The fields in the bits of an IEEE 754 interchange format, as scalars of its integers."""

    sign: Any  # where the sign bit is
    width: Any  # stored bits of the mantissa
    fraction: Any  # mask of these bits
    hidden: Any  # the bit in front of them, not stored
    top: Any  # the exponent field of infinities and NaN
    bias: int  # shift of a mantissa's lowest bit, less the exponent field


def _format(kind: type[np.signedinteger[Any]], width: int, exponent_bits: int) -> _Format:
    return _Format(
        kind(width + exponent_bits),
        kind(width),
        kind((1 << width) - 1),
        kind(1 << width),
        kind((1 << exponent_bits) - 1),
        ORIGIN - (1 << (exponent_bits - 1)) - width + 1,
    )


_DOUBLE = _format(np.int64, 52, 11)
_SINGLE = _format(np.int32, 23, 8)


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
        return Mantissas(bits.astype(np.int64), bits.astype(np.int64), 0, -1, 0)
    exponent = (bits >> form.width) & form.top
    mantissa = bits & form.fraction
    lowest, highest = int(exponent.min()), int(exponent.max())
    if highest == form.top:
        raise InvalidValue("an exact sum takes finite values only: count NaN and infinities apart")
    if lowest:
        mantissa |= form.hidden
    else:  # zeros or subnormals among them
        mantissa |= (exponent != 0) * form.hidden
        zero = mantissa == 0
        if zero.all():
            lowest, highest = 1, 0
        else:
            highest = max(highest, 1)
            np.maximum(exponent, 1, out=exponent)
            exponent[zero] = highest
            lowest = int(exponent.min())
    sign = bits >> form.sign  # -1 or 0
    mantissa ^= sign
    mantissa -= sign
    shift = exponent.astype(np.int64, copy=False)
    shift += form.bias
    return Mantissas(
        mantissa.astype(np.int64, copy=False),
        shift,
        lowest + form.bias,
        highest + form.bias,
        int(form.width) + 1,
    )
