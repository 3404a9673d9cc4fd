"""Reading many sums at once: the same bits as `decode` and `to_float` give, without Python ints."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from distmetrics.exact.encode import BITS, ORIGIN, UNIT_LIMB, Floats, Integers
from distmetrics.exact.limbs import decode
from distmetrics.exact.rounding import to_float

_MASK = np.array((1 << BITS) - 1, np.int64)
_LEAST_NORMAL = 2.0**-1022
_SMALL = 1 << 30  # an upper digit below, and a lower one below its square, make an int64


def to_floats(digits: Integers, lo: int) -> Floats:
    """Each row's sum as the nearest float64, ties to even: `to_float` of each of `decode`.

    The 63 uppermost bits of a sum become an int64, the last one sticky; the processor rounds that
    once, and `ldexp` is exact. Results in the subnormal range go one by one.

    Args:
        digits: int64, shape (rows, limbs); they need not be normalized.
        lo: absolute index of the first limb.

    >>> to_floats(np.array([[0, 3], [-1, 0], [1, 1 << 21]]), 34).tolist()
    [12884901888.0, -1.0, 9007199254740992.0]
    """
    rows, width = digits.shape
    if not digits.size:
        return np.zeros(rows, np.float64)
    sizes, negative = _sizes(digits)
    nonzero = sizes != 0
    top = np.zeros(rows, np.int64)  # the highest limb that is not zero
    for place in range(1, width + 1):
        top[nonzero[place]] = place
    padded = np.zeros((width + 3, rows), np.uint64)
    padded[2:] = sizes.view(np.uint64)
    flat, at = padded.reshape(-1), top * rows + np.arange(rows)
    first, second, third = flat[at + 2 * rows], flat[at + rows], flat[at]
    length = np.maximum(np.frexp(first.astype(np.float64))[1], 1).astype(np.uint64)
    kept = (((first << np.uint64(32)) | second) << (np.uint64(32) - length)) | (third >> length)
    sticky = (third << (np.uint64(64) - length)) != 0
    if width > 2:
        below = np.zeros((width + 4, rows), bool)
        np.logical_or.accumulate(nonzero, out=below[3:])
        sticky |= below.reshape(-1)[at]
    kept = (kept >> np.uint64(1)) | (kept & np.uint64(1)) | sticky
    exponent = BITS * (lo + top) - ORIGIN - 63 + length.astype(np.int64)
    with np.errstate(over="ignore", under="ignore"):
        result = np.ldexp(kept.view(np.int64).astype(np.float64), exponent.astype(np.int32))
    for row in np.flatnonzero((kept != 0) & (result < _LEAST_NORMAL)).tolist():
        result[row] = abs(to_float(decode(digits[row : row + 1], lo)[0], lo))
    np.negative(result, out=result, where=negative)
    return np.asarray(result)


def _sizes(digits: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """The sizes of the sums in limbs of 32 bits, one more than before, and which are negative.

    The shape is (limbs, rows), since each step below is one of all rows.
    """
    rows, width = digits.shape
    columns = np.ascontiguousarray(digits.T)
    sizes = np.empty((width + 1, rows), np.int64)
    carry = np.zeros(rows, np.int64)
    for place in range(width):
        raised = (columns[place] & _MASK) + carry
        np.bitwise_and(raised, _MASK, out=sizes[place])
        carry = (columns[place] >> BITS) + (raised >> BITS)
    sizes[width] = carry
    negative = carry < 0
    if negative.any():  # two's complement: invert and add 1
        inverted = sizes[:, negative] ^ _MASK
        inverted[width] = ~carry[negative]
        one = np.ones(inverted.shape[1], np.int64)
        for place in range(width + 1):
            inverted[place] += one
            one = inverted[place] >> BITS
            inverted[place] &= _MASK
        sizes[:, negative] = inverted
    return sizes, negative


def to_int64s(digits: Integers, lo: int) -> tuple[Integers, NDArray[np.bool_]]:
    """Each row's sum as an int64, and whether that is what the row holds.

    Sums that are no integers, or close to 2^62 in size or beyond, are not read.

    Args:
        digits: int64, shape (rows, limbs); they need not be normalized.
        lo: absolute index of the first limb.

    >>> values, read = to_int64s(np.array([[0, 5, 0], [0, -1, 2], [1, 5, 0]]), 33)
    >>> values[read].tolist(), read.tolist()
    ([5, 8589934591], [True, True, False])
    """
    rows, width = digits.shape
    unit = UNIT_LIMB - lo
    none = np.zeros(rows, np.int64)
    low = digits[:, unit] if 0 <= unit < width else none
    high = digits[:, unit + 1] if 0 <= unit + 1 < width else none
    read = (np.abs(high) < _SMALL) & (np.abs(low) < _SMALL * _SMALL)
    for others in (digits[:, : max(0, unit)], digits[:, max(0, unit + 2) :]):
        if others.size:
            read &= ~others.any(axis=1)
    return np.where(read, (high << BITS) + low, 0), read
