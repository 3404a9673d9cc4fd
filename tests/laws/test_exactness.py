"""Law 2 at its edges: cancellation, overflow on the way, wide integers, one rounding."""

from __future__ import annotations

import math
import statistics
from fractions import Fraction
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from tests.laws import reference
from tests.laws.reference import bits
from tests.laws.runs import Call, calls_of, random_split, records_of

ANY = st.floats(allow_nan=False, allow_infinity=False)


def reduced(samples: list[Any], tag: Any, world_size: int, seed: int = 0) -> Any:
    """One value from samples that are split at random over ranks and micro-batches."""
    split = random_split(Random(seed), [list(range(len(samples)))], world_size)
    calls = calls_of(split, lambda mine: {"k": tag([samples[i] for i in mine])})
    (record,) = records_of(calls, dm.Registry(), 1)
    return record.values["k"]


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(xs=st.lists(ANY, min_size=1, max_size=40), seed=st.integers(0, 2**32))
def test_sums_over_the_whole_range_of_floats_are_rounded_once(xs: list[float], seed: int) -> None:
    """From subnormals to the largest, with any cancellation: the float64 next to the true sum."""
    true = reference.summed(xs)
    for world_size in (1, 3):
        assert bits(reduced(xs, dm.Count, world_size, seed)) == bits(true)
        mean = reduced(xs, dm.Average, world_size, seed)
        assert bits(mean) == bits(reference.quotient(true, len(xs)))


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize(
    ("samples", "total"),
    [
        ([1e308, 1e308, -1e308], 1e308),  # fsum overflows on the way
        ([1e308] * 3, math.inf),
        ([-1e308] * 3, -math.inf),
        ([1e16, 1.0, -1e16], 1.0),
        ([0.1] * 10, 1.0),
        ([1.0, 2.0**-53, 2.0**-106], 1.0000000000000002),
        ([5e-324] * 3, 1.5e-323),
        ([2**53, 1, 1.0], 9007199254740994.0),
        ([2**53, 1], 2**53 + 1),
        ([2**62] * 8, 2**65),
        ([2**63 - 1, 1], 2**63),
        ([-(2**63), -1], -(2**63) - 1),
        ([2**100, 1, -(2**100)], 1),
        ([True, True, 1], 3),
    ],
    ids=repr,
)
def test_known_sums(samples: list[Any], total: Any, world_size: int) -> None:
    """Integers are exact beyond 2^53 and 2^63, floats rounded once at the end."""
    parts = [[sample] for sample in samples]
    split = random_split(Random(1), [list(range(len(parts)))], world_size)
    calls = calls_of(split, lambda mine: {"k": dm.Count([samples[i] for i in mine])})
    (record,) = records_of(calls, dm.Registry(), 1)
    assert bits(record.values["k"]) == bits(total)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_many_small_additions_to_a_large_sum_all_count(dtype: torch.dtype) -> None:
    """Half precision does not get stuck: sums are exact whatever the dtype of their parts."""
    one = torch.ones((), dtype=dtype)
    outputs = {"count": dm.Count(one), "mean": dm.Average(one), "many": dm.Count(one.expand(500))}
    (record,) = records_of([[Call(0, [], outputs)] * 300] * 2, dm.Registry(), 1)
    assert record.values == {"count": 600.0, "mean": 1.0, "many": 300_000.0}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_integers_of_every_width_add_up_beyond_their_dtype(world_size: int) -> None:
    """No sum wraps around, and a sum of bools is a number."""
    for dtype in (np.uint8, np.int8, np.int16, np.uint32, np.int64, np.uint64):
        top = np.iinfo(dtype).max
        samples = [np.array(top, dtype)[()]] * 9
        assert bits(reduced(samples, dm.Count, world_size)) == bits(9 * int(top))
    assert reduced([True] * 7, dm.Count, world_size) == 7
    assert reduced([True, False], dm.Average, world_size) == 0.5


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_quotient_of_integers_is_rounded_correctly(world_size: int) -> None:
    """Also where both are far beyond float64's exact integers."""
    big = 3**80
    value = reduced([big, big, 1], dm.Average, world_size)
    assert value == float(Fraction(2 * big + 1, 3))
    pairs = dm.Ratio([10**30 + 1, 1], [3 * 10**30, 7])
    (record,) = records_of(calls_of([[(0, [])]], lambda _: {"k": pairs}), dm.Registry(), 1)
    assert record.values["k"] == float(Fraction(10**30 + 2, 3 * 10**30 + 7))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_products_of_floats_are_rounded_once_and_of_integers_not(world_size: int) -> None:
    """A weighted mean is fsum(w·x) / fsum(w), with exact products where all are integers."""
    xs, ws = [0.1, 0.2, 0.3, 1e17], [0.7, 1e-9, 3.0, 1 / 3]
    expected = math.fsum(x * w for x, w in zip(xs, ws, strict=True)) / math.fsum(ws)

    def tag(indexes: list[int]) -> Any:
        return dm.Average([xs[i] for i in indexes], weight=[ws[i] for i in indexes])

    assert bits(reduced([0, 1, 2, 3], tag, world_size)) == bits(expected)
    wide = dm.Average([2**40 + 1, 5], weight=[2**40 - 1, 3])
    (record,) = records_of(calls_of([[(0, [])]], lambda _: {"k": wide}), dm.Registry(), 1)
    assert record.values["k"] == float(Fraction((2**80 - 1) + 15, 2**40 + 2))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_standard_deviations_are_exact(world_size: int) -> None:
    """A large offset costs no digits, a constant has none, and ddof is taken from the weight."""
    assert reduced([1e8, 1e8 + 1], dm.Std, world_size) == 0.5
    assert reduced([1e15, 1e15 + 2, 1e15 + 4], dm.Std, world_size) == (8 / 3) ** 0.5
    assert reduced([0.1] * 5, dm.Std, world_size) == 0.0
    assert reduced([3], dm.Std, world_size) == 0.0
    samples = [1.5, 2.25, 7.0, -3.5]
    sample_std = reduced(samples, lambda x: dm.Std(x, ddof=1), world_size)
    assert sample_std == statistics.stdev(samples)
    assert math.isnan(reduced([3.0], lambda x: dm.Std(x, ddof=1), world_size))
    # values 1 and 3 with weights 3 and 1: variance 0.75, and 3/3 with one taken off
    weighted = dm.Std([1.0, 3.0], weight=[3, 1], ddof=1)
    (record,) = records_of(calls_of([[(0, [])]], lambda _: {"k": weighted}), dm.Registry(), 1)
    assert record.values["k"] == 1.0


