"""Quantiles: within 1% of a contribution on any range, the same bits in every split."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.exact import widened
from distmetrics.reductions.distributions import middle, size_buckets
from tests.vocabulary.splits import assert_same_bits, reduced

QS = [0.0, 0.01, 0.25, 0.5, 0.9, 0.99, 1.0]
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_SUBNORMAL = st.integers(-(2**52), 2**52).map(lambda units: units * 5e-324)


def of(qs: list[float] | None = None, **described: Any) -> dm.Registry:
    """A registry with the quantiles of one key."""
    registry = dm.Registry()
    registry.quantiles("t", qs=QS if qs is None else qs, **described)
    return registry


def close(found: float, true: float) -> bool:
    """Whether a value is within 1% of another."""
    if true == 0 or math.isinf(true):
        return found == true
    return abs(Fraction(found) - Fraction(true)) <= abs(Fraction(true)) / 100


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.one_of(_FINITE, _SUBNORMAL, st.just(0.0)), min_size=1, max_size=60),
    st.integers(0, 1 << 30),
)
def test_each_is_within_a_hundredth_of_a_contribution(samples: list[float], seed: int) -> None:
    """On any range, in any split: negative, zero, subnormal and huge numbers."""
    values = assert_same_bits(of(), samples, lambda batch: {"t": batch}, seed)
    ranked = sorted(samples)
    for q in QS:
        found = values[f"t/p{100 * q:g}"]
        assert close(found, ranked[math.floor(Fraction(str(q)) * (len(ranked) - 1))])
    assert values["t/p0"] == ranked[0]
    assert values["t/p100"] == ranked[-1]


@given(_FINITE | _SUBNORMAL)
def test_the_middle_of_a_bucket_is_near_every_number_in_it(number: float) -> None:
    """Within 1/128 of it, subnormal ones within half of their last bit where that is more."""
    size = abs(number)
    assume(size > 0)
    bucket = int(size_buckets(np.array([size]).view(np.int64))[0])
    found = Fraction(middle(bucket))
    allowed = max(Fraction(size) / 128, Fraction(5e-324) / 2)
    assert abs(found - Fraction(size)) <= allowed


def test_a_hundredth_is_counted_as_it_is_written() -> None:
    """Of 101 numbers the 99% quantile is number 99, though 0.99 has no exact float64."""
    found = reduced(of([0.29, 0.99]), [[list(range(101))]], lambda batch: {"t": batch})
    assert close(found["t/p29"], 29)
    assert close(found["t/p99"], 99)


def test_equal_numbers_are_exact() -> None:
    """No bucket blurs what is constant."""
    found = reduced(of(), [[[0.3] * 7]], lambda batch: {"t": batch})
    assert set(found.values()) == {0.3}


def test_infinities_are_at_the_ends_and_nan_makes_all_nan() -> None:
    """As they would in a sorted list; a NaN has no place in one."""
    samples = [math.inf, -math.inf, 1.0, 2.0, 3.0]
    found = reduced(of([0.0, 0.5, 1.0]), [[samples]], lambda batch: {"t": batch})
    assert (found["t/p0"], found["t/p100"]) == (-math.inf, math.inf)
    assert close(found["t/p50"], 2.0)
    assert found["t/nonfinite"] == 2
    found = reduced(of([0.5]), [[[*samples, math.nan]]], lambda batch: {"t": batch})
    assert math.isnan(found["t/p50"])


def test_left_out_values_do_not_count() -> None:
    """With nonfinite="skip" the quantiles are those of the rest; with none left they are NaN."""
    registry = of([0.0, 1.0], nonfinite="skip")
    found = reduced(registry, [[[math.nan, 1.0, math.inf]]], lambda batch: {"t": batch})
    assert found == {"t/p0": 1.0, "t/p100": 1.0, "t/nonfinite": 2}
    found = reduced(registry, [[[math.nan]]], lambda batch: {"t": batch})
    assert math.isnan(found["t/p0"])


def test_keys_are_named_in_percent() -> None:
    """Whole percents without a point."""
    found = reduced(of([0.5, 0.999, 0.9999]), [[[1.0]]], lambda batch: {"t": batch})
    assert list(found) == ["t/p50", "t/p99.9", "t/p99.99"]


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        np.array([[1, 2, 3]], np.uint8),
        [1, 2, 3],
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64),
    ],
)
def test_values_of_every_kind_are_taken(values: Any) -> None:
    """Floats come back, whatever the dtype."""
    found = reduced(of([0.0, 0.5, 1.0]), [[values]], lambda batch: {"t": batch})
    assert (found["t/p0"], found["t/p100"]) == (1.0, 3.0)
    assert close(found["t/p50"], 2.0)


def test_subnormal_numbers_survive_a_processor_that_flushes_them() -> None:
    """Buckets are cut from bits, and float32 are widened by integers where they are subnormal."""
    tiny = np.array([1, 3, 1 << 22], np.int32).view(np.float32)
    wanted = [float(Fraction(int(units), 1 << 149)) for units in tiny.view(np.int32)]
    torch.set_flush_denormal(True)
    try:
        wide = widened(tiny).view(np.int64).tolist()
    finally:
        torch.set_flush_denormal(False)
    assert wide == np.array(wanted).view(np.int64).tolist()


@pytest.mark.parametrize(
    "qs",
    [[], [0.5, 0.5], [0.9, 0.5], [-0.1], [1.1], [math.nan], ["0.5"], 0.5, "0.5", None, [True]],
)
def test_what_is_no_list_of_quantiles_is_refused(qs: Any) -> None:
    """The message names the key and says what quantiles are."""
    with pytest.raises(dm.DistmetricsError, match=r"'t'.*qs= are numbers from 0 to 1"):
        dm.Registry().quantiles("t", qs=qs)


def test_latest_keeps_them_as_long_as_they_are_the_latest() -> None:
    """All quantiles of one window, beside newer values of other keys."""
    with dm.Logger(of([0.0, 1.0])) as logger:
        logger.log({"t": [1.0, 2.0, math.inf], "loss": 1.0}, step=0)
        logger.log({"loss": 2.0}, step=1)
        logger.flush(wait=True)
        assert logger.latest == {"t/p0": 1.0, "t/p100": math.inf, "t/nonfinite": 1, "loss": 2.0}
        logger.log({"t": [5.0]}, step=2)
        logger.flush(wait=True)
        assert logger.latest == {"t/p0": 5.0, "t/p100": 5.0, "loss": 2.0}
