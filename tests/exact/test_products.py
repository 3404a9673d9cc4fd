from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distmetrics import exact
from tests.exact.reference import floats, nearest, total

LONG = st.integers(-(2**63), 2**63 - 1)
HUGE = st.integers(-(2**200), 2**200)
# products of three of these neither overflow nor lose bits below the smallest subnormal
SAFE = st.floats(-(2.0**300), 2.0**300).filter(lambda x: x == 0 or abs(x) > 2.0**-280)


def bits(value: float) -> int:
    """The bits of a float64, which tell the zeros apart."""
    return int(np.float64(value).view(np.int64))


@given(x=floats(), w=floats())
def test_floats_are_multiplied_with_one_rounding(x: float, w: float) -> None:
    """A product of floats is the float64 one, an infinity beyond the range, with no warning."""
    result = exact.product(np.array([x]), np.array([w]))
    assert result.dtype == np.float64
    assert bits(result[0]) == bits(x * w)


@given(x=floats(32), w=floats(16))
def test_narrow_floats_are_widened_before_they_are_multiplied(x: float, w: float) -> None:
    """Products of float32 and float16 are those of their float64 values."""
    result = exact.product(np.array([x], np.float32), np.array([w], np.float16))
    assert result.dtype == np.float64
    assert bits(result[0]) == bits(x * w)


@given(x=LONG, w=LONG)
@example(x=-(2**63), w=-1)
@example(x=-(2**63), w=1)
@example(x=2**32, w=2**31)
@example(x=2**32, w=-(2**31))
def test_integers_are_multiplied_exactly(x: int, w: int) -> None:
    """A product of integers is exact, in int64 where it fits and as Python ints else."""
    result = exact.product(np.array([x]), np.array([w]))
    assert result.tolist() == [x * w]
    assert result.dtype == (np.int64 if abs(x * w) < 2**63 else object)
    assert all(type(value) is int for value in result.tolist())


def test_integers_that_fit_are_int64_although_their_maxima_do_not() -> None:
    """Large values with small weights, and small ones with large weights, need no Python ints."""
    result = exact.product(np.array([2**40, 1]), np.array([1, 2**40]))
    assert result.dtype == np.int64
    assert result.tolist() == [2**40, 2**40]


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "uint16", "uint32", "uint64", "object"])
def test_integers_of_every_type_are_multiplied(dtype: str) -> None:
    """Small and unsigned integers do not wrap around, bools count as 0 and 1."""
    top = {"bool": 1, "object": 2**70}.get(dtype) or int(np.iinfo(dtype).max)
    values = np.array([0, 1, top], dtype)
    assert exact.product(values, values).tolist() == [0, 1, top * top]
    assert exact.product(values, np.array([0])).tolist() == [0, 0, 0]
    empty = exact.product(values[:0], values[:0])
    assert empty.size == 0


@given(whole=st.one_of(LONG, HUGE, st.just(10**400)), value=floats())
@example(whole=2**53 + 1, value=3.0)
@example(whole=-(2**63), value=5e-324)
@example(whole=2**62 + 1, value=-(2.0**-1000))
def test_an_integer_by_a_float_is_rounded_once(whole: int, value: float) -> None:
    """The product of an integer of any size and a float is the exact one, rounded once."""
    integers = np.array([whole, 3]) if abs(whole) < 2**63 else np.array([whole, 3], object)
    numbers = np.array([value, 0.1])
    for result in (exact.product(integers, numbers), exact.product(numbers, integers)):
        assert result.dtype == np.float64
        assert result[0] == nearest(whole * Fraction(value))
        assert result[1] == 3 * 0.1


def test_unsigned_integers_by_floats_are_rounded_once() -> None:
    """The upper half of uint64 is multiplied exactly, too."""
    top = 2**64 - 1
    result = exact.product(np.array([top, 3], np.uint64), np.array([0.1, 0.1]))
    assert result.tolist() == [nearest(top * Fraction(0.1)), 3 * 0.1]


def test_infinities_and_nan_multiply_as_ieee_754_says() -> None:
    """Values that are not finite pass through products with integers of any size."""
    values = np.array([math.inf, -math.inf, math.nan, math.inf])
    for whole in (np.array([2, -2, 2, 0]), np.array([2**80, -(2**80), 2**80, 0], object)):
        assert np.array_equal(
            exact.product(whole, values), [math.inf, math.inf, math.nan, math.nan], equal_nan=True
        )


def test_one_weight_serves_many_values() -> None:
    """A weight of one element is broadcast over the values."""
    wide = np.array([2**60 + 1, 5])
    assert exact.product(wide, np.array([0.5])).tolist() == [2.0**59, 2.5]
    assert exact.product(np.array([1.5, 2.0]), np.array([3])).tolist() == [4.5, 6.0]


