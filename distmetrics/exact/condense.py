"""Many numbers that belong to one sum, as a few with the same exact sum.

Float64 additions are exact as long as all numbers are multiples of one power of two and no partial
sum, in whatever order, needs more than 53 bits of it. Then plain sums over whole arrays, many times
as fast as limbs, lose nothing.
"""

from __future__ import annotations

import math

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


def _singles(values: Numbers) -> Numbers | None:
    """Float32 have 24 bits, so that float64 sums have room for those that are not too small.

    Numbers of at least 2^t are multiples of 2^(t-23); n of them below 2^e have sums below n·2^e,
    hence of less than 53 bits where t = e + log2(n) - 30.
    """
    sizes = np.abs(values)
    size = float(sizes.max())
    if not math.isfinite(size):
        return None
    least = max(_exponent(size) + len(values).bit_length() - 30, -126)  # all are normal above it
    small = np.flatnonzero(sizes < np.float32(math.ldexp(1.0, least)))
    if small.size > len(values) // 8:
        return _doubles(values.astype(np.float64))
    if small.size:
        rest = values.copy()
        rest[small] = 0
        return np.append(rest.sum(dtype=np.float64), values[small].astype(np.float64))
    return np.array([values.sum(dtype=np.float64)])


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
        high = (rest + sigma) - sigma  # multiples of the last bit of sigma
        rest = rest - high
        parts.append(high.sum())
    left = rest[np.flatnonzero(rest)]
    return np.append(np.array(parts), left) if parts else values
