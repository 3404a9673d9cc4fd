from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distmetrics import exact
from tests.exact.reference import floats, nearest

LIMB_RANGE = st.integers(0, exact.LIMBS)
BIG = st.integers(-(2**1500), 2**1500)
SMALL = st.integers(-(2**70), 2**70)


@given(units=st.one_of(SMALL, BIG), lo=LIMB_RANGE)
@example(units=(2**54 + 1) << 14, lo=0)
@example(units=2**53 + 1, lo=34)  # ties go to the even neighbour
@example(units=2**53 + 3, lo=34)
@example(units=2**13, lo=0)  # half the smallest subnormal
@example(units=2**13 + 1, lo=0)
@example(units=3 * 2**13, lo=0)
@example(units=2**66 - 2**13, lo=0)  # rounds up to the smallest normal number
@example(units=2**66 - 2**13 - 1, lo=0)
@example(units=2**1024 - 2**970, lo=34)  # rounds up to an infinity
@example(units=2**1024 - 2**970 - 1, lo=34)
@example(units=-(2**1024), lo=34)
@example(units=((2**53 + 1) << 1000) + 1, lo=10)  # a tie but for the last of 1,054 bits
@example(units=-((2**53 + 1) << 1000) - 1, lo=10)
def test_a_sum_is_rounded_once_to_the_nearest_float(units: int, lo: int) -> None:
    """Exact sums become the nearest float64, ties to even, subnormals and overflow included."""
    expected = nearest(units * Fraction(2) ** (32 * lo - 1088))
    result = exact.to_float(units, lo)
    assert result == expected
    assert units or math.copysign(1.0, result) == 1.0


@given(value=SMALL, lo=LIMB_RANGE)
def test_integers_come_back_whole(value: int, lo: int) -> None:
    """An integer is read back exactly from any unit, and anything else is refused."""
    shift = 32 * (exact.UNIT_LIMB - lo)
    if shift >= 0:
        assert exact.to_int(value << shift, lo) == value
    else:
        assert exact.to_int(value, lo) == value << -shift


@pytest.mark.parametrize("units", [1, -1, 2**31, 2**32 + 1, 5 * 2**31])
def test_a_fraction_is_no_integer(units: int) -> None:
    """A sum with a fraction is refused as an integer, and the message says what to do."""
    with pytest.raises(ValueError, match=r"no integer.*to_float"):
        exact.to_int(units, exact.UNIT_LIMB - 1)


@given(num=st.one_of(SMALL, BIG), den=st.one_of(SMALL, BIG).filter(bool))
@example(num=-1, den=2**1074)
@example(num=1, den=2**1075)
@example(num=3, den=2**1075)
@example(num=0, den=-5)
@example(num=10**400, den=10**399)
@example(num=2**1500, den=-1)
@example(num=(2**53 + 1) * 3**200 + 1, den=3**200)  # just above a tie
@example(num=(2**53 + 3) * 3**200 - 1, den=3**200)
def test_a_quotient_of_integers_is_correctly_rounded(num: int, den: int) -> None:
    """Integers of any size divide to the nearest float64; overflow is a signed infinity."""
    result = exact.quotient(num, den)
    expected = nearest(Fraction(num, den))
    assert result == expected
    assert num or math.copysign(1.0, result) == 1.0


@given(num=floats(), den=floats())
@example(num=1e-310, den=1e-300)
@example(num=1e-300, den=1e10)
@example(num=5e-324, den=5e-324)
@example(num=-5e-324, den=1e300)
@example(num=1e308, den=-1e-308)
@example(num=-0.0, den=3.0)
@example(num=0.0, den=-5e-324)
def test_a_quotient_of_floats_is_that_of_ieee_754(num: float, den: float) -> None:
    """Finite floats divide as the processor does, to the last bit and the sign of zero."""
    result = exact.quotient(num, den)
    if den:
        expected = num / den
        assert (result, math.copysign(1, result)) == (expected, math.copysign(1, expected))
    elif num:
        assert result == math.copysign(math.inf, num) * math.copysign(1, den)
    else:
        assert math.isnan(result)


