"""Judging what functions return, in users' own tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.audit.invariance import invariance_error, judge_values
from distmetrics.audit.verdict import Kind
from distmetrics.testing import assert_world_size_invariant

pytest_plugins = ["pytester"]

SAMPLES = [0.1, 0.2, 0.4, 0.8, 1.6]


def shard() -> list[float]:
    """This rank's samples."""
    return SAMPLES[dm.get_rank() :: dm.get_world_size()]


def test_an_exact_reduction_passes() -> None:
    """A mean over uneven shards has the same bits at each world size."""

    def evaluate() -> dict[str, float]:
        with dm.Logger() as logger:
            return logger.reduce({"loss": dm.Average(shard()), "n": dm.Count(len(shard()))})

    assert_world_size_invariant(evaluate)


def test_the_error_holds_the_verdict_and_the_remedy() -> None:
    """A summed mean is named, with one line of registry code."""

    def evaluate() -> dict[str, float]:
        return {"loss": 0.5 * dm.get_world_size()}

    with pytest.raises(AssertionError, match="grows_with_ranks") as caught:
        assert_world_size_invariant(evaluate)
    assert 'registry.average("loss")' in str(caught.value)


def test_values_of_any_form_are_judged() -> None:
    """Tensors, arrays, lists, nested dicts, ints, booleans, texts and NaN."""
    found = {
        size: {
            "tensor": torch.tensor([1.0, 2.0]),
            "array": np.arange(3) * size,
            "nested": {"deep": {"n": 7}},
            "flag": True,
            "text": "same",
            "nan": math.nan,
            "other": f"w{size}",
        }
        for size in (1, 2, 4)
    }
    verdicts = {one.key: one.kind for one in judge_values(found)}
    assert verdicts.pop("array") is Kind.GROWS_WITH_RANKS
    assert verdicts.pop("other") is Kind.UNDECIDED
    assert set(verdicts) == {"tensor", "nested/deep/n", "flag", "text", "nan"}
    assert set(verdicts.values()) == {Kind.IDENTICAL}


def test_the_last_bit_counts_unless_a_tolerance_is_given() -> None:
    """With rtol 0 rounding is a difference; with a tolerance it is none."""
    found = {1: {"x": 0.3}, 2: {"x": 0.1 + 0.2}}
    error = invariance_error(judge_values(found))
    assert error is not None
    assert "in bits" in error
    assert invariance_error(judge_values(found, 1e-12), 1e-12) is None


def test_keys_and_lengths_that_differ_are_missing() -> None:
    """A key of some world sizes only, and another number of values."""
    found = {1: {"a": 1, "b": [1, 2]}, 2: {"b": [1]}}
    assert {one.kind for one in judge_values(found)} == {Kind.MISSING}


@pytest.mark.parametrize(("factor", "passes"), [("1", True), ("dm.get_world_size()", False)])
def test_the_plugin_fails_a_users_test(
    pytester: pytest.Pytester, factor: str, passes: bool
) -> None:
    """A test suite that switches the plugin on fails with the audit's text."""
    pytester.makeini("[pytest]\ndistmetrics_world_sizes = 1 3\n")
    pytester.makeconftest('pytest_plugins = ["distmetrics.testing.plugin"]')
    pytester.makepyfile(
        f"""
        import distmetrics as dm

        def test_loss(world_size_invariant):
            world_size_invariant(lambda: {{"loss": [x * {factor} for x in (0.5, 0.25, 0.75)]}})
        """
    )
    result = pytester.runpytest("-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:cov")
    result.assert_outcomes(passed=int(passes), failed=int(not passes))
    if not passes:
        result.stdout.fnmatch_lines(["*loss: grows_with_ranks*", "*registry.average*"])
