"""Condensed sums: a few numbers with the same exact sum, or the numbers themselves."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.exact import condensed, condensed_moments


def exact_sum(values: Any) -> Fraction:
    """The sum as a rational number."""
    assert values is not None
    return sum((Fraction(value) for value in values.tolist()), Fraction(0))


_SCALES = st.sampled_from([1e-320, 1e-300, 1e-40, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e300])


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    """Arrays of many numbers, of one or of very different sizes."""
    count = draw(st.integers(1, 5000))
    random = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    with np.errstate(all="ignore"):
        values = random.normal(size=count) * draw(_SCALES)
        values[random.random(count) < draw(st.sampled_from([0, 0.01, 0.5]))] *= draw(_SCALES)
        values[random.random(count) < draw(st.sampled_from([0, 0.5]))] = 0
        values = values.astype(dtype)
    return values[np.isfinite(values)]


@settings(max_examples=150, deadline=None)
@given(arrays())
def test_the_sum_is_exactly_that_of_all(values: Any) -> None:
    """Of every size and mix, subnormal numbers among them."""
    assert exact_sum(condensed(values)) == exact_sum(values)


@settings(max_examples=150, deadline=None)
@given(arrays())
def test_moments_are_exactly_those_of_all(values: Any) -> None:
    """The sum of the numbers and that of their squares, wherever they are condensed at all."""
    found = condensed_moments(values)
    if found is not None:
        sums, squares = found
        assert exact_sum(sums) == exact_sum(values)
        assert exact_sum(squares) == exact_sum(
            np.array([Fraction(v) ** 2 for v in values.tolist()])
        )


@pytest.mark.parametrize("count", [65, 255, 256, 32_767, 32_768, 100_000])
def test_moments_are_exact_where_every_bit_is_needed(count: int) -> None:
    """The largest float32 below 1 and the smallest ones that are not added one by one."""
    values = np.full(count, np.nextafter(np.float32(1), np.float32(0)))
    values[::2] = np.float32(2.0 ** (count.bit_length() - 30)) * np.nextafter(
        np.float32(1), np.float32(2)
    )
    found = condensed_moments(values)
    assert found is not None
    assert [len(part) for part in found] == [1, 3]
    even, odd = (Fraction(float(value)) for value in values[:2])
    counts = len(values[::2]), len(values[1::2])
    assert exact_sum(found[0]) == counts[0] * even + counts[1] * odd
    assert exact_sum(found[1]) == counts[0] * even**2 + counts[1] * odd**2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_moments_with_a_value_that_is_not_finite_are_none(value: float) -> None:
    """Such values are counted apart."""
    values = np.ones(1000, np.float32)
    values[500] = value
    assert condensed_moments(values) is None


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_are_added_up_unless_they_would_overflow(dtype: Any) -> None:
    """One number, or all of them."""
    random = np.random.default_rng(0)
    limit = 2 if dtype is bool else int(np.iinfo(dtype).max)
    for most in (min(limit, 100), limit):
        values = random.integers(0, most, 1000, dtype=np.uint64).astype(dtype)
        found = condensed(values)
        assert found is not None
        assert exact_sum(found.astype(object)) == exact_sum(values.astype(object))


def test_usual_samples_become_a_few() -> None:
    """Per-sample losses come down to numbers that cost nothing to add."""
    values = np.random.default_rng(0).normal(size=32768)
    for sample, most in ((values, 10), (values.astype(np.float32), 100)):
        found = condensed(sample)
        assert found is not None
        assert len(found) < most


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [10, 1000])
def test_what_is_not_finite_has_no_sum(odd: float, dtype: Any, count: int) -> None:
    """It is for the caller to count."""
    values = np.ones(count, dtype)
    values[7] = odd
    assert condensed(values) is None


def test_nothing_is_flushed() -> None:
    """In a mode that takes subnormal numbers for zero the sum stays what it was."""
    values = np.full(1000, 3e-310)
    values[0] = 1.0
    wanted = exact_sum(values)
    torch.set_flush_denormal(True)
    try:
        found = condensed(values)
    finally:
        torch.set_flush_denormal(False)
    assert exact_sum(found) == wanted
