from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from distmetrics import exact
from distmetrics.exact import limbs
from tests.exact.reference import block_of, floats, nearest, rationals, total

INTEGERS = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
WIDTHS = {16: np.float16, 32: np.float32, 64: np.float64}


def digits_of(block: exact.Limbs) -> tuple[int, list[list[int]]]:
    """The normalized digits of a block, and where they start."""
    exact.normalize(block)
    return block.lo, block.digits.tolist()


@pytest.mark.parametrize("width", WIDTHS)
@given(data=st.data())
def test_a_sum_of_floats_is_the_exact_one(width: int, data: st.DataObject) -> None:
    """Every row holds the exact sum of its floats, over the whole range of their type."""
    values = data.draw(st.lists(floats(width), max_size=30))
    rows = data.draw(st.lists(st.integers(0, 2), min_size=len(values), max_size=len(values)))
    block = block_of(np.array(values, WIDTHS[width]), np.array(rows, np.int64), count=3)
    expected = [total(v for v, r in zip(values, rows, strict=True) if r == row) for row in range(3)]
    assert rationals(block) == expected
    decoded = exact.decode(block.digits, block.lo)
    assert [exact.to_float(units, block.lo) for units in decoded] == [nearest(v) for v in expected]


@given(st.lists(floats(), min_size=1, max_size=30))
@example([1e308, 1e-308, -1e308])
@example([5e-324] * 3 + [2.0**-1022])
@example([1.0, 1e100, 1.0, -1e100])
def test_a_rounded_sum_equals_fsum(values: list[float]) -> None:
    """The rounded sum has the bits of math.fsum wherever fsum does not overflow on the way."""
    block = block_of(np.array(values))
    result = exact.to_float(exact.decode(block.digits, block.lo)[0], block.lo)
    try:
        expected = math.fsum(values)
    except OverflowError:
        expected = nearest(total(values))
    assert result == expected


@pytest.mark.parametrize("dtype", INTEGERS)
@given(data=st.data())
def test_a_sum_of_integers_is_the_exact_one(dtype: str, data: st.DataObject) -> None:
    """Integers of every width, bools and uint64 among them, are summed with no wrap-around."""
    values = data.draw(npst.arrays(dtype, st.integers(0, 20)))
    block = block_of(values)
    units = exact.decode(block.digits, block.lo)[0]
    assert exact.to_int(units, block.lo) == sum(int(value) for value in values)


@given(st.lists(st.integers(-(2**1200), 2**1200), min_size=1, max_size=10))
@example([10**400, -(10**400), 1])
@example([0, 0])
def test_python_integers_of_any_size_are_summed(values: list[int]) -> None:
    """Integers far beyond 64 bits, and beyond float64's range, are summed exactly."""
    block = block_of(np.array(values, object))
    units = exact.decode(block.digits, block.lo)[0]
    assert exact.to_int(units, block.lo) == sum(values)


def test_kinds_of_numbers_mix_in_one_sum() -> None:
    """One row takes float64, float32, float16, bools, integers and Python ints together."""
    block = exact.zeros(1)
    parts = [
        np.array([0.1, -1e300]),
        np.array([0.1], np.float32),
        np.array([6e-8], np.float16),
        np.array([True, True]),
        np.array([2**64 - 1], np.uint64),
        np.array([-(2**63)], np.int64),
        np.array([2**100], object),
    ]
    for part in parts:
        exact.add(block, np.zeros(part.size, np.int64), part)
    expected = total(value for part in parts for value in part.tolist())
    assert rationals(block) == [expected]


def test_counters_pass_the_limits_of_floats_and_of_small_integers() -> None:
    """Counts go past 2**24, 2**53 and an unsigned byte's 255 with no unit lost."""
    for values, expected in [
        (np.array([16777216, 1, 1, 1, 1], np.float32), 16777220),
        (np.array([2**53, 1, 1, 1], np.int64), 2**53 + 3),
        (np.array([200, 100], np.uint8), 300),
        (np.array([True] * 300), 300),
    ]:
        block = block_of(values)
        assert exact.to_int(exact.decode(block.digits, block.lo)[0], block.lo) == expected


