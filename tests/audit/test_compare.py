"""Comparing runs: keys that are missing, axes, batches, warnings and the exit code."""

from __future__ import annotations

import numpy as np
import pytest

from distmetrics.audit.compare import compare
from distmetrics.audit.verdict import Kind
from distmetrics.errors import InvalidValue
from distmetrics.runs import RunData
from tests.audit.series import runs, series

STEPS = 60
RNG = np.random.default_rng(3)
LOSS = (0.3 + 2 * np.exp(-np.arange(STEPS) / 20)) * RNG.gamma(20, 1 / 20, STEPS)
SAME = {1: LOSS, 2: LOSS, 4: LOSS}


def test_verdicts_come_worst_first() -> None:
    """Faults stand before what is clean, and the exit code is 1."""
    table = {"a": SAME, "loss": {size: size * LOSS for size in (1, 2, 4)}, "b": SAME}
    report = compare(runs(table))
    assert list(report.verdicts) == ["loss", "a", "b"]
    assert report.world_sizes == [1, 2, 4]
    assert report.exit_code == 1
    assert [one.key for one in report.faults] == ["loss"]


def test_clean_runs_exit_with_0() -> None:
    """Without a fault the exit code is 0."""
    assert compare(runs({"loss": SAME})).exit_code == 0


def test_drift_and_noise_fail_only_a_strict_audit() -> None:
    """The same report exits 0, and 1 when strict."""
    drifting = LOSS * (1 + np.geomspace(1e-8, 1e-2, STEPS))
    table = {"loss": {1: LOSS, 2: drifting}}
    assert compare(runs(table)).verdicts["loss"].kind is Kind.DRIFT
    assert compare(runs(table)).exit_code == 0
    assert compare(runs(table), strict=True).exit_code == 1


def test_a_key_of_some_runs_is_missing() -> None:
    """The verdict names the world sizes that lack it."""
    report = compare(runs({"loss": SAME, "acc": {1: LOSS, 4: LOSS}}))
    assert report.verdicts["acc"].kind is Kind.MISSING
    assert "world size 2" in report.verdicts["acc"].reason
    assert report.exit_code == 1


def test_values_of_ranks_that_are_not_there_are_expected() -> None:
    """A value of rank 3 is missing where there are two ranks, declared or by its name."""
    table = {"loss": SAME, "mem/rank3": {4: LOSS}, "heap/rank1": {1: LOSS, 4: LOSS}}
    report = compare(runs(table))
    assert report.verdicts["mem/rank3"].kind is Kind.EXPECTED_SCALING
    assert report.verdicts["heap/rank1"].kind is Kind.MISSING
    declared = [{"pattern": "heap", "reduction": "per_rank", "scaling": "per_rank"}]
    again = compare(runs(table, declared))
    assert again.verdicts["heap/rank1"].kind is Kind.EXPECTED_SCALING


def test_counts_of_nonfinite_values_tell_of_them() -> None:
    """A count of non-finite values in one run only is a finding of that kind."""
    report = compare(runs({"loss": SAME, "loss/nonfinite": {2: [1.0]}}))
    assert report.verdicts["loss/nonfinite"].kind is Kind.NONFINITE


def test_the_weight_is_found_among_the_counts() -> None:
    """The count whose uneven steps are those that differ is the weight of the remedy."""
    rng = np.random.default_rng(11)
    samples = rng.integers(9, 25, STEPS)
    off = {
        size: LOSS * (1 + 0.03 * rng.standard_normal(STEPS) * (samples % size != 0))
        for size in (1, 2, 4)
    }
    table = {
        "loss": off,
        "other": dict.fromkeys((1, 2, 4), rng.integers(5, 99, STEPS)),
        "num_samples": dict.fromkeys((1, 2, 4), samples),
    }
    found = compare(runs(table)).verdicts["loss"]
    assert found.kind is Kind.WEIGHTING
    assert 'weight="num_samples"' in found.remedy


def test_flips_in_a_drifting_run_are_drift() -> None:
    """A count that changes by single samples is judged in the light of the drifting loss."""
    rng = np.random.default_rng(11)
    correct = rng.integers(30, 60, STEPS)
    flipped = correct.copy()
    flipped[[33, 47, 52]] += 1
    drifting = LOSS * (1 + np.geomspace(1e-9, 1e-4, STEPS))
    table = {"loss": {1: LOSS, 2: drifting}, "num_correct": {1: correct, 2: flipped}}
    report = compare(runs(table))
    assert report.verdicts["num_correct"].kind is Kind.DRIFT
    alone = compare(runs({"num_correct": table["num_correct"], "lr": {1: LOSS, 2: LOSS}}))
    assert alone.exit_code in {0, 1}


def test_a_growing_global_batch_is_said_first() -> None:
    """Samples that grow with the ranks, and losses of other data, are named as such."""
    rng = np.random.default_rng(11)
    samples = {size: [16 * size] * STEPS for size in (1, 2, 4)}
    losses = {size: LOSS * rng.gamma(50, 1 / 50, STEPS) for size in (1, 2, 4)}
    report = compare(runs({"num_samples": samples, "loss": losses}))
    assert report.global_batch is not None
    assert "global batch differs" in str(report.global_batch)
    assert report.global_batch.sizes == {1: 16, 2: 32, 4: 64}
    assert 'scaling="extensive"' in report.verdicts["num_samples"].remedy


