"""The judge: known cases, too few steps, declared scaling, and the planted faults."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics.audit.verdict import FAULTS, Kind
from distmetrics.runs import Declared
from tests.audit import planted
from tests.audit.planted import Setting
from tests.audit.series import verdict

RNG = np.random.default_rng(7)
CURVE = 0.3 + 2 * np.exp(-np.arange(60) / 20)
LOSS = CURVE * RNG.gamma(20, 1 / 20, 60)


def test_equal_bits_are_identical() -> None:
    """The same values at every world size are identical, with exponent and difference 0."""
    found = verdict({1: LOSS, 2: LOSS, 4: LOSS})
    assert (found.kind, found.exponent, found.max_rel_diff) == (Kind.IDENTICAL, 0.0, 0.0)
    assert found.steps == 60


def test_twice_at_two_ranks_grows_with_the_ranks() -> None:
    """A ratio of 2 = W is a mean that was summed, also with two world sizes only."""
    found = verdict({1: LOSS, 2: 2 * LOSS}, "loss")
    assert found.kind is Kind.GROWS_WITH_RANKS
    assert found.exponent == pytest.approx(1.0)
    assert found.remedy.startswith('registry.average("loss")')


def test_small_noise_is_close_within_a_wider_tolerance() -> None:
    """Noise of 0.1% passes at rtol 1e-2, and is no logging fault without it."""
    rng = np.random.default_rng(11)
    loss = np.tile(LOSS, 3)
    values = {size: loss * (1 + 1e-3 * rng.standard_normal(180)) for size in (1, 2, 4)}
    assert verdict(values, rtol=1e-2).kind is Kind.CLOSE
    assert verdict(values).kind is Kind.NOISE


def test_equal_at_first_and_then_apart_is_drift() -> None:
    """One equal step is enough where the runs are apart from then on."""
    rng = np.random.default_rng(11)
    other = LOSS * (1 + 0.05 * rng.standard_normal(60))
    other[0] = LOSS[0]
    assert verdict({1: LOSS, 2: other}).kind is Kind.DRIFT


@pytest.mark.parametrize(("length", "short"), [(10, [6]), (30, [11, 23]), (40, [9, 19, 29, 39])])
def test_short_last_batches_are_no_drift(length: int, short: list[int]) -> None:
    """A run that is equal again after it was apart has not drifted: its parts were uneven."""
    right = np.resize(LOSS, length)
    wrong = right.copy()
    wrong[short] *= 1.03
    found = verdict({1: right, 2: wrong}, "loss")
    assert found.kind is Kind.WEIGHTING
    assert "registry.average" in found.remedy


def test_one_large_difference_at_the_end_is_undecided() -> None:
    """The last step alone tells a short batch from a drift by the counts only."""
    wrong = LOSS.copy()
    wrong[-1] *= 1.03
    assert verdict({1: LOSS, 2: wrong}).kind is Kind.UNDECIDED
    counts = np.full(60, 32.0)
    counts[[19, 39, 59]] = 31.0
    wrong[[19, 39]] *= 1.02
    found = verdict({1: LOSS, 2: wrong}, counts={"n": counts})
    assert (found.kind, 'weight="n"' in found.remedy) == (Kind.WEIGHTING, True)


def test_ratios_that_are_equal_by_chance_are_no_drift() -> None:
    """Accuracies over a few samples often agree at the first step."""
    rng = np.random.default_rng(5)
    right = (rng.random((64, 32)) < 0.7).astype(float)
    right[0] = 1.0
    found = verdict({size: right[:, ::size].mean(axis=1) for size in (1, 2, 4)}, "acc")
    assert found.kind is Kind.RANK_LOCAL


@pytest.mark.parametrize("factor", [1.5, 2.5, 3.0, 0.25, 1.1])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_factor_that_all_larger_runs_share_is_constant(factor: float, noise: float) -> None:
    """No power of W gives the same factor at 2 and at 4 ranks, whatever one run alone suggests."""
    rng = np.random.default_rng(3)
    runs = {W: LOSS * (factor if W > 1 else 1) for W in (1, 2, 4)}
    values = {W: run * (1 + noise * rng.standard_normal(60)) for W, run in runs.items()}
    assert verdict(values, "score").kind is Kind.CONSTANT_FACTOR


@pytest.mark.parametrize("seed", range(20))
def test_ten_steps_of_lasting_noise_prove_no_factor(seed: int) -> None:
    """A run that lies to one side for a while is not a fixed multiple of the others."""
    rng = np.random.default_rng(seed)
    values = {}
    for size in (1, 2, 4):
        noise = np.zeros(10)
        for step in range(1, 10):
            noise[step] = 0.9 * noise[step - 1] + 0.02 * rng.standard_normal()
        values[size] = LOSS[:10] * (1 + 0.05 * rng.standard_normal() + noise)
    assert verdict(values).kind in {Kind.UNDECIDED, Kind.NOISE}


def test_a_factor_at_the_largest_world_size_only_is_constant() -> None:
    """A tensor-parallel group of 4 counts four times at 4 ranks and once below."""
    tokens = RNG.integers(100, 900, 60)
    found = verdict({1: tokens, 2: tokens, 4: 4 * tokens}, "num_tokens")
    assert found.kind is Kind.CONSTANT_FACTOR
    assert 'registry.count("num_tokens", replicated_over=("tensor",))' in found.remedy


def test_a_floored_weight_is_known_without_its_count() -> None:
    """Of 37 tokens in every step two ranks lose half a one each, four ranks a quarter."""
    found = verdict({W: LOSS * (37 / W) / (37 // W) for W in (1, 2, 4)}, "loss")
    assert found.kind is Kind.WEIGHTING
    assert "lost its fraction" in found.reason


def test_whole_numbers_written_as_floats_are_counts() -> None:
    """A table may hold 104.0 for a padded count, and for one of every replica."""
    seen = {1: [103.0, 57.0, 90.0], 2: [104.0, 58.0, 90.0], 4: [104.0, 60.0, 92.0]}
    assert verdict(seen, "seen").kind is Kind.WEIGHTING
    tokens = RNG.integers(100, 900, 60).astype(float)
    found = verdict({1: tokens, 2: 2 * tokens, 4: 4 * tokens}, "num_tokens")
    assert found.kind is Kind.GROWS_WITH_RANKS
    assert found.remedy.startswith('registry.count("num_tokens", replicated_over=')


def test_scatter_beside_keys_that_agree_is_no_noise() -> None:
    """Where the trainings are equal a little scatter in one key comes from its reduction."""
    rng = np.random.default_rng(4)
    shared = CURVE * (1 + 0.2 * rng.standard_normal(60))
    values = {1: shared, 2: shared * (1 + 0.004 * rng.standard_normal(60))}
    assert verdict(values).kind is Kind.UNDECIDED
    found = verdict(values, agreed=59.0)
    assert found.kind is Kind.WEIGHTING
    assert "others are equal" in found.reason


def test_a_reference_without_scatter_is_no_proof_of_a_rank() -> None:
    """Noise of one size in all larger runs stays noise where the smallest run is smooth."""
    rng = np.random.default_rng(8)
    smooth = np.linspace(2.0, 1.0, 300)
    values = {W: smooth * (1 + 0.01 * rng.standard_normal(300) * (W > 1)) for W in (1, 2, 8)}
    assert verdict(values).kind is Kind.NOISE


def test_scatter_that_grows_as_a_rank_alone_is_rank_local() -> None:
    """Also where the batches differ much more than the ranks' parts of one."""
    rng = np.random.default_rng(9)
    batch = CURVE * (1 + 0.3 * rng.standard_normal(60))
    parts = batch[:, None] * (1 + 0.25 * rng.standard_normal((60, 8)))
    values = {W: parts[:, : 8 // W].mean(axis=1) for W in (1, 2, 4, 8)}
    assert verdict(values, "loss").kind is Kind.RANK_LOCAL


def test_padded_counts_are_flagged() -> None:
    """Five samples seen by one rank and six by two are a fault."""
    assert verdict({1: [5], 2: [6]}, "seen").is_fault()
    found = verdict({1: [5, 7, 5], 2: [6, 8, 6], 4: [8, 8, 8]}, "seen")
    assert found.kind is Kind.WEIGHTING
    assert "padded" in found.reason
    assert 'registry.count("seen")' in found.remedy


def test_dropped_samples_are_told_from_padded_ones() -> None:
    """Counts rounded down to the ranks are dropped samples."""
    found = verdict({1: [103, 57, 90], 2: [102, 56, 90], 4: [100, 56, 88]}, "seen")
    assert found.kind is Kind.WEIGHTING
    assert "dropped" in found.reason


@pytest.mark.parametrize("big", [16777217, 2**53 + 1, 2**70 + 1])
def test_ints_compare_exactly(big: int) -> None:
    """One unit is a difference, whatever the tolerance, also beyond what floats hold."""
    values = {1: [big] * 5, 2: [big - 1] * 5}
    assert verdict(values, rtol=0.1).is_fault()
    assert verdict({1: [big] * 5, 2: [big] * 5}).kind is Kind.IDENTICAL


def test_float32_files_compare_as_float32() -> None:
    """16777217 in one file and its float32 rounding in another are the same count."""
    values = {1: [16777217] * 3, 2: [16777217] * 3}
    assert verdict(values, precision="float32").kind is Kind.IDENTICAL
    small = {1: [1000] * 20, 2: [1001] * 20}
    assert verdict(small, precision="float32", rtol=0.1).is_fault()


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_steps_are_undecided(count: int) -> None:
    """One or two steps are not enough to name a cause, and that is said."""
    found = verdict({1: LOSS[:count], 2: 2 * LOSS[:count]}, "loss")
    assert found.kind is Kind.UNDECIDED
    assert f"only {count} step" in found.reason
    assert found.is_fault()


def test_few_noisy_steps_are_undecided() -> None:
    """Scatter over eight steps says nothing of its cause."""
    rng = np.random.default_rng(11)
    values = {size: LOSS[:8] * (1 + 0.1 * rng.standard_normal(8)) for size in (1, 2, 4)}
    assert verdict(values).kind is Kind.UNDECIDED


def test_nonfinite_in_some_runs_is_flagged() -> None:
    """NaN at a step where another run is finite is a finding of its own."""
    bad = LOSS.copy()
    bad[30] = math.nan
    found = verdict({1: LOSS, 2: bad, 4: LOSS})
    assert found.kind is Kind.NONFINITE
    assert found.max_rel_diff == 0.0
    assert "1 step" in found.reason
    assert found.notes == ("not finite at world size 2, first at step 30",)


def test_nonfinite_alike_in_all_runs_is_no_difference() -> None:
    """The same NaN and infinities everywhere are equal; the other steps are judged."""
    bad = LOSS.copy()
    bad[[3, 30]] = math.nan, math.inf
    assert verdict({1: bad, 2: bad}).kind is Kind.IDENTICAL
    assert verdict({1: bad, 2: 2 * bad}).kind is Kind.GROWS_WITH_RANKS
    assert verdict({1: [math.nan] * 4, 2: [math.nan] * 4}).kind is Kind.IDENTICAL


def test_infinities_of_other_sign_are_a_difference() -> None:
    """+inf in one run and -inf in another are not alike."""
    assert verdict({1: [math.inf, 1.0], 2: [-math.inf, 1.0]}).kind is Kind.NONFINITE


def test_extensive_keys_are_judged_by_their_class() -> None:
    """A declared rate may grow with the ranks, noisily; exactly falling as 1/W is a fault."""
    rng = np.random.default_rng(11)
    rate = Declared("rate", "extensive")
    noisy = {size: size**0.8 * LOSS * rng.uniform(0.9, 1.1, 60) for size in (1, 2, 4)}
    assert verdict(noisy, "rate", rate).kind is Kind.EXPECTED_SCALING
    falling = {size: LOSS / size for size in (1, 2, 4)}
    assert verdict(falling, "rate", rate).kind is Kind.SHRINKS_WITH_RANKS


def test_per_rank_keys_are_expected_to_differ() -> None:
    """A declared value of each rank is no fault."""
    rng = np.random.default_rng(11)
    values = {size: LOSS * rng.uniform(0.5, 2, 60) for size in (1, 2)}
    assert (
        verdict(values, "mem/max", Declared("per_rank", "per_rank")).kind is Kind.EXPECTED_SCALING
    )


def test_times_are_recognised_by_their_name_unless_exact() -> None:
    """Undeclared times follow the machine; but an exact factor is no measurement."""
    rng = np.random.default_rng(11)
    noisy = {size: rng.uniform(0.5, 2, 60) for size in (1, 2, 4)}
    assert verdict(noisy, "perf/step_time").kind is Kind.EXPECTED_SCALING
    assert verdict(noisy, "samples_per_second").kind is Kind.EXPECTED_SCALING
    exact = {size: LOSS * size for size in (1, 2, 4)}
    assert verdict(exact, "perf/step_time").kind is Kind.GROWS_WITH_RANKS


def test_a_factor_is_found_under_later_drift() -> None:
    """The first steps show the factor although the trainings part later on."""
    drift = 1 + np.geomspace(1e-8, 0.3, 60)
    found = verdict({1: LOSS, 2: 2 * LOSS * drift, 4: 4 * LOSS / drift})
    assert found.kind is Kind.GROWS_WITH_RANKS


def test_two_times_at_four_ranks_depends_on_what_is_counted() -> None:
    """For whole counts the root of W makes no sense; for norms it does."""
    counts = np.arange(10, 70)
    assert verdict({1: counts, 4: 2 * counts}, "tokens").kind is Kind.CONSTANT_FACTOR
    assert verdict({1: LOSS, 4: 2 * LOSS}, "grad_norm").kind is Kind.GROWS_WITH_SQRT


def test_one_ranks_maximum_is_told_by_its_equalities() -> None:
    """Rank 0's part of a maximum never exceeds it and equals it on one step in W."""
    rng = np.random.default_rng(11)
    lengths = rng.lognormal(0, 1, (120, 32))
    values = {size: lengths[:, ::size].max(axis=1) for size in (1, 2, 4)}
    found = verdict(values, "max_len")
    assert found.kind is Kind.RANK_LOCAL
    assert found.remedy.startswith('registry.maximum("max_len")')


def test_accuracy_that_flips_in_a_drifting_run_is_drift() -> None:
    """Single samples that flip are no fault where other keys show that the training drifts."""
    rng = np.random.default_rng(11)
    accuracy = rng.integers(40, 60, 60) / 64
    other = accuracy.copy()
    other[[25, 41, 42, 55]] += np.array([1, -1, 2, -1]) / 64
    found = verdict({1: accuracy, 2: other, 4: accuracy}, "acc", drifting=True)
    assert found.kind is Kind.DRIFT


def test_rounding_alone_is_said_to_be_rounding() -> None:
    """With rtol 0 a difference in the last bit is a fault, named as what it is."""
    found = verdict({1: [0.1, 0.2], 2: [0.1, np.nextafter(0.2, 1)]}, rtol=0.0)
    assert found.kind is Kind.UNDECIDED
    assert "rounding" in found.reason


def test_no_common_step_is_undecided_with_advice() -> None:
    """Nothing to compare is a fault, and the way out is said."""
    from distmetrics.audit.aligned import align
    from distmetrics.audit.judge import judge
    from tests.audit.series import series

    found = judge(align("x", [series([1.0], [0]), series([1.0], [1])], [1, 2]))
    assert found.kind is Kind.UNDECIDED
    assert found.max_rel_diff is None
    assert "--x" in found.reason


@pytest.mark.parametrize("name", planted.FAULTY)
@pytest.mark.parametrize("with_counts", [True, False])
def test_planted_faults_are_named(name: str, with_counts: bool) -> None:
    """Each planted fault gets its verdict at world sizes 1, 2 and 4, with counts or without."""
    setting = Setting(ragged=True, steps=100, batch=48)
    values = planted.simulate(name, setting, seed=3)
    if name in planted.INTEGER:
        values = {size: one.astype(int) for size, one in values.items()}
    counts = planted.counts(setting, seed=3) if with_counts else {}
    key = "grad_norm" if "norm" in name else "metric"
    found = verdict(values, key, counts=counts)
    assert found.kind.value == planted.FAULTY[name][0], found
    assert found.is_fault()
    assert found.remedy.startswith("registry.")


@pytest.mark.parametrize("name", planted.CLEAN)
def test_clean_series_raise_no_alarm(name: str) -> None:
    """Rounding, drift and noise at world sizes 1, 2 and 4 are no faults, over 20 seeds."""
    setting = Setting(steps=100, batch=48)
    for seed in range(20):
        found = verdict(planted.simulate(name, setting, seed))
        assert not found.is_fault(), (seed, found)


def test_the_weight_of_a_floored_mean_is_named() -> None:
    """The count whose mean lost its fraction is the weight in the remedy."""
    setting = Setting(ragged=True)
    values = planted.simulate("integer-floored weight", setting, seed=1)
    found = verdict(values, "loss", counts=planted.counts(setting, seed=1))
    assert found.kind is Kind.WEIGHTING
    assert "floor" in found.reason
    assert 'weight="num_tokens"' in found.remedy


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(
        st.lists(st.floats(width=64) | st.integers(-(2**70), 2**70), min_size=5, max_size=5),
        min_size=2,
        max_size=4,
    )
)
def test_any_numbers_get_a_verdict(values: list[list[float]]) -> None:
    """Whatever the runs hold, a verdict comes back, and equal runs are identical."""
    found = verdict({2**place: one for place, one in enumerate(values)})
    assert 0 <= found.confidence <= 1
    assert found.remedy
    same = verdict({2**place: values[0] for place in range(len(values))})
    assert same.kind is Kind.IDENTICAL


def test_kinds_that_fail_are_those_of_the_contract() -> None:
    """Drift and noise fail only a strict audit; what is expected never does."""
    passing = {"noise", "drift", "expected_scaling", "close", "identical"}
    assert {kind.value for kind in Kind} - {kind.value for kind in FAULTS} == passing
