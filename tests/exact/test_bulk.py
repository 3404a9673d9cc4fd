"""Sums read many at a time have the bits of sums read one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distmetrics import exact
from distmetrics.exact import to_floats, to_int64s

LOWEST = -(2**63)
DIGITS = st.one_of(
    st.just(0),
    st.integers(-3, 3),
    st.integers(LOWEST, 2**63 - 1),
    st.sampled_from([2**31, -(2**31), 2**32 - 1, -(2**32), 2**63 - 1, LOWEST]),
)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Any digits, and the limb they begin with."""
    width = draw(st.integers(0, 7))
    rows = draw(st.lists(st.lists(DIGITS, min_size=width, max_size=width), max_size=6))
    return np.array(rows, np.int64).reshape(len(rows), width), draw(st.integers(0, 70))


def one_by_one(digits: np.ndarray, lo: int) -> list[float]:
    """The sums as Python's integers give them."""
    return [exact.to_float(units, lo) for units in exact.decode(digits, lo)]


@given(blocks())
@example((np.array([[LOWEST, LOWEST, LOWEST]]), 30))
@example((np.array([[2**63 - 1] * 5]), 65))
@example((np.array([[1, 0], [-1, 0], [3, 0]]), 0))
def test_floats_of_any_digits(block: tuple[np.ndarray, int]) -> None:
    """Whatever the digits, normalized or not, the nearest float64 comes back."""
    digits, lo = block
    assert [x.hex() for x in to_floats(digits, lo).tolist()] == [
        x.hex() for x in one_by_one(digits, lo)
    ]


@given(
    st.lists(st.integers(0, 2**54), min_size=1, max_size=20),
    st.integers(0, 200),
    st.integers(-2, 2),
    st.booleans(),
)
def test_ties_go_to_even(tops: list[int], shift: int, off: int, negative: bool) -> None:
    """A sum that lies half-way between two floats, or one unit off, is rounded as it should be."""
    sign = -1 if negative else 1
    digits = []
    for top in tops:
        units = sign * (((2 * top + 1) << shift) + off)
        row = [(abs(units) >> 32 * place) & 0xFFFFFFFF for place in range(9)]
        digits.append([sign * digit if units * sign > 0 else -sign * digit for digit in row])
    block = np.array(digits, np.int64)
    assert to_floats(block, 20).tolist() == one_by_one(block, 20)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30))
def test_a_float_comes_back_as_it_was(values: list[float]) -> None:
    """The sum of one number is that number, subnormals too."""
    block = exact.zeros(len(values))
    exact.add(block, np.arange(len(values)), np.array(values))
    assert to_floats(block.digits, block.lo).tolist() == [value + 0.0 for value in values]


def test_sums_beyond_the_range_are_infinite() -> None:
    """As `to_float` has it, without a warning."""
    block = exact.zeros(2)
    exact.add(block, np.array([0, 0, 1, 1]), np.array([1.7e308, 1.7e308, -1.7e308, -1.7e308]))
    assert to_floats(block.digits, block.lo).tolist() == [np.inf, -np.inf]


@given(blocks())
def test_what_is_read_as_an_integer_is_that_integer(block: tuple[np.ndarray, int]) -> None:
    """A sum is either marked as not read, or its exact value comes back."""
    digits, lo = block
    values, read = to_int64s(digits, lo)
    for value, found, units in zip(
        values.tolist(), read.tolist(), exact.decode(digits, lo), strict=True
    ):
        if found:
            assert value << 32 * 34 == units << 32 * lo


@pytest.mark.parametrize("lo", [30, 33, 34])
@given(values=st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=20))
def test_usual_integers_are_read(lo: int, values: list[int]) -> None:
    """Normalized sums of integers up to 2^60 are read, whatever limbs their block has."""
    block = exact.zeros(len(values) + 1)
    exact.add(block, np.array([len(values)]), np.array([2.0 ** (32 * (lo - 34))]))
    exact.add(block, np.arange(len(values)), np.array(values))
    exact.normalize(block)
    found, read = to_int64s(block.digits[:-1], block.lo)
    assert read.all()
    assert found.tolist() == values


def test_no_rows_and_no_limbs() -> None:
    """Blocks without rows, or without a limb in use, read as nothing and as zeros."""
    assert to_floats(np.zeros((0, 3), np.int64), 34).tolist() == []
    assert to_floats(np.zeros((2, 0), np.int64), 34).tolist() == [0.0, 0.0]
    values, read = to_int64s(np.zeros((2, 0), np.int64), 34)
    assert (values.tolist(), read.tolist()) == ([0, 0], [True, True])