@given(data=st.data(), values=st.lists(floats(), min_size=1, max_size=24))
def test_any_split_and_any_order_give_equal_digits(
    data: st.DataObject, values: list[float]
) -> None:
    """Normalized digits are equal however the values were permuted, split and merged."""
    rows = data.draw(st.lists(st.integers(0, 3), min_size=len(values), max_size=len(values)))
    once = block_of(np.array(values), np.array(rows), count=4)
    order = data.draw(st.permutations(range(len(values))))
    ranks = data.draw(st.integers(1, 8))
    owners = data.draw(
        st.lists(st.integers(0, ranks - 1), min_size=len(order), max_size=len(order))
    )
    blocks = [exact.zeros(4) for _ in range(ranks)]  # some stay empty
    for index, owner in zip(order, owners, strict=True):
        exact.add(blocks[owner], np.array([rows[index]]), np.array([values[index]]))
    for rank in data.draw(st.permutations(range(ranks))):
        if data.draw(st.booleans()):
            exact.normalize(blocks[rank])
    while len(blocks) > 1:  # any tree of merges
        other = blocks.pop(data.draw(st.integers(0, len(blocks) - 1)))
        exact.merge(blocks[data.draw(st.integers(0, len(blocks) - 1))], other)
    assert digits_of(blocks[0]) == digits_of(once)


def test_more_values_than_one_chunk_are_all_added() -> None:
    """Arrays longer than a chunk give the exact sums, whatever their layout in memory."""
    rng = np.random.default_rng(1)
    size = 2 * limbs._CHUNK + 17
    values, rows = rng.standard_normal(size), rng.integers(0, 5, size)
    strided = np.repeat(values, 2)[::2]
    swapped = values.astype(values.dtype.newbyteorder())
    for given_values in (values, strided, swapped):
        block = block_of(given_values, rows, count=5)
        sums = [exact.to_float(units, block.lo) for units in exact.decode(block.digits, block.lo)]
        assert sums == [math.fsum(values[rows == row]) for row in range(5)]


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_numbers_scattered_over_many_rows_reach_their_own(kind: type) -> None:
    """Rows in any order, with repeats, each receive their own values and no others."""
    rng = np.random.default_rng(2)
    values, rows = (rng.standard_normal(3000) * 100).astype(kind), rng.integers(0, 700, 3000)
    block = block_of(values, rows, count=700)
    assert rationals(block) == [total(values[rows == row].tolist()) for row in range(700)]


def test_zeros_of_either_sign_need_no_limb_and_sum_to_positive_zero() -> None:
    """Zeros, of any type, neither widen a block nor leave a sign."""
    block = block_of(np.array([-0.0, 0.0, -0.0]))
    exact.add(block, np.zeros(2, np.int64), np.zeros(2, np.float32))
    exact.add(block, np.zeros(1, np.int64), np.array([0], object))
    assert block.digits.shape == (1, 0)
    units = exact.decode(block.digits, block.lo)[0]
    assert math.copysign(1.0, exact.to_float(units, block.lo)) == 1.0
    narrow = block_of(np.array([0.0, 1.5, -0.0]))
    assert narrow.digits.shape[1] <= 3


def test_a_sum_that_cancels_leaves_no_limb() -> None:
    """Values that cancel leave, after normalizing, an empty block at the unit's place."""
    block = block_of(np.array([1e300, 1e-300, -1e300, -1e-300]))
    exact.normalize(block)
    assert (block.lo, block.digits.shape) == (exact.UNIT_LIMB, (1, 0))


def test_sums_pass_beyond_the_range_of_float64_and_back() -> None:
    """1e308 twice is the true sum, read as an infinity, and comes back when one is taken off."""
    block = block_of(np.array([1e308, 1e308]))
    units = exact.decode(block.digits, block.lo)[0]
    assert exact.to_int(units, block.lo) == 2 * int(1e308)
    assert exact.to_float(units, block.lo) == math.inf
    exact.add(block, np.array([0]), np.array([-1e308]))
    assert exact.to_float(exact.decode(block.digits, block.lo)[0], block.lo) == 1e308


