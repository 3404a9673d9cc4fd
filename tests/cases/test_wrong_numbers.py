"""Numbers that come out wrong with other tools, and what they are here."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.testing import assert_world_size_invariant, run_ranks_in_process
from tests.cases.rows import registry, row, rows, weighted


def mean(value: Any, n: Any = None) -> dict[str, Any]:
    """A call with one average, weighted by `n` where that is given."""
    return {"loss": value} if n is None else {"loss": value, "n": n}


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[mean(1.0, 4), mean(3.0, 2)], [mean(2.0, 4), mean(6.0, 1)]], 24 / 11),
        ([[mean(1.0, 4), mean(3.0, 2), mean(2.0, 4), mean(6.0, 1)]], 24 / 11),
        ([[mean(0.5, 64)], [mean(0.5, 64)], [mean(9.5, 3)]], (64 + 28.5) / 131),
    ],
)
def test_a_small_last_batch_counts_by_its_size(ranks: Any, expected: float) -> None:
    """The epoch's value is the weighted mean over all steps and ranks, divided once."""
    assert row(*ranks, registry=weighted)["loss"] == expected


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [([(1.0, 3), (2.0, 2)], 1.4), ([(1.0, 1), (2.0, 1), (4.0, 2)], 2.75), ([(5.0, 7)] * 3, 5.0)],
)
def test_an_integer_weight_is_summed_and_never_floored(pairs: Any, expected: float) -> None:
    """Numerator and denominator are added up apart, and divided in float64."""
    ranks = [[mean(value, torch.tensor(n))] for value, n in pairs]
    assert row(*ranks, registry=weighted)["loss"] == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sums_do_not_get_stuck(dtype: torch.dtype) -> None:
    """In bfloat16 256 + 1 stays 256; here 300 ones on two ranks are 600."""
    one = torch.tensor(1.0, dtype=dtype)
    calls = [{"c": dm.Count(one), "a": dm.Average(one)}] * 300
    assert row(calls, calls) == {"c": 600.0, "a": 1.0}


def test_counters_beyond_float32_keep_single_units() -> None:
    """Odd numbers above 2^24 are counted one by one."""
    first = [{"c": dm.Count(torch.tensor(n))} for n in (16777216, 1, 1, 1)]
    assert row(first, [{"c": dm.Count(1)}]) == {"c": 16777220}
    assert row([{"c": dm.Count(2**53)}], [{"c": dm.Count(1)}]) == {"c": 2**53 + 1}


def test_a_tensor_changed_after_the_call_was_logged_as_it_was() -> None:
    """One tensor, filled anew for every call."""

    def rank() -> None:
        with dm.Logger(sinks=found) as logger:
            value = torch.zeros(())
            for i in (1, 2, 3, 4):
                logger.log({"a": value.fill_(i)}, step=0)
            value.fill_(99)

    found: list[Any] = []
    seen: list[dm.Record] = []
    found.append(seen.append)
    run_ranks_in_process(rank, 2)
    assert [record.values for record in seen] == [{"a": 2.5}]


@pytest.mark.parametrize("counts", [[3, 5], [2, 2, 2, 2], [0, 7, 1]])
def test_a_count_is_a_sum_however_many_ranks_there_are(counts: list[int]) -> None:
    """It is not divided by the number of ranks, and cannot become an average later."""
    assert row(*[[{"tp": dm.Count(n)}] for n in counts]) == {"tp": sum(counts)}

    def rank() -> None:
        with dm.Logger() as logger:
            logger.log({"tp": dm.Count(1)}, step=0)
            with pytest.raises(dm.DeclarationConflict, match="key 'tp' was declared as count"):
                logger.log({"tp": dm.Average(1.0)}, step=1)

    run_ranks_in_process(rank, len(counts))


def test_one_value_reaches_file_tensorboard_and_caller(tmp_path: Path) -> None:
    """The epoch's value is that of all batches and ranks, everywhere the same."""
    returned: dict[int, Any] = {}

    def rank() -> None:
        with dm.Logger(run_dir=tmp_path / "run", sinks=["tensorboard"], every=None) as logger:
            for value in ((1, 2, 3), (4, 5, 6))[dm.get_rank()]:
                logger.log({"loss": float(value)})
            returned[dm.get_rank()] = logger.flush(3, wait=True)

    run_ranks_in_process(rank, 2)
    assert returned == {0: {"loss": 3.5}, 1: {"loss": 3.5}}
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert dm.Record.from_json(line).values == {"loss": 3.5}
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.value for event in events.Scalars("loss")] == [3.5]


def test_one_row_holds_the_value_of_all_ranks() -> None:
    """Not rank 0's own value, and not a row for each rank."""
    losses = (0.2, 0.6, 1.0, 1.4)
    (found,) = rows(*[[{"loss": value}] for value in losses])
    assert found == {"loss": math.fsum(losses) / 4}
    assert found["loss"] == pytest.approx(0.8)


