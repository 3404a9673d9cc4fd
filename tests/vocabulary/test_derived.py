"""Derived keys: computed from reduced values, once a record, on all ranks alike."""

from __future__ import annotations

import errno
import json
import logging
import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.sinks import JsonlSink
from distmetrics.spool.merge import merge
from distmetrics.testing import MemorySink, run_ranks, run_ranks_in_process


def logged(
    registry: dm.Registry, calls: list[Mapping[str, Any]], child: str | None = None
) -> list[Mapping[str, Any]]:
    """The values of the records of one process that makes these calls, one a step."""
    memory = MemorySink()
    with dm.Logger(registry, sinks=[memory]) as logger:
        scope = logger if child is None else logger.child(child, every=1)
        for step, outputs in enumerate(calls):
            scope.log(outputs, step=step)
    return [record.values for record in memory.records]


def perplexity() -> dm.Registry:
    """A registry with the perplexity of a loss."""
    registry = dm.Registry()
    registry.average("nll")
    registry.derived("ppl", "exp(nll)")
    return registry


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_perplexity_is_the_exponential_of_the_mean(world_size: int) -> None:
    """exp(mean loss) at every world size, not the mean of exponentials."""
    samples = [1.0, 3.0, 2.0, 2.0]

    def evaluate() -> list[dict[str, Any]]:
        with dm.Logger(perplexity()) as logger:
            logger.log({"nll": samples[dm.get_rank() :: world_size]}, step=0)
            flushed = logger.flush(wait=True)
            assert flushed is not None
            return [flushed, logger.latest, logger.reduce({"nll": samples[dm.get_rank()]})]

    for flushed, latest, reduced in run_ranks_in_process(evaluate, world_size):
        assert flushed == latest == {"nll": 2.0, "ppl": math.exp(2.0)}
        assert reduced["ppl"] == math.exp(reduced["nll"])


def test_derived_keys_stand_in_the_file_and_are_the_same_on_every_process(tmp_path: Path) -> None:
    """Two real processes: the record has the key, and both ranks get it back."""

    def train() -> dict[str, Any]:
        with dm.Logger(perplexity(), tmp_path / "run") as logger:
            logger.log({"nll": [1.0, 3.0][dm.get_rank()]}, step=0)
            values = logger.flush(wait=True)
            assert values is not None
            return values

    assert run_ranks(train, 2) == [{"nll": 2.0, "ppl": math.exp(2.0)}] * 2
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["values"]["ppl"] == math.exp(2.0)


def test_functions_see_reduced_values_under_bare_names() -> None:
    """In a child a function finds the child's keys as its calls name them, or in full."""
    registry = dm.Registry()
    registry.derived("double", lambda values: 2 * values["loss"])
    registry.derived("val/full", "'val/loss' + 1")
    registry.derived("seen", lambda values: sorted(values) == ["double", "full", "loss", "n"])
    (values,) = logged(registry, [{"loss": 2.0, "n": dm.Count(3)}], child="val")
    assert values == {
        "val/loss": 2.0,
        "val/n": 3,
        "val/double": 4.0,
        "val/full": 3.0,
        "val/seen": 1,
    }


def test_a_childs_derived_key_is_no_key_of_its_parent() -> None:
    """``val/ppl`` is computed for the child ``val`` alone, although the parent has a loss too."""
    registry = dm.Registry()
    registry.derived("val/ppl", "exp(loss)")
    memory = MemorySink()
    with dm.Logger(registry, sinks=[memory]) as logger:
        val = logger.child("val")
        logger.log({"loss": 1.0}, step=0)
        val.log({"loss": 0.0})
        val.flush()
    assert {key for record in memory.records for key in record.values} == {
        "loss",
        "val/loss",
        "val/ppl",
    }


def test_a_child_may_declare_it_in_its_own_way() -> None:
    """What a child ignores, or declares under its own name, is not computed there."""
    registry = dm.Registry()
    registry.derived("ppl", "exp(loss)")
    registry.ignore("val/ppl")
    registry.derived("test/ppl", "2 ** loss")
    memory = MemorySink()
    with dm.Logger(registry, sinks=[memory]) as logger:
        for name in ("val", "test"):
            logger.child(name).log({"loss": 3.0})
    found = {key: value for record in memory.records for key, value in record.values.items()}
    assert found == {"val/loss": 3.0, "test/loss": 3.0, "test/ppl": 8.0}