def test_all_of_float64_lies_within_the_declared_limbs() -> None:
    """The least subnormal and 2**31 times the largest float64 need no limb beyond LIMBS."""
    largest = np.finfo(np.float64).max
    block = block_of(np.array([5e-324, largest, -largest, largest]))
    assert 0 <= block.lo < block.hi <= exact.LIMBS
    many = exact.Limbs(block.lo, block.digits * 2**30)
    exact.normalize(many)
    assert 0 <= many.lo < many.hi <= exact.LIMBS


@given(npst.arrays(np.int64, st.tuples(st.integers(1, 3), st.integers(1, 9))))
@example(np.array([[2**63 - 1] * 3]))
@example(np.array([[-(2**63)] * 3]))
@example(np.array([[-(2**31), -1, -1, -1], [2**31, 2**31 - 1, 2**31 - 1, 2**31 - 1]]))
@example(np.array([[2**31] + [2**31 - 1] * 8]))
def test_normalizing_keeps_the_value_and_balances_the_digits(digits: np.ndarray) -> None:
    """Any int64 digits become balanced ones of the same value, without zero limbs at the ends."""
    block = exact.Limbs(30, digits.copy())
    before = rationals(block)
    exact.normalize(block)
    assert rationals(block) == before
    assert ((block.digits >= -(2**31)) & (block.digits < 2**31)).all()
    assert block.digits.flags.c_contiguous
    if block.digits.size:
        assert block.digits[:, 0].any()
        assert block.digits[:, -1].any()


@given(npst.arrays(np.int64, st.tuples(st.integers(0, 4), st.integers(0, 70))))
@example(np.full((2, 6), -(2**63)))
@example(np.full((2, 7), -(2**63)))
@example(np.full((2, 8), 2**63 - 1))
def test_decoding_takes_any_digits(digits: np.ndarray) -> None:
    """Digits that were never normalized decode to the integers they stand for."""
    expected = [sum(digit << 32 * i for i, digit in enumerate(row)) for row in digits.tolist()]
    assert exact.decode(digits, 0) == expected


@given(st.lists(floats(), min_size=1, max_size=5))
def test_two_to_the_31_ranks_fit(values: list[float]) -> None:
    """Normalized blocks of 2**31 ranks can be summed digit by digit without an overflow."""
    block = block_of(np.array(values))
    exact.normalize(block)
    assert all(abs(digit) << 31 < 2**63 for digit in block.digits.ravel().tolist())
    everyone = exact.Limbs(block.lo, block.digits << 31)
    assert rationals(everyone) == [total(values) * 2**31]
    exact.normalize(everyone)
    assert rationals(everyone) == [total(values) * 2**31]


def test_digits_are_normalized_before_they_can_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block whose digits could reach the bound is normalized first, and stays exact."""
    monkeypatch.setattr(limbs, "_MOST", 1 << 36)
    rng = np.random.default_rng(3)
    parts = [rng.standard_normal(7) for _ in range(50)]
    block, merged = exact.zeros(1), exact.zeros(1)
    for part in parts:
        exact.add(block, np.zeros(7, np.int64), part)
        exact.add(block, np.zeros(1, np.int64), np.array([2**32 - 1]))
        other = block_of(part)
        exact.add(other, np.zeros(1, np.int64), np.array([2**32 - 1]))
        exact.merge(merged, other)
        for each in (block, merged):
            assert np.abs(each.digits).max() <= each.bound < 1 << 37
    expected = [total(np.concatenate(parts).tolist()) + 50 * (2**32 - 1)]
    assert rationals(block) == expected
    assert rationals(merged) == expected


@pytest.mark.parametrize("extreme", [2**62, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("value", [1e300, -1.0, 2**40, 2**200])
def test_full_digits_take_more_values(extreme: int, value: float) -> None:
    """Adding to, and merging, digits at int64's very limits loses nothing."""
    numbers = np.array([value] * 3, object if isinstance(value, int) else np.float64)
    full = np.full((1, 40), extreme)
    expected = rationals(exact.Limbs(30, full))[0]
    block = exact.Limbs(30, full.copy())
    exact.add(block, np.zeros(3, np.int64), numbers)
    assert rationals(block) == [expected + total([value] * 3)]
    block, other = exact.Limbs(30, full.copy()), exact.Limbs(30, full.copy())
    exact.merge(block, other)
    exact.merge(block, other)
    assert rationals(block) == [3 * expected]
    assert (other.digits == full).all()


