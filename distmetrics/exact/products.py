"""What is added for weighted sums and for sums of squares."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from distmetrics.errors import InvalidType
from distmetrics.exact.encode import ORIGIN, Floats, Integers, Numbers, mantissas
from distmetrics.exact.rounding import integer_parts, round_scaled
from distmetrics.exact.widen import widened

_EXACT = 1 << 53  # float64 holds every integer up to this
_LEAST_NORMAL = 2.0**-1022
_SPLITTER = 134217729.0  # 2**27 + 1


def product(x: Numbers, w: Numbers) -> Numbers:
    """`w * x` elementwise, as weighted sums add it.

    Floats give the float64 product, rounded once; integers (bools among them) the exact product,
    int64 where all of it fits and Python ints in an object array else; an integer by a float the
    exact product rounded once to float64. Beyond float64's range: an infinity, with no warning.

    Raises:
        InvalidType: an operand that holds no real numbers.

    >>> product(np.array([2, 3]), np.array([True, False])).tolist()
    [2, 0]
    >>> product(np.array([2**62]), np.array([4])).tolist() == [2**64]
    True
    """
    _check(x)
    _check(w)
    if _integral(x) and _integral(w):
        return _integer_product(x, w)
    if _integral(w):
        x, w = w, x
    if _integral(x):
        return _mixed_product(x, w)
    with np.errstate(all="ignore"):
        result: Floats = np.multiply(x, w, dtype=np.float64)
    if flushes_subnormals():
        _restore_subnormals(result, *np.broadcast_arrays(x, w))
    return result


def _check(array: Numbers) -> None:
    if array.dtype.kind not in "biufO":
        raise InvalidType(f"products take real numbers, got an array of {array.dtype}")


def _integral(array: Numbers) -> bool:
    return array.dtype.kind != "f"


def _largest_size(integers: Numbers) -> int:
    return max(abs(int(integers.min())), abs(int(integers.max()))) if integers.size else 0


def _integer_product(x: Numbers, w: Numbers) -> Numbers:
    most, most_weight = _largest_size(x), _largest_size(w)
    if max(most, most_weight, most * most_weight) < 1 << 63:
        return np.multiply(x.astype(np.int64), w.astype(np.int64))
    exact: Numbers = np.multiply(x.astype(object), w.astype(object))
    return exact.astype(np.int64) if _largest_size(exact) < 1 << 63 else exact


def _mixed_product(integers: Numbers, floats: Numbers) -> Floats:
    integers, floats = np.broadcast_arrays(integers, floats)
    if _largest_size(integers) <= _EXACT:
        return np.asarray(product(integers.astype(np.float64), floats))
    result = np.empty(integers.shape, np.float64)
    if integers.dtype.kind == "O":
        wide = np.ones(integers.shape, bool)
    else:
        wide = (integers > _EXACT) | (integers < -_EXACT)
        result[~wide] = product(integers[~wide].astype(np.float64), floats[~wide])
    pairs = zip(integers[wide].tolist(), floats[wide].tolist(), strict=True)
    result[wide] = [_wide_product(integer, value) for integer, value in pairs]
    return result


def _wide_product(integer: int, value: float) -> float:
    if not math.isfinite(value):
        return value * ((integer > 0) - (integer < 0))
    top, exponent = integer_parts(value)
    return round_scaled(integer * top, exponent)


def flushes_subnormals() -> bool:
    """Whether this thread's processor takes subnormal numbers, or rounds them, to zero."""
    return _LEAST_NORMAL * 0.5 == 0.0


def _restore_subnormals(result: Floats, x: Numbers, w: Numbers) -> None:
    """Computes again, with integers, the products that flushing may have changed."""
    small = np.isfinite(x) & np.isfinite(w) & (np.abs(result) < _LEAST_NORMAL)
    if not small.any():
        return
    left, right = mantissas(x[small]), mantissas(w[small])
    top = left.mantissa.astype(object) * right.mantissa.astype(object)
    exponent = left.exponent + right.exponent + (left.bias + right.bias - 2 * ORIGIN)
    exact = [round_scaled(t, e) for t, e in zip(top.tolist(), exponent.tolist(), strict=True)]
    negative = np.signbit(x[small]) ^ np.signbit(w[small])
    # copysign is a bit operation; a zero product keeps the sign that IEEE 754 gives it
    result[small] = np.copysign(np.array(exact), np.where(negative, -1.0, 1.0))


