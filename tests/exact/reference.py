"""The same mathematics by rational numbers, sharing no code with the package."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from distmetrics import exact


def nearest(value: Fraction) -> float:
    """The float64 nearest to a rational, by Python's correctly rounded division."""
    try:
        return value.numerator / value.denominator
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def total(values: Iterable[object]) -> Fraction:
    """The exact sum of numbers."""
    return sum((Fraction(value) for value in values), Fraction(0))


def rationals(block: exact.Limbs) -> list[Fraction]:
    """Each sum of a block, straight from the meaning of its digits."""
    return [
        sum(
            (digit * Fraction(2) ** (32 * (block.lo + i) - 1088) for i, digit in enumerate(row)),
            Fraction(0),
        )
        for row in block.digits.tolist()
    ]


def floats(width: int = 64) -> st.SearchStrategy[float]:
    """Finite floats over the whole range, subnormals and both zeros among them."""
    return st.floats(allow_nan=False, allow_infinity=False, width=width)  # type: ignore[arg-type]


def block_of(values: np.ndarray, rows: np.ndarray | None = None, count: int = 1) -> exact.Limbs:
    """A block that has the values added to it, to row 0 where no rows are given."""
    block = exact.zeros(count)
    exact.add(block, np.zeros(len(values), np.int64) if rows is None else rows, values)
    return block
