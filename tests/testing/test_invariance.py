"""`assert_world_size_invariant`: what passes, what fails, and what the error says."""

from __future__ import annotations

import math
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import assert_world_size_invariant

SAMPLES = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4]


def shard() -> list[float]:
    """This rank's samples."""
    return SAMPLES[dm.get_rank() :: dm.get_world_size()]


def evaluate(tag: Any) -> Any:
    """A function that reduces each rank's samples under a tag."""

    def run() -> dict[str, Any]:
        with dm.Logger() as logger:
            return logger.reduce({"x": tag(shard()), "n": dm.Count([1] * len(shard()))})

    return run


@pytest.mark.parametrize(
    "tag", [dm.Count, dm.Average, dm.Std, dm.Minimum, dm.Maximum, dm.L2Norm, dm.Total]
)
def test_per_sample_values_pass_in_bits(tag: Any) -> None:
    """At the usual world sizes, and at odd ones with ranks that have no samples."""
    assert_world_size_invariant(evaluate(tag))
    assert_world_size_invariant(evaluate(tag), world_sizes=(1, 3, 8))


def test_a_mean_of_local_means_fails_and_is_shown() -> None:
    """The error holds the verdict on the key at each world size; keys that agree are left out."""

    def run() -> dict[str, Any]:
        with dm.Logger() as logger:
            mean = math.fsum(shard()) / len(shard())
            return logger.reduce({"loss": dm.Average(mean), "n": dm.Count(len(shard()))})

    with pytest.raises(AssertionError) as caught:
        assert_world_size_invariant(run)
    text = str(caught.value)
    assert "values depend on the number of ranks (not equal in bits)" in text
    assert "loss: " in text
    assert "at 2 ranks" in text
    assert "at 4 ranks" in text
    assert " n: " not in text
    assert_world_size_invariant(run, rtol=0.5)


def test_a_missing_key_nan_and_a_last_bit_are_differences() -> None:
    """Whatever is not the same in bits is told, a key that is not there too."""
    for at_one, at_two in (
        ({"a": 1.0}, {}),
        ({"a": 2**53}, {"a": 2**53 + 1}),
        ({"a": 0.1}, {"a": math.nextafter(0.1, 1)}),
        ({"a": math.nan}, {"a": 0.0}),
    ):

        def run(one: Any = at_one, two: Any = at_two) -> Any:
            return one if dm.get_world_size() == 1 else two

        with pytest.raises(AssertionError, match="a"):
            assert_world_size_invariant(run, world_sizes=(1, 2))


def test_nan_agrees_with_nan_and_a_tolerance_forgives() -> None:
    """So that a broken evaluation does not look like a dependence on the world size."""

    def run() -> dict[str, float]:
        return {"nan": math.nan, "near": 1.0 + 1e-9 * dm.get_world_size(), "inf": math.inf}

    with pytest.raises(AssertionError, match="near"):
        assert_world_size_invariant(run)
    assert_world_size_invariant(run, rtol=1e-6)


def test_an_error_of_a_rank_is_that_error() -> None:
    """It is not taken for a difference."""

    def run() -> dict[str, float]:
        raise ZeroDivisionError("in the evaluation")

    with pytest.raises(ZeroDivisionError, match="in the evaluation"):
        assert_world_size_invariant(run)
