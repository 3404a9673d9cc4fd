"""Many numbers that belong to one sum, as a few with the same exact sum.

Float64 additions are exact as long as all numbers are multiples of one power of two and no partial
sum, in whatever order, needs more than 53 bits of it. Then plain sums over whole arrays, many times
as fast as limbs, lose nothing.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from distmetrics.exact.encode import Floats, Numbers
from distmetrics.exact.products import flushes_subnormals

_FEW = 64
"""Numbers up to which they are left as they are."""
_PASSES = 3
_LEAST = -900
"""The exponent below which parts could be subnormal."""
_MOST = 1000


def condensed(values: Numbers) -> Numbers | None:
    """A few finite numbers whose exact sum is that of `values`; None where not all are finite.

    Values come back as they are where they are few, very large or very small, or where the
    processor takes subnormal numbers for zero.

    Args:
        values: 1-D, of any type that `add` takes.

    Reference: S. M. Rump, T. Ogita, S. Oishi, *Accurate floating-point summation, part I:
    faithful rounding*, SIAM J. Sci. Comput. 31 (2008): the extraction of high parts.

    >>> parts = condensed(np.array([1.0, 2.0**-60] * 500))
    >>> len(parts) < 10, sum(map(int, parts * 2.0**60)) == 500 * (2**60 + 1)
    (True, True)
    """
    if values.dtype.kind in "biu" and len(values) > _FEW:
        return _integers(values)
    if values.dtype.kind != "f" or not len(values):
        return values
    if len(values) <= _FEW or flushes_subnormals():
        return values if math.isfinite(_largest(values)) else None
    if values.dtype.itemsize < 8:
        return _singles(values.astype(np.float32, copy=False))
    return _doubles(np.asarray(values, np.float64))


def _integers(values: Numbers) -> Numbers:
    if values.dtype.kind == "b":
        return np.array([np.count_nonzero(values)], np.int64)
    low, high = int(values.min()), int(values.max())
    if max(-low, high) * len(values) >= 1 << 63:
        return values
    return np.array([values.sum(dtype=np.int64)])


def _exponent(size: float) -> int:
    """The least e with size < 2^e."""
    return math.frexp(size)[1]


def _largest(values: Numbers) -> float:
    """The largest size; NaN or an infinity where there is one."""
    low, high = float(values.min()), float(values.max())
    return max(-low, high) if low == low and high == high else math.nan  # noqa: PLR0124


class _Split(NamedTuple):
    """Float32 in two: as float64 with zeros for the smallest ones, and these.

    With n numbers below 2^exponent and n < 2^bits, those of at least 2^t, t = exponent + bits - 30,
    are multiples of 2^(t-23). Float64 sums of them need at most 53 bits, in any order.
    """

    large: Floats
    small: Floats
    exponent: int
    bits: int


def _split(values: Numbers) -> _Split | None:
    """None where a value is not finite."""
    sizes = np.abs(values)
    size = float(sizes.max())
    if not math.isfinite(size):
        return None
    exponent, bits = _exponent(size), len(values).bit_length()
    least = max(exponent + bits - 30, -126)  # all are normal above it
    where = (sizes < np.float32(math.ldexp(1.0, least))).nonzero()[0]
    large = values.astype(np.float64)
    small = large[where]
    large[where] = 0
    return _Split(large, small[small.nonzero()], exponent, bits)


def _singles(values: Numbers) -> Numbers | None:
    split = _split(values)
    if split is None:
        return None
    if split.small.size > len(values) // 8:
        return _doubles(values.astype(np.float64))
    return np.concatenate(([split.large.sum()], split.small))


def condensed_moments(values: Numbers) -> tuple[Numbers, Numbers] | None:
    """A few numbers with the exact sum of `values`, and a few with that of their squares.

    None where there are too few of them, of other types than float32 or of too different sizes for
    that to pay, and where not all are finite.

    With x = h + l, where h is a multiple of 2^(exponent - k), k = (53 - bits) // 2, the sums of
    h·h, h·l and l·l need at most 53 bits.

    Args:
        values: 1-D, of any type that `add` takes.

    >>> _, squares = condensed_moments(np.array([1, 2**-12] * 500, np.float32))
    >>> sum(squares.tolist()) == 500 + 500 * 2**-24
    True
    """
    if values.dtype != np.float32 or len(values) <= _FEW or flushes_subnormals():
        return None
    split = _split(values)
    if split is None or split.small.size > len(values) // 8:
        return None
    low, small, exponent, bits = split
    sums = np.concatenate(([low.sum()], small))
    shift = math.ldexp(1.5, exponent - (53 - bits) // 2 + 52)
    high = low + shift
    high -= shift
    low -= high
    # einsum, since BLAS would start threads of its own
    products = [np.einsum("i,i->", *pair) for pair in ((high, high), (2 * high, low), (low, low))]
    return sums, np.concatenate((products, small * small))


def _doubles(values: Floats) -> Numbers | None:
    """High parts down to some bit of all numbers, which add up without error, then the rest."""
    parts: list[np.float64] = []
    rest = values
    for _ in range(_PASSES):
        size = _largest(rest)
        if size == 0:
            return np.array(parts)
        if not math.isfinite(size):
            return None
        top = _exponent(size) + len(rest).bit_length() + 1
        if not _LEAST < top - 53 < top < _MOST:
            break
        sigma = math.ldexp(1.0, top)
        high = rest + sigma
        high -= sigma  # multiples of the last bit of sigma
        rest = np.subtract(rest, high, out=None if rest is values else rest)
        parts.append(high.sum())
    left = rest[rest.nonzero()]
    return np.append(np.array(parts), left) if parts else values
