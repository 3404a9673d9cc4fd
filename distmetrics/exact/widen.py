"""Numbers of any kind as float64."""

from __future__ import annotations

import numpy as np

from distmetrics.exact.encode import Floats, Numbers
from distmetrics.exact.rounding import quotient

_SIZE = np.int32(0x7FFF_FFFF)
_LEAST_NORMAL = np.int32(1 << 23)


def widened(values: Numbers) -> Floats:
    """The float64 nearest to each value; integers beyond the range of float64 are infinite.

    Subnormal float32 stay what they are, also where the processor is set to take them for zero.

    >>> widened(np.array([1, 10**400, -(2**53) - 1], dtype=object)).tolist()
    [1.0, inf, -9007199254740992.0]
    """
    if values.dtype == object:
        return np.array([quotient(int(value), 1) for value in values.tolist()], np.float64)
    wide = values.astype(np.float64)
    if values.dtype == np.float32:
        bits = values.view(np.int32)
        size = bits & _SIZE
        small = np.flatnonzero((size > 0) & (size < _LEAST_NORMAL))
        if small.size:
            wide[small] = np.copysign(np.ldexp(size[small].astype(np.float64), -149), bits[small])
    return wide
