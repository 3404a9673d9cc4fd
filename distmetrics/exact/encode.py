"""Numbers as signed integer mantissas and exponents, by integer operations on their bits."""

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
"""Bits are counted from 2**-ORIGIN, where limb 0 begins."""

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = NDArray[Any]


class Mantissas(NamedTuple):
    """Finite floats as `mantissa * 2**(exponent + bias - ORIGIN)`, all exact.

    A zero has mantissa 0 and the largest exponent of its array, so that it never widens the range.
    `lowest` and `highest` are the extremes of exponent + bias, in the wrong order where every
    value is zero. No mantissa has more than `bits` bits.
    """

    mantissa: Integers
    exponent: Integers
    bias: int
    lowest: int
    highest: int
    bits: int


class _Format(NamedTuple):
    """The fields in the bits of an IEEE 754 interchange format.

    Zero-dimensional arrays of its integers: NumPy takes these faster than scalars.
    """

    sign: NDArray[Any]  # where the sign bit is
    width: NDArray[Any]  # stored bits of the mantissa
    fraction: NDArray[Any]  # mask of these bits
    hidden: NDArray[Any]  # the bit in front of them, not stored
    top: NDArray[Any]  # the exponent field of infinities and NaN
    bias: int  # place of a mantissa's lowest bit, less the exponent field


def _format(kind: type[np.signedinteger[Any]], width: int, exponent_bits: int) -> _Format:
    return _Format(
        np.array(width + exponent_bits, kind),
        np.array(width, kind),
        np.array((1 << width) - 1, kind),
        np.array(1 << width, kind),
        np.array((1 << exponent_bits) - 1, kind),
        ORIGIN - (1 << (exponent_bits - 1)) - width + 1,
    )


_DOUBLE = _format(np.int64, 52, 11)
_SINGLE = _format(np.int32, 23, 8)


def largest(integers: Integers) -> int:
    """The largest of some integers, which `argmax` finds several times sooner than `max`."""
    return int(integers[integers.argmax()])


def least(integers: Integers) -> int:
    """The smallest of some integers."""
    return int(integers[integers.argmin()])


def mantissas(values: Numbers) -> Mantissas:
    """The signed integer mantissas and the exponents of float64, float32 or float16 values.

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
        return Mantissas(bits.astype(np.int64), bits.astype(np.int64), 0, 0, -1, 0)
    exponent = (bits >> form.width) & form.top
    mantissa = bits & form.fraction
    lowest, highest = least(exponent), largest(exponent)
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
            lowest = least(exponent)
    sign = bits >> form.sign  # -1 or 0
    mantissa ^= sign
    mantissa -= sign
    return Mantissas(
        mantissa.astype(np.int64, copy=False),
        exponent.astype(np.int64, copy=False),
        form.bias,
        lowest + form.bias,
        highest + form.bias,
        int(form.width) + 1,
    )