@given(whole=st.one_of(SMALL, BIG), value=floats())
def test_an_integer_beside_a_float_is_rounded_first(whole: int, value: float) -> None:
    """An integer divided by, or dividing, a float is first rounded to float64."""
    rounded = nearest(Fraction(whole))
    assert exact.quotient(whole, value) == pytest.approx(
        exact.quotient(rounded, value), rel=0, abs=0, nan_ok=True
    )
    assert exact.quotient(value, whole) == pytest.approx(
        exact.quotient(value, rounded), rel=0, abs=0, nan_ok=True
    )


@pytest.mark.parametrize(
    ("num", "den", "expected"),
    [
        (0, 0, math.nan),
        (1, 0, math.inf),
        (-1, 0, -math.inf),
        (1, -0.0, -math.inf),
        (-1.0, 0, -math.inf),
        (0.0, 0.0, math.nan),
        (math.inf, 2, math.inf),
        (-math.inf, -2.0, math.inf),
        (math.inf, 0, math.inf),
        (math.inf, -math.inf, math.nan),
        (math.nan, 1, math.nan),
        (1, math.nan, math.nan),
        (5, math.inf, 0.0),
        (-5.0, math.inf, -0.0),
        (10**400, 2.0, math.inf),
        (-(10**400), 1e308, -math.inf),
        (3.0, 10**400, 0.0),
        (True, 2, 0.5),
    ],
)
def test_a_quotient_never_raises(num: float, den: float, expected: float) -> None:
    """Zeros, infinities, NaN and integers beyond float64's range divide with no exception."""
    result = exact.quotient(num, den)
    assert result == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert math.isnan(expected) or math.copysign(1, result) == math.copysign(1, expected)


@given(num=st.integers(0, 2**400), den=st.integers(1, 2**400), shift=st.integers(-2600, 2600))
@example(num=0, den=3, shift=1)
@example(num=1, den=1, shift=-2148)  # the smallest subnormal
@example(num=1, den=1, shift=-2150)  # half of it, a tie
@example(num=9, den=4, shift=-2148)  # one and a half of it, a tie
@example(num=(2**53 + 1) ** 2, den=1, shift=0)  # ties between two floats
@example(num=(2**53 + 3) ** 2, den=1, shift=0)
@example(num=(2**53 + 1) ** 2 + 1, den=1, shift=0)
@example(num=(2**53 + 1) ** 2 * 3**200 + 1, den=3**200, shift=0)
@example(num=(2**53 + 1) ** 2 - 1, den=1, shift=0)
@example(num=2**2000, den=3, shift=0)
@example(num=1, den=3**900, shift=0)
def test_a_root_is_correctly_rounded(num: int, den: int, shift: int) -> None:
    """The square root of a ratio is the float64 nearest to the real one, ties to even."""
    square = Fraction(num, den) * Fraction(2) ** shift
    result = exact.root_of_ratio(num, den, shift)
    assert result >= 0
    if result == math.inf:
        assert square >= (2**1024 - 2**970) ** 2
        return
    low, high = math.nextafter(result, -math.inf), math.nextafter(result, math.inf)
    middle_high = (Fraction(result) + (2**1024 if high == math.inf else Fraction(high))) / 2
    middle_low = max(Fraction(0), (Fraction(result) + Fraction(low)) / 2)
    assert middle_low**2 <= square <= middle_high**2
    if square in {middle_low**2, middle_high**2}:
        assert int(result / math.ulp(result)) % 2 == 0


@given(floats().map(abs))
def test_the_root_of_a_square_is_the_number(value: float) -> None:
    """Roots of exact squares are exact, over all of float64's range."""
    top, bottom = value.as_integer_ratio()
    assert exact.root_of_ratio(top**2, bottom**2) == value


@pytest.mark.parametrize(("num", "den"), [(-1, 1), (1, 0), (1, -1)])
def test_a_root_of_no_positive_ratio_is_refused(num: int, den: int) -> None:
    """Negative ratios and zero denominators have no root here."""
    with pytest.raises(ValueError, match="num >= 0 and den > 0"):
        exact.root_of_ratio(num, den)