class _Part(NamedTuple):
    """Floats `values * 2**exponent` whose values have at most so many significant bits."""

    values: Floats
    exponent: Integers | int
    bits: int


def exact_terms(x: Numbers, w: Numbers | None, power: int) -> list[Numbers]:
    """Arrays whose exact sum is `w * x**power` elementwise; `w=None` stands for 1.

    Integers (bools among them) give one array of exact products, floats a few float64 arrays by
    error-free multiplication. The terms are exact unless a product exceeds float64's range, when
    they hold infinities, or has bits below its smallest subnormal, 2**-1074, which are rounded.

    Args:
        x: finite numbers.
        w: finite numbers of the same shape, or None.
        power: 1 or 2.

    Raises:
        InvalidType: an operand that holds no real numbers.

    Reference: T. J. Dekker, *A floating-point technique for extending the available precision*,
    Numerische Mathematik 18 (1971), with Veltkamp's splitting.

    >>> high, low = exact_terms(np.array([1.0 + 2**-40]), None, 2)
    >>> bool(high[0] == 1 + 2**-39), bool(low[0] == 2**-80)
    (True, True)
    """
    factors = [x] * power if w is None else [w] + [x] * power
    for factor in factors:
        _check(factor)
    if all(_integral(factor) for factor in factors):
        exact = factors[0]
        for factor in factors[1:]:
            exact = product(exact, factor)
        return [exact]
    if len(factors) == 1:
        return [x]
    if w is None and x.dtype == np.float32:  # 24 bits each, and squares far within the range
        wide = widened(x)
        return [wide * wide]
    terms = _parts(factors[0])
    for factor in factors[1:]:
        parts = _parts(factor)
        terms = [term for left in terms for right in parts for term in _two_product(left, right)]
    with np.errstate(all="ignore"):
        return [_scaled(term) for term in terms]


def _scaled(part: _Part) -> Floats:
    if isinstance(part.exponent, int) and part.exponent == 0:
        return part.values
    return np.asarray(np.ldexp(part.values, np.asarray(part.exponent, dtype=np.int32)))


def _parts(array: Numbers) -> list[_Part]:
    """The array as a sum of parts, with no value that could overflow or vanish in a product."""
    if array.dtype.kind == "f":
        flat = mantissas(array.reshape(-1))
        values = flat.mantissa.astype(np.float64).reshape(array.shape)
        exponent = flat.exponent.reshape(array.shape) + (flat.bias - ORIGIN)
        return [_Part(values, exponent, flat.bits)]
    most = _largest_size(array)
    if most <= _EXACT:
        return [_Part(array.astype(np.float64), 0, most.bit_length())]
    step = 53
    rest, parts = array.astype(object), []
    for place in range(0, most.bit_length() + 1, step):
        last = place + step > most.bit_length()
        piece = rest if last else rest & ((1 << step) - 1)  # the last one bears the sign
        parts.append(_Part(piece.astype(np.float64), place, step))
        rest = rest >> step
    return parts


def _two_product(left: _Part, right: _Part) -> list[_Part]:
    """The rounded product and, unless it is zero everywhere, its rounding error."""
    a, b = left.values, right.values
    exponent: Any = left.exponent + right.exponent
    rounded = a * b
    bits = left.bits + right.bits
    if bits <= 53:
        return [_Part(rounded, exponent, bits)]
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low
    product_part = _Part(rounded, exponent, 53)
    return [product_part, _Part(error, exponent, 53)] if error.any() else [product_part]


def _halves(a: Floats) -> tuple[Floats, Floats]:
    """High and low halves of at most 26 bits each (Veltkamp)."""
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