def test_a_running_total_is_exact_over_all_windows() -> None:
    """It is rounded where it is logged and nowhere else."""
    xs = [0.1] * 10 + [1e16, 1.0, -1e16]
    split = [[(step, [step]) for step in range(len(xs)) if step % 2 == rank] for rank in range(2)]
    calls = calls_of(split, lambda mine: {"t": dm.Total(xs[mine[0]]), "i": dm.Total(2**53 + 1)})
    records = records_of(calls, dm.Registry(), 1)
    assert [record.values["t"] for record in records] == [
        reference.summed(xs[: i + 1]) for i in range(len(xs))
    ]
    assert [record.values["i"] for record in records] == [
        (i + 1) * (2**53 + 1) for i in range(len(xs))
    ]


def test_an_l2_norm_over_several_steps_is_their_root_mean_square() -> None:
    """Within a step shards add up; over steps the norms are averaged as squares."""
    calls = [
        [Call(0, [], {"g": dm.L2Norm(3.0)}), Call(1, [], {"g": dm.L2Norm(6.0)})],
        [Call(0, [], {"g": dm.L2Norm(4.0)}), Call(1, [], {"g": dm.L2Norm(8.0)})],
    ]
    (record,) = records_of(calls, dm.Registry(), 2)
    assert record.values["g"] == math.sqrt((25 + 100) / 2)


def test_extremes_keep_integers_and_the_sign_of_zero() -> None:
    """Ints of 64 bits are exact, a mixture is a float, and -0.0 is below 0.0."""
    for samples, low, high in (
        ([2**53 + 1, 2**53], 2**53, 2**53 + 1),
        ([-(2**63), 2**63 - 1, 2**64 - 1], -(2**63), 2**64 - 1),
        ([1, 2.5], 1.0, 2.5),
        ([0.0, -0.0], -0.0, 0.0),
        ([-5, -7], -7, -5),
    ):
        for world_size in (1, 2):
            assert bits(reduced(samples, dm.Minimum, world_size)) == bits(low)
            assert bits(reduced(samples, dm.Maximum, world_size)) == bits(high)
