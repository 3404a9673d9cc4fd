"""Reading exact integers as float64, each rounded once."""

from __future__ import annotations

import math
import struct

from distmetrics.errors import InvalidValue
from distmetrics.exact.encode import BITS, ORIGIN

_LEAST_NORMAL = 2.0**-1022
_LEAST_EXPONENT = -1074  # of the smallest subnormal


def round_scaled(value: int, exponent: int) -> float:
    """The float64 nearest to `value * 2**exponent`, ties to even; beyond the range an infinity.

    Subnormal results are assembled from their bits, so that a mode which flushes them to zero
    does not touch them.
    """
    length = value.bit_length()
    if length == 0:
        return 0.0
    if length > 1023:  # float() would overflow: keep 64 bits, the last one sticky
        drop = length - 64
        size = abs(value)
        kept = size >> drop
        kept |= (kept << drop) != size
        value = kept if value > 0 else -kept
        exponent += drop
        length = 64
    if length + exponent > -1022:
        try:
            return math.ldexp(float(value), exponent)
        except OverflowError:
            return math.copysign(math.inf, value)
    bits = _shift_half_even(abs(value), _LEAST_EXPONENT - exponent)
    return float(struct.unpack("<d", struct.pack("<Q", bits | ((value < 0) << 63)))[0])


def _shift_half_even(size: int, drop: int) -> int:
    if drop <= 0:
        return size << -drop
    if drop > size.bit_length():  # below one half
        return 0
    kept = size >> drop
    rest = size - (kept << drop)
    half = 1 << (drop - 1)
    return kept + (rest > half or (rest == half and kept & 1 == 1))


def to_float(units: int, lo: int) -> float:
    """The float64 nearest to `units * 2**(32*lo - 1088)`, ties to even.

    Beyond the range it is an infinity, zero is +0.0, and subnormal results are right.

    >>> to_float(3, 34), to_float(1, 0), to_float(10**400, 34)
    (3.0, 0.0, inf)
    """
    return round_scaled(units, BITS * lo - ORIGIN)


def to_int(units: int, lo: int) -> int:
    """The integer `units * 2**(32*lo - 1088)`.

    Raises:
        InvalidValue: the value is no integer.

    >>> to_int(5, 34), to_int(5 << 32, 33)
    (5, 5)
    """
    shift = BITS * lo - ORIGIN
    if shift >= 0:
        return units << shift
    whole = units >> -shift
    if whole << -shift != units:
        raise InvalidValue(
            f"the sum is no integer (about {to_float(units, lo)!r}): read it with to_float"
        )
    return whole


def quotient(num: int | float, den: int | float) -> float:
    """The float64 nearest to num / den; never an exception.

    Two ints are divided exactly and rounded once, whatever their size. Beside a float an int is
    first rounded to float64 (beyond its range: an infinity), then divided as IEEE 754 does:
    0/0 is NaN, x/0 a signed infinity. Beyond the range the quotient is a signed infinity.

    >>> quotient(1, 3), quotient(10**400, 10**399), quotient(1.0, 0), quotient(0, 0)
    (0.3333333333333333, 10.0, inf, nan)
    """
    if isinstance(num, int) and isinstance(den, int):
        return _integer_quotient(num, den)
    return _float_quotient(_rounded(num), _rounded(den))


def _rounded(value: int | float) -> float:
    return round_scaled(value, 0) if isinstance(value, int) else float(value)


def _integer_quotient(num: int, den: int) -> float:
    if den == 0:
        return math.nan if num == 0 else math.inf if num > 0 else -math.inf
    if num == 0:
        return 0.0
    return round_ratio(num, den, 0)


def _float_quotient(num: float, den: float) -> float:
    if math.isnan(num) or math.isnan(den):
        return math.nan
    sign = math.copysign(1.0, num) * math.copysign(1.0, den)  # of a zero result, too
    if math.isinf(num):
        return math.nan if math.isinf(den) else sign * math.inf
    if math.isinf(den):
        return sign * 0.0
    if abs(den) >= _LEAST_NORMAL:
        ratio = num / den
        if abs(ratio) >= _LEAST_NORMAL:
            return ratio
    # Zeros, and subnormals, which the processor may be set to take for zeros.
    (top, top_exponent), (bottom, bottom_exponent) = integer_parts(num), integer_parts(den)
    if bottom == 0:
        return sign * math.inf if top else math.nan
    return math.copysign(round_ratio(top, bottom, top_exponent - bottom_exponent), sign)


def integer_parts(value: float) -> tuple[int, int]:
    """A finite float as an integer and an exponent of two, from its bits."""
    bits = struct.unpack("<Q", struct.pack("<d", value))[0]
    exponent = (bits >> 52) & 0x7FF
    size = bits & ((1 << 52) - 1)
    if exponent:
        size |= 1 << 52
    return -size if bits >> 63 else size, max(exponent, 1) + _LEAST_EXPONENT - 1


def round_ratio(num: int, den: int, exponent: int) -> float:
    """The float64 nearest to `num / den * 2**exponent`, ties to even; den is not 0."""
    size, divisor = abs(num), abs(den)
    more = max(0, 66 - size.bit_length() + divisor.bit_length())
    whole, rest = divmod(size << more, divisor)
    kept = whole << 1 | (rest != 0)  # a sticky bit below the 65 that decide the rounding
    return round_scaled(kept if (num < 0) == (den < 0) else -kept, exponent - more - 1)


def root_of_ratio(num: int, den: int, shift: int = 0) -> float:
    """The float64 nearest to `sqrt(num / den * 2**shift)`, ties to even.

    The root is taken of an integer of at least 113 bits, so that it has at least 57; a sticky
    bit below them says whether anything was cut off.

    Raises:
        InvalidValue: num is negative, or den is not positive.

    >>> root_of_ratio(1, 4), root_of_ratio(2, 1), root_of_ratio(1, 1, -4)
    (0.5, 1.4142135623730951, 0.25)
    """
    if num < 0 or den <= 0:
        raise InvalidValue(f"a root needs num >= 0 and den > 0, got num={num} and den={den}")
    if num == 0:
        return 0.0
    more = 114 - num.bit_length() + den.bit_length()
    more += (shift - more) % 2
    whole, rest = divmod(num << more, den) if more > 0 else divmod(num, den << -more)
    root = math.isqrt(whole)
    kept = root << 1 | (rest != 0 or root * root != whole)
    return round_scaled(kept, (shift - more) // 2 - 1)