def test_a_function_that_would_leave_the_process_costs_its_key_alone() -> None:
    """`SystemExit` is reported as any other error is, and nothing else is lost."""

    def leave(values: Mapping[str, Any]) -> float:
        raise SystemExit(1)

    registry = dm.Registry()
    registry.count("n")
    registry.derived("d", leave)
    with pytest.warns(dm.DistmetricsWarning, match="'d' could not be computed: SystemExit: 1"):
        assert logged(registry, [{"n": 1}, {"n": 2}]) == [{"n": 1}, {"n": 2}]


def test_derived_of_derived_goes_in_order_of_declaration() -> None:
    """A derived key sees those declared before it, also ratios and running totals."""
    registry = dm.Registry()
    registry.ratio("acc", "hits", "n")
    registry.total("seen")
    registry.derived("error", "1 - acc")
    registry.derived("percent", "100 * error")
    registry.derived("rest", "10 - seen")
    calls = [{"hits": 3, "n": 4, "seen": 4}, {"hits": 1, "n": 4, "seen": 4}]
    assert [values["percent"] for values in logged(registry, calls)] == [25.0, 75.0]
    assert [values["rest"] for values in logged(registry, calls)] == [6, 2]


def test_a_record_without_the_inputs_lacks_the_key() -> None:
    """A derived key is where all its inputs are, and `latest` keeps its last value."""
    registry = dm.Registry()
    registry.derived("sum", "a + b")
    with dm.Logger(registry) as logger:
        logger.log({"a": 1, "b": 2}, step=0)
        logger.log({"a": 5}, step=1)
        assert logger.flush(wait=True) == {"a": 5}
        assert logger.latest == {"a": 5, "b": 2, "sum": 3}


def test_an_error_costs_only_its_key_and_is_told_once() -> None:
    """A function that raises is reported once, with its key; all else is logged."""
    registry = dm.Registry()
    registry.derived("bad", lambda values: {}[0])
    registry.derived("good", "loss + 1")
    with pytest.warns(dm.DistmetricsWarning, match="derived key 'bad'.*KeyError") as told:
        found = logged(registry, [{"loss": 1.0}, {"loss": 2.0}])
    assert found == [{"loss": 1.0, "good": 2.0}, {"loss": 2.0, "good": 3.0}]
    assert len(told) == 1