def test_merging_leaves_the_other_block_alone() -> None:
    """The merged-in block keeps its values, also when the first one changes afterwards."""
    into, other = exact.zeros(2), block_of(np.array([1.5, 2.5]), np.array([0, 1]), count=2)
    exact.merge(into, other)
    exact.add(into, np.array([0]), np.array([1.0]))
    exact.merge(into, exact.zeros(2))
    assert rationals(other) == [Fraction(3, 2), Fraction(5, 2)]
    assert rationals(into) == [Fraction(5, 2), Fraction(5, 2)]
    with pytest.raises(ValueError, match="2 and 3 rows"):
        exact.merge(into, exact.zeros(3))


@pytest.mark.parametrize("rows", [slice(1, 3), np.array([1, 2]), np.array([False, True, True])])
def test_taken_rows_change_apart_from_their_block(rows: slice | np.ndarray) -> None:
    """A block of some rows starts with their sums and never changes the block it came from."""
    block = block_of(np.array([1.0, 2.0, 3.0]), np.arange(3), count=3)
    part = exact.take(block, rows)
    assert np.shares_memory(part.digits, block.digits) == isinstance(rows, slice)
    exact.add(part, np.array([0, 1]), np.array([0.5, 1e-300]))
    assert rationals(block) == [1, 2, 3]
    assert rationals(part) == [Fraction(5, 2), 3 + Fraction(1e-300)]
    merged, normal = exact.take(block, rows), exact.take(block, rows)
    exact.merge(merged, merged)
    exact.normalize(normal)
    assert rationals(merged) == [4, 6]
    assert rationals(normal) == [2, 3]
    assert rationals(block) == [1, 2, 3]


def test_dense_digits_travel_between_blocks() -> None:
    """Digits of a common limb range can be summed, and an empty block gives zeros."""
    one, two = block_of(np.array([1e30])), block_of(np.array([1e-30]))
    lo, hi = min(one.lo, two.lo), max(one.hi, two.hi)
    digits = (
        exact.dense(one, lo, hi) + exact.dense(two, lo, hi) + exact.dense(exact.zeros(1), lo, hi)
    )
    assert digits.dtype == np.int64
    assert rationals(exact.Limbs(lo, digits)) == [total([1e30, 1e-30])]
    assert exact.dense(one, one.lo, one.hi) is not one.digits


def test_dense_refuses_to_cut_off_a_limb() -> None:
    """A range that misses a used limb is an error; zero limbs may be left out."""
    block = exact.Limbs(30, np.array([[0, 5, 0]]))
    assert exact.dense(block, 31, 32).tolist() == [[5]]
    for lo, hi in [(0, 31), (32, 40), (0, 10), (50, 60)]:
        with pytest.raises(ValueError, match="do not hold"):
            exact.dense(block, lo, hi)
    assert exact.dense(exact.zeros(2), 50, 52).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", WIDTHS.values())
def test_values_that_are_not_finite_are_refused(bad: float, dtype: type) -> None:
    """NaN and the infinities are no part of an exact sum."""
    block = exact.zeros(1)
    with pytest.raises(ValueError, match="finite values only"):
        exact.add(block, np.zeros(3, np.int64), np.array([0.0, bad, 1.0], dtype))


def test_arguments_that_do_not_fit_are_refused() -> None:
    """Rows outside the block, unequal lengths and other types of values are errors."""
    block = exact.zeros(2)
    for row in (-1, 2):
        with pytest.raises(IndexError, match="2 rows"):
            exact.add(block, np.array([row]), np.array([1.0]))
    with pytest.raises(ValueError, match="equally long"):
        exact.add(block, np.array([0, 1]), np.array([1.0]))
    with pytest.raises(ValueError, match="1-D"):
        exact.add(block, np.array([[0]]), np.array([[1.0]]))
    for values in (np.array([1j]), np.array(["1"]), np.array([1.0], np.longdouble)):
        with pytest.raises(TypeError, match="exact sums take"):
            exact.add(block, np.array([0]), values)
    with pytest.raises(TypeError, match=r"integers only, got 0\.5"):
        exact.add(block, np.array([0]), np.array([0.5], object))
    exact.add(block, np.zeros(0, np.int64), np.zeros(0))
    assert rationals(block) == [0, 0]