def test_a_weight_is_never_guessed() -> None:
    """Without its weight an average raises at the call; its batch's length is not taken."""

    def rank() -> None:
        with dm.Logger(weighted()) as logger:
            batch = torch.ones(2, 5)
            with pytest.raises(InvalidValue, match=r"key 'loss' .*its weight 'n' is not in"):
                logger.log({"loss": 1.0, "batch": batch}, step=0)

    run_ranks_in_process(rank, 2)


def test_an_evaluation_does_not_depend_on_the_number_of_processes() -> None:
    """Four samples' losses give 2.5 on one, two and four ranks."""
    samples = [1.0, 2.0, 3.0, 4.0]

    def evaluate() -> dict[str, Any]:
        with dm.Logger() as logger:
            return logger.reduce(
                {"loss": dm.Average(samples[dm.get_rank() :: dm.get_world_size()])}
            )

    assert_world_size_invariant(evaluate)
    assert [run_ranks_in_process(evaluate, size)[0] for size in (1, 2, 4)] == [{"loss": 2.5}] * 3


def test_gradient_accumulation_averages_its_micro_losses() -> None:
    """Neither summed nor divided twice, and the same as four micro-steps of one rank."""
    assert row([mean(1.0), mean(3.0)], [mean(5.0), mean(7.0)]) == {"loss": 4.0}
    assert row([mean(value) for value in (1.0, 3.0, 5.0, 7.0)]) == {"loss": 4.0}


def test_padded_samples_of_an_evaluation_weigh_nothing() -> None:
    """The sampler repeats sample 0 on the last rank; accuracy and samples seen are exact."""

    def made() -> dm.Registry:
        made = dm.Registry()
        made.average("accuracy", weight="seen")
        return made

    first = {"accuracy": [1, 0, 0], "seen": [1, 1, 1]}
    second = {"accuracy": [0, 0, 1], "seen": [1, 1, 0]}
    assert row([first], [second], registry=made) == {"accuracy": 0.2, "seen": 5}


def test_keys_are_matched_by_name_and_never_by_order() -> None:
    """Ranks that log different keys, or the same in another order, mix nothing."""
    assert row([{"a": 1.0}], [{"b": 3.0}]) == {"a": 1.0, "b": 3.0}
    first = {"a": dm.Count(1), "b": dm.Maximum(2.0), "c": dm.Average(3.0)}
    second = dict(reversed({"a": dm.Count(10), "b": dm.Maximum(20.0), "d": 4.0}.items()))
    assert row([first], [second]) == {"a": 11, "b": 20.0, "c": 3.0, "d": 4.0}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([torch.tensor(0.5).bfloat16(), torch.tensor(0.25), torch.tensor(0)], 0.25),
        ([torch.tensor(0.5).bfloat16(), torch.tensor(0.25, dtype=torch.float64)], 0.375),
        ([np.float16(0.5), 1, True, [0.5, 0.5]], 0.7),
    ],
)
def test_ranks_may_give_the_same_key_different_dtypes(parts: Any, expected: float) -> None:
    """What travels has one form, so that no bytes are read as another type."""
    assert row(*[[{"a": dm.Average(part)}] for part in parts]) == {"a": expected}


def test_tokens_of_every_slice_are_counted() -> None:
    """A count of split data is the sum over all ranks, whatever groups there are."""
    assert row(*[[{"tokens": dm.Count(n)}] for n in (10, 20, 30, 40)]) == {"tokens": 100}


def test_tokens_of_tensor_parallel_peers_are_counted_once() -> None:
    """And peers that disagree are warned of."""

    class Mesh:
        mesh = np.array([[0, 1], [2, 3]])
        mesh_dim_names = ("data", "tensor")

    def made() -> dm.Registry:
        made = dm.Registry()
        made.count("tokens", replicated_over=("tensor",))
        return made

    def of(*tokens: int) -> dict[str, Any]:
        return row(*[[{"tokens": n}] for n in tokens], registry=made, mesh=Mesh())

    assert of(5, 5, 7, 7) == {"tokens": 12}
    with pytest.warns(dm.DistmetricsWarning, match="'tokens' is replicated.*rank 1"):
        assert of(5, 6, 7, 7) == {"tokens": 12}


def test_a_loss_over_unequal_numbers_of_tokens_is_that_of_all_tokens() -> None:
    """Sums are divided once, not the ranks' means averaged."""
    assert row([{"loss": dm.Ratio(4.0, 1)}], [{"loss": dm.Ratio(2.0, 3)}]) == {"loss": 1.5}


def test_a_loss_that_only_the_last_stage_has_needs_no_placeholder() -> None:
    """Rank 0 writes what another rank owns."""
    assert row([{"lr": dm.Same(0.1)}], [{"loss": 2.5}]) == {"lr": 0.1, "loss": 2.5}
    assert row([{"loss": None}], [{"loss": None}], [{"loss": 2.5}]) == {"loss": 2.5}


