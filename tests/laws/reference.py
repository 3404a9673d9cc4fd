"""What the values of a window are, by rational numbers and `math.fsum`; shares no code with them.

A contribution is a Python number, or a pair of a number and its weight. Ints are exact, floats are
float64.
"""

from __future__ import annotations

import contextlib
import decimal
import math
from collections.abc import Sequence
from fractions import Fraction

Number = int | float
Pair = tuple[Number, Number]


def bits(value: object) -> object:
    """A value with its type and, of a float, its bits (all NaN are one)."""
    if isinstance(value, float):
        return "float", "nan" if math.isnan(value) else value.hex()
    return type(value).__name__, value


def all_bits(values: dict[str, object]) -> dict[str, object]:
    """`bits` of every value."""
    return {key: bits(value) for key, value in values.items()}


def rounded(value: Fraction) -> float:
    """The nearest float64; beyond the range an infinity."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def summed(values: Sequence[Number]) -> Number:
    """The sum: an int of ints, else the exact sum rounded once, as `math.fsum` has it."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    total = rounded(sum(map(Fraction, values), Fraction(0)))
    with contextlib.suppress(OverflowError):  # on the way, where only the sum itself counts
        assert total == math.fsum(values)
    return total


def quotient(above: Number, below: Number) -> float:
    """Of two ints correctly rounded, else the float64 division."""
    if isinstance(above, int) and isinstance(below, int):
        if below == 0:
            return math.nan if above == 0 else math.copysign(math.inf, above)
        return rounded(Fraction(above, below))
    above, below = (x if isinstance(x, float) else rounded(Fraction(x)) for x in (above, below))
    if below == 0:
        return math.nan if above == 0 else math.copysign(math.inf, above)
    return above / below


def product(value: Number, weight: Number) -> Number:
    """Of ints exact, else rounded once to float64."""
    if isinstance(value, int) and isinstance(weight, int):
        return value * weight
    return rounded(Fraction(value) * Fraction(weight))


def count(values: Sequence[Number], steps: int) -> Number:
    """The sum for each step."""
    total = summed(values)
    if isinstance(total, int) and total % steps == 0:
        return total // steps
    return quotient(total, steps)


def average(pairs: Sequence[Pair]) -> float | None:
    """The weighted mean; None where every weight is zero."""
    pairs = [pair for pair in pairs if pair[1] != 0]
    if not pairs:
        return None
    return quotient(summed([product(*pair) for pair in pairs]), summed([w for _, w in pairs]))


def ratio(pairs: Sequence[Pair]) -> float:
    """The sum of numerators over that of denominators."""
    return quotient(summed([a for a, _ in pairs]), summed([b for _, b in pairs]))


def extreme(values: Sequence[Number], largest: bool) -> Number:
    """The largest or smallest; a float where any value is one. -0.0 lies below 0.0.

    Ints beyond 2^64 are float64s.
    """

    def order(value: Number) -> tuple[Number, float]:
        return value, math.copysign(1.0, value)

    values = [v if isinstance(v, float) or abs(v) < 2**64 else int(float(v)) for v in values]
    found = max(values, key=order) if largest else min(values, key=order)
    return float(found) if any(isinstance(value, float) for value in values) else int(found)


def l2_norm(values: Sequence[Number], steps: int) -> float:
    """The root of the sum of squares, over several steps the root of its mean."""
    return math.sqrt(quotient(summed([product(value, value) for value in values]), steps))


def std(pairs: Sequence[Pair], ddof: Number = 0) -> float | None:
    """The standard deviation, rounded once; None where every weight is zero."""
    pairs = [pair for pair in pairs if pair[1] != 0]
    if not pairs:
        return None
    weight = sum((Fraction(w) for _, w in pairs), Fraction(0))
    free = weight - Fraction(ddof)
    if free <= 0:
        return math.nan
    mean = sum((Fraction(x) * Fraction(w) for x, w in pairs), Fraction(0)) / weight
    spread = sum((Fraction(w) * (Fraction(x) - mean) ** 2 for x, w in pairs), Fraction(0))
    return root(spread / free)


def root(value: Fraction) -> float:
    """The float64 nearest to the root."""
    with decimal.localcontext() as context:
        context.prec = 400
        context.Emax, context.Emin = decimal.MAX_EMAX, decimal.MIN_EMIN
        quotient = decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)
        return float(quotient.sqrt())