@pytest.mark.parametrize("call", [exact.product, lambda x, w: exact.exact_terms(x, w, 1)])
def test_what_is_no_real_number_is_refused(call: Callable[..., object]) -> None:
    """Complex numbers and strings have no products here."""
    with pytest.raises(TypeError, match="real numbers"):
        call(np.array([1j]), np.array([1.0]))
    with pytest.raises(TypeError, match="real numbers"):
        call(np.array([1.0]), np.array(["a"]))


@pytest.mark.parametrize("power", [1, 2])
@given(x=st.one_of(SAFE, LONG), w=st.one_of(SAFE, LONG, st.none()))
@example(x=1e8 + 1, w=0.1)
@example(x=2**63 - 1, w=0.1)
@example(x=0.1, w=2**63 - 1)
@example(x=0.1, w=-(2**63))
def test_terms_add_up_to_the_exact_product(power: int, x: float, w: float | None) -> None:
    """The exact sum of the terms is w·x or w·x² with no rounding at all."""
    terms = exact.exact_terms(np.array([x]), None if w is None else np.array([w]), power)
    assert total(value for term in terms for value in term.tolist()) == Fraction(x) ** power * (
        1 if w is None else Fraction(w)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@given(x=floats(16), w=floats(16))
def test_terms_of_narrow_floats_are_few(dtype: type, x: float, w: float) -> None:
    """Products that float64 holds are one term."""
    values, weights = np.array([x], dtype), np.array([w], dtype)
    for terms, expected in [
        (exact.exact_terms(values, None, 1), Fraction(x)),
        (exact.exact_terms(values, None, 2), Fraction(x) ** 2),
        (exact.exact_terms(values, weights, 1), Fraction(x) * Fraction(w)),
    ]:
        assert [total(term.tolist()) for term in terms] == [expected]


@given(x=HUGE, w=st.one_of(HUGE, SAFE.filter(lambda v: abs(v) > 2.0**-60 or v == 0)))
def test_terms_of_python_integers_are_exact(x: int, w: float) -> None:
    """Integers beyond 64 bits are squared and weighted exactly, also by a float."""
    weight = np.array([w], object if isinstance(w, int) else np.float64)
    terms = exact.exact_terms(np.array([x], object), weight, 2)
    assert total(v for term in terms for v in term.tolist()) == Fraction(w) * x**2


@pytest.mark.parametrize(
    ("x", "w", "power"),
    [
        (1.3e154, None, 2),  # the square is just below the largest float64
        (-1.1e154, 1.2, 2),
        (2.0**-482 / 3, None, 2),  # the last bit of the square is just above 2**-1074
        (5e-324, 2.0**1000 / 3, 1),  # a subnormal factor
        (1.7e308, 1e-200, 1),  # splitting the value itself would overflow
    ],
)
def test_terms_are_exact_up_to_the_ends_of_the_range(x: float, w: float | None, power: int) -> None:
    """Terms lose nothing as long as float64 can hold the bits of the product."""
    terms = exact.exact_terms(np.array([x]), None if w is None else np.array([w]), power)
    expected = Fraction(x) ** power * (1 if w is None else Fraction(w))
    assert total(v for term in terms for v in term.tolist()) == expected


def test_terms_of_mixed_types_keep_every_bit() -> None:
    """A float32 by an integer of 30 bits has one bit more than float64 holds in one term."""
    terms = exact.exact_terms(np.array([2**24 - 1], np.float32), np.array([2**30 - 1]), 1)
    assert total(v for term in terms for v in term.tolist()) == (2**24 - 1) * (2**30 - 1)


def test_terms_beyond_the_range_are_not_finite() -> None:
    """A product that overflows shows as an infinity among the terms, with no warning."""
    terms = exact.exact_terms(np.array([1e200, 1.0]), None, 2)
    assert terms[0][0] == math.inf
    assert sum(term[1] for term in terms) == 1.0


def test_terms_keep_the_shape_of_their_values() -> None:
    """Every term has the shape of the values, of arrays without elements too."""
    for shape in [(2, 3), (0,), ()]:
        values = np.full(shape, 0.1)
        for power in (1, 2):
            for term in exact.exact_terms(values, values, power):
                assert term.shape == shape


def test_bools_and_integers_give_exact_integer_terms() -> None:
    """Integers give a single array of exact integers, Python ints where int64 is too small."""
    (term,) = exact.exact_terms(np.array([2**40, 3]), np.array([True, False]), 2)
    assert term.tolist() == [2**80, 0]
    (term,) = exact.exact_terms(np.array([True]), None, 2)
    assert term.tolist() == [1]