def test_a_gradient_norm_is_that_of_all_shards() -> None:
    """The root of the sum of squares."""
    assert row([{"g": dm.L2Norm(3.0)}], [{"g": dm.L2Norm(4.0)}]) == {"g": 5.0}
    shards = [[{"g": dm.L2Norm(torch.tensor([2.0, 2.0]))}]] * 2
    assert row(*shards) == {"g": 4.0}


def test_rates_are_made_from_reduced_counts_and_the_slowest_rank() -> None:
    """The total and the one for each device are two keys that say which they are."""

    def made() -> dm.Registry:
        made = dm.Registry()
        made.maximum("took")
        made.rate("tokens/s", of="tokens", seconds="took")
        made.rate("tokens/s/device", of="tokens", seconds="took", per_device=True)
        return made

    ranks = [[{"tokens": 100, "took": seconds}] for seconds in (2.0, 2.0, 2.0, 2.5)]
    found = row(*ranks, registry=made)
    assert found == {"tokens": 400, "took": 2.5, "tokens/s": 160.0, "tokens/s/device": 40.0}


def test_perplexity_is_made_from_the_reduced_mean() -> None:
    """Every rank gets the mean, so that exp of it is one number."""

    def rank() -> float:
        with dm.Logger() as logger:
            return math.exp(logger.reduce({"nll": (1.0, 3.0)[dm.get_rank()]})["nll"])

    assert run_ranks_in_process(rank, 2) == [math.exp(2.0)] * 2


def test_a_standard_deviation_is_that_of_all_samples() -> None:
    """Of the population or of a sample as it is declared, whatever each rank had."""
    ranks = [[{"s": dm.Std([x, x]), "s1": dm.Std([x, x], ddof=1)}] for x in (1.0, 3.0)]
    assert row(*ranks) == {"s": 1.0, "s1": math.sqrt(4 / 3)}
    assert row([{"s": dm.Std(1e8)}], [{"s": dm.Std(1e8 + 1)}]) == {"s": 0.5}
    assert math.isnan(row([{"s": dm.Std(1.0, ddof=1)}])["s"])


def test_a_broken_step_shows_in_the_record() -> None:
    """NaN stays NaN and is counted; only a key that says so leaves it out."""

    def made() -> dm.Registry:
        made = dm.Registry()
        made.average("skip", nonfinite="skip")
        return made

    def both(*values: float) -> list[dict[str, Any]]:
        return [{"a": dm.Average(value), "skip": value} for value in values]

    found = row(both(1.0, math.nan), both(1.0, 1.0), registry=made)
    assert math.isnan(found["a"])
    assert found["a/nonfinite"] == 1
    assert (found["skip"], found["skip/nonfinite"]) == (1.0, 1)


def test_one_absent_value_does_not_poison_the_window() -> None:
    """Where values are skipped the weight comes from the rest; where none is left, NaN."""

    def made() -> dm.Registry:
        made = dm.Registry()
        made.average("a", nonfinite="skip")
        return made

    assert row([{"a": math.nan}], [{"a": 2.0}], registry=made)["a"] == 2.0
    assert row([{}], [{"a": 2.0}], registry=made) == {"a": 2.0}
    assert math.isnan(row([{"a": math.nan}], [{"a": math.nan}], registry=made)["a"])


@pytest.mark.parametrize("number", [16777217, 2**53 + 1, 3 * 10**9 + 1])
def test_only_tensorboard_rounds_large_counts(number: int, tmp_path: Path) -> None:
    """The file is exact; the event file has the nearest float32."""
    row([{"n": dm.Count(number)}], run_dir=tmp_path / "run")
    with dm.Logger(run_dir=tmp_path / "two", sinks=["tensorboard"]) as logger:
        logger.log({"n": dm.Count(number)}, step=0)
    (line,) = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert dm.Record.from_json(line).values == {"n": number}
    events = EventAccumulator(str(tmp_path / "two" / "tensorboard")).Reload()
    (event,) = events.Scalars("n")
    assert event.value == struct.unpack("f", struct.pack("f", number))[0]


def test_bools_and_small_integers_are_added_as_numbers() -> None:
    """A sum of bools is no logical or, and unsigned bytes do not wrap around."""
    true = torch.tensor(True)
    assert row([{"c": dm.Count(true)}], [{"c": dm.Count(true)}]) == {"c": 2}
    assert row([{"a": dm.Average(True)}], [{"a": dm.Average(False)}]) == {"a": 0.5}
    bytes_ = [[{"c": dm.Count(torch.tensor(n, dtype=torch.uint8))}] for n in (200, 100)]
    assert row(*bytes_) == {"c": 300}
    made = registry(flags="count")
    assert row([{"flags": torch.tensor([True] * 5)}], registry=made) == {"flags": 5}