def test_counted_replicas_are_no_growing_batch() -> None:
    """Where the losses agree the data is the same, so that the count itself is wrong."""
    samples = {size: [16 * size] * STEPS for size in (1, 2, 4)}
    report = compare(runs({"num_samples": samples, "loss": SAME}))
    assert report.global_batch is not None
    assert report.global_batch.same_data
    assert "replicated_over" in report.verdicts["num_samples"].remedy


def test_a_declared_growing_batch_is_expected() -> None:
    """A count that is declared as extensive is no fault."""
    samples = {size: [16 * size] * STEPS for size in (1, 2, 4)}
    registry = [{"pattern": "num_samples", "reduction": "count", "scaling": "extensive"}]
    report = compare(runs({"num_samples": samples, "lr": SAME}, registry))
    assert report.verdicts["num_samples"].kind is Kind.EXPECTED_SCALING
    assert report.exit_code == 0


def test_comparing_by_samples_needs_no_common_steps() -> None:
    """Runs with other batches agree by samples: means are averaged, counts summed between."""
    rng = np.random.default_rng(11)
    per_sample = np.exp(-np.arange(256) / 90)
    table: dict[str, dict[int, object]] = {"loss": {}, "num_samples": {}, "num_correct": {}}
    correct = rng.integers(0, 2, 256)
    for size in (1, 2, 4):
        parts = per_sample.reshape(-1, 4 * size)
        table["loss"][size] = parts.mean(axis=1)
        table["num_samples"][size] = np.full(len(parts), 4 * size)
        table["num_correct"][size] = correct.reshape(-1, 4 * size).sum(axis=1)
    data = runs(table)  # type: ignore[arg-type]
    assert compare(data).exit_code == 1
    report = compare(data, x="num_samples")
    assert {key: one.kind.value for key, one in report.verdicts.items()}["loss"] in {
        "close",
        "identical",
    }
    assert report.verdicts["num_correct"].kind is Kind.IDENTICAL
    assert report.exit_code == 0
    assert report.verdicts["loss"].steps == 16


def test_faults_are_found_by_samples_too() -> None:
    """A summed mean is one on any axis."""
    table = {
        "loss": {size: size * LOSS for size in (1, 2)},
        "tokens": {size: np.cumsum([100] * STEPS) for size in (1, 2)},
    }
    report = compare(runs(table), x="tokens")
    assert report.verdicts["loss"].kind is Kind.GROWS_WITH_RANKS


def test_only_the_first_steps_are_compared_on_request() -> None:
    """With a limit what comes later does not count."""
    later = LOSS.copy()
    later[40:] *= 3
    report = compare(runs({"loss": {1: LOSS, 2: later}}), steps=40)
    assert report.verdicts["loss"].kind is Kind.IDENTICAL
    assert report.verdicts["loss"].steps == 40


def test_runs_of_different_length_are_compared_where_they_overlap() -> None:
    """Common steps count, and a warning says where the runs end."""
    report = compare(runs({"loss": {1: LOSS, 2: LOSS[:30]}}))
    assert report.verdicts["loss"].kind is Kind.IDENTICAL
    assert report.verdicts["loss"].steps == 30
    assert any("end at different steps" in warning for warning in report.warnings)


def test_float32_is_said() -> None:
    """The report says that a file holds float32 only."""
    data = runs({"loss": {1: LOSS, 2: LOSS}})
    data[1].series["loss"] = series(LOSS, precision="float32")
    report = compare(data)
    assert report.verdicts["loss"].kind is Kind.CLOSE
    assert any("float32" in warning for warning in report.warnings)


def test_two_runs_of_one_world_size_can_be_compared() -> None:
    """Without different sizes there is no exponent, but differences are found."""
    data = [*runs({"loss": {2: LOSS}}), *runs({"loss": {2: 3 * LOSS}})]
    found = compare(data).verdicts["loss"]
    assert found.kind is Kind.CONSTANT_FACTOR
    assert found.exponent is None


def _bad_runs() -> list[tuple[list[RunData], dict[str, object], str]]:
    two = runs({"loss": {1: LOSS, 2: LOSS}})
    unknown = runs({"loss": {1: LOSS, 2: LOSS}})
    unknown[1].world_size = None
    empty = runs({"loss": {1: LOSS, 2: LOSS}})
    for run in empty:
        run.series.clear()
    return [
        (two[:1], {}, "two or more"),
        (unknown, {}, "4=w2"),
        (empty, {}, "single number"),
        (two, {"rtol": -1.0}, "tolerance"),
        (two, {"x": "samples"}, "samples"),
        (two, {"x": "loss", "rtol": float("nan")}, "tolerance"),
    ]


@pytest.mark.parametrize(("data", "options", "text"), _bad_runs())
def test_what_cannot_be_compared_is_an_error(
    data: list[RunData], options: dict[str, float], text: str
) -> None:
    """The error says what is wrong and what to do."""
    with pytest.raises(InvalidValue, match=text):
        compare(data, **options)  # type: ignore[arg-type]