def test_one_rank_tells_of_an_error() -> None:
    """All ranks compute the key, rank 0 alone reports."""
    registry = dm.Registry()
    registry.derived("bad", lambda values: 1 // 0)

    def train() -> None:
        with dm.Logger(registry) as logger:
            logger.log({"loss": 1.0}, step=0)
            logger.flush(wait=True)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_ranks_in_process(train, 3)
    assert len(told) == 1


def test_a_key_that_no_record_had_is_noted_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """A misspelt input does not vanish in silence."""
    registry = dm.Registry()
    registry.average("loss")
    registry.derived("ppl", "exp(los)")
    with caplog.at_level(logging.INFO, "distmetrics"):
        logged(registry, [{"loss": 1.0}])
    assert "derived key 'ppl' was in no record: it needs 'los'" in caplog.text
    assert "'loss'" in caplog.text


@pytest.mark.parametrize(
    ("given", "value"),
    [
        (3, 3),
        (True, 1),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (torch.tensor(2.5), 2.5),
        (math.nan, math.nan),
        (None, None),
    ],
)
def test_a_derived_value_is_a_number_or_none(given: object, value: float | None) -> None:
    """Numbers of Python, NumPy and torch become ints and floats; None is no value."""
    registry = dm.Registry()
    registry.derived("it", lambda values: given)
    (values,) = logged(registry, [{"loss": 1.0}])
    assert repr(values.get("it")) == repr(value)


@pytest.mark.parametrize("given", ["0.5", [1.0], {"a": 1}, 1j, torch.ones(2)])
def test_what_is_no_number_is_reported(given: object) -> None:
    """The message names the key and what came."""
    registry = dm.Registry()
    registry.derived("it", lambda values: given)
    with pytest.warns(dm.DistmetricsWarning, match="derived key 'it'.*is a number"):
        assert logged(registry, [{"loss": 1.0}]) == [{"loss": 1.0}]


def test_a_function_cannot_change_the_record() -> None:
    """The values that it sees are read-only."""
    registry = dm.Registry()
    registry.derived("it", lambda values: values.update(loss=0.0))
    with pytest.warns(dm.DistmetricsWarning, match="derived key 'it'"):
        assert logged(registry, [{"loss": 1.0}]) == [{"loss": 1.0}]


def test_logging_a_derived_key_is_an_error() -> None:
    """The message says from what the key is made."""
    with dm.Logger(perplexity()) as logger, pytest.raises(dm.DistmetricsError, match="'nll'"):
        logger.log({"ppl": 3.0}, step=0)


def test_a_key_is_derived_in_one_way() -> None:
    """Another expression, or another function, is a conflict; the same one is not."""
    registry = perplexity()
    registry.derived("ppl", "exp(nll)", unit="tokens")
    with pytest.raises(dm.DeclarationConflict):
        registry.derived("ppl", "2 ** nll")
    with pytest.raises(dm.DeclarationConflict):
        registry.derived("ppl", lambda values: 1)


def test_a_weight_is_no_derived_key() -> None:
    """Weights are logged, derived keys never are."""
    registry = perplexity()
    with pytest.raises(dm.DistmetricsError, match="made from other keys"):
        registry.average("acc", weight="ppl")


def _twice(values: Mapping[str, Any]) -> Any:
    return 2 * values["loss"]


def test_a_registry_with_functions_can_be_pickled() -> None:
    """As for processes that are spawned: the function comes along."""
    registry = dm.Registry()
    registry.derived("twice", _twice)
    again = pickle.loads(pickle.dumps(registry))
    assert logged(again, [{"loss": 2.0}]) == [{"loss": 2.0, "twice": 4.0}]
    assert registry.difference(again.declarations()) is None


def test_ranks_with_different_functions_are_found() -> None:
    """Ranks that derive a key in different ways get an error at the start, all alike."""

    def train() -> None:
        registry = dm.Registry()
        registry.derived("it", "loss" if dm.get_rank() else _twice)
        dm.Logger(registry).close()

    with pytest.raises(dm.DistmetricsError, match="'it' is derived"):
        run_ranks_in_process(train, 2)


def test_a_merged_record_has_expressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `merge` completes has the keys that expressions derive."""

    def full(sink: JsonlSink, records: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(JsonlSink, "write_many", full)
        with pytest.warns(dm.DistmetricsWarning), dm.Logger(perplexity(), tmp_path) as logger:
            logger.log({"nll": 2.0}, step=0)
    (written,) = merge(tmp_path).written
    assert written.values == {"nll": 2.0, "ppl": math.exp(2.0)}


@pytest.mark.parametrize("derive", ["a*a*a*a*a*a", lambda values: values["a"] ** 6])
def test_an_integer_beyond_what_files_hold_costs_no_record(tmp_path: Path, derive: Any) -> None:
    """It is infinite there; the file and whoever completes it go on."""
    registry = dm.Registry()
    registry.total("a")
    registry.derived("d", derive)
    with dm.Logger(registry, run_dir=tmp_path) as logger:
        for step in range(3):
            logger.log({"a": 10**1000 if step == 1 else 1}, step=step)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["values"]["d"] for row in rows] == [1, "Infinity", "Infinity"]
    assert [row["values"]["a"] for row in rows] == [1, 10**1000 + 1, 10**1000 + 2]


@pytest.mark.parametrize(
    "declared",
    [
        [("d", "d + 1")],
        [("a", "b + 1"), ("b", "a + 1")],
        [("a", "b + 1"), ("b", "c * c"), ("c", "exp(x) + a")],
        [("val/d", 'log("val/d")')],
    ],
)
def test_a_derived_key_is_not_made_of_itself(declared: list[tuple[str, str]]) -> None:
    """Neither at once nor by way of others; the declaration that closes the circle is refused."""
    registry = dm.Registry()
    registry.average("x")
    *before, last = declared
    for key, expression in before:
        registry.derived(key, expression)
    with pytest.raises(dm.errors.InvalidValue, match=rf"refers to itself: {last[0]!r} needs"):
        registry.derived(*last)
    assert last[0] not in [metric.pattern for metric in registry]


@pytest.mark.parametrize("turn", [1, -1])
def test_a_derived_key_has_a_name_of_its_own(turn: int) -> None:
    """A key that another one gives cannot be derived, nor the other way round."""
    declare = [lambda r: r.quantiles("lat", qs=[0.5]), lambda r: r.derived("lat/p50", "loss + 1")]
    first, second = declare[::turn]
    registry = dm.Registry()
    first(registry)
    with pytest.raises(dm.DeclarationConflict, match=r"'lat/p50'.*quantiles.*rename one"):
        second(registry)


def test_a_derived_key_that_a_pattern_gives_is_told_of_once() -> None:
    """What was logged is kept."""
    registry = dm.Registry()
    registry.quantiles("lat*", qs=[0.5])
    registry.derived("lat/p50", "loss + 1")
    with pytest.warns(dm.DistmetricsWarning, match="'lat/p50'.*another key gives") as told:
        found = logged(registry, [{"loss": 1.0, "lat": 3.0}] * 2)
    assert found == [{"loss": 1.0, "lat/p50": 3.0}] * 2
    assert len(told) == 1
