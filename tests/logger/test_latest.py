"""`latest`: the newest value of each key, the same on every rank."""

from __future__ import annotations

from typing import Any

import pytest

import distmetrics as dm
from tests.logger.ranks import records


def latest_after(world_size: int, train: Any, registry: Any = dm.Registry, **options: Any) -> Any:
    """`latest` on every rank after all that `train` logged is reduced; it must be the same."""
    seen: dict[int, dict[str, Any]] = {}

    def run(logger: dm.Logger) -> None:
        train(logger)
        logger.flush(wait=True)
        seen[dm.get_rank()] = dict(logger.latest)

    records(world_size, run, registry, **options)
    assert all(found == seen[0] for found in seen.values())
    return seen[0]


def test_before_the_first_record_it_is_empty() -> None:
    """Asking early is no error."""
    records(2, lambda logger: logger.latest == {} or pytest.fail("not empty"))


def test_keys_of_older_windows_keep_their_value() -> None:
    """Each key has the value of the last window in which anybody logged it."""

    def train(logger: dm.Logger) -> None:
        for step in range(6):
            outputs: dict[str, Any] = {"loss": dm.Average(step)}
            if step % 3 == 1:
                outputs["rare"] = dm.Maximum(step)
            if step == 2 and dm.get_rank() == 1:
                outputs["once"] = dm.Count(step)
            logger.log(outputs, step=step)

    assert latest_after(2, train) == {"loss": 5.0, "rare": 4, "once": 2}


def test_ratios_and_rates_keep_the_value_of_their_last_window() -> None:
    """A window that lacks their parts does not take them away."""

    def registry() -> dm.Registry:
        declared = dm.Registry()
        declared.ratio("accuracy", "correct", "n")
        declared.rate("speed", of="n", seconds="took")
        return declared

    def train(logger: dm.Logger) -> None:
        logger.log({"correct": 1, "n": 4, "took": 0.5}, step=0)
        logger.log({"loss": dm.Average(1.0)}, step=1)
        logger.log({"correct": 5, "loss": dm.Average(2.0)}, step=2)
        logger.log({"n": 6, "loss": dm.Average(3.0)}, step=3)

    found = latest_after(2, train, registry)
    assert (found["accuracy"], found["speed"]) == (0.25, 16.0)
    assert (found["n"], found["loss"]) == (12, 3.0)


def test_counts_of_nonfinite_values_go_with_their_key() -> None:
    """Once the key is finite again, its count of NaN is no longer shown."""

    def train(logger: dm.Logger) -> None:
        logger.log({"loss": dm.Average(float("nan")), "other": dm.Average(1.0)}, step=0)
        logger.log({"loss": dm.Average(2.0)}, step=1)

    assert latest_after(2, train) == {"loss": 2.0, "other": 1.0}


def test_a_child_sees_its_own_keys_and_the_logger_all() -> None:
    """The logger's `latest` holds the children's keys with their prefixes."""
    seen = {}

    def train(logger: dm.Logger) -> None:
        val, test = logger.child("val"), logger.child("val/test")
        logger.log({"loss": dm.Average(1.0)}, step=0)
        for scope, loss in ((val, 2.0), (test, 3.0)):
            scope.log({"loss": dm.Average(loss)})
            scope.flush(wait=True)
        seen[dm.get_rank()] = dict(val.latest), dict(test.latest)

    everything = latest_after(2, train)
    assert everything == {"loss": 1.0, "val/loss": 2.0, "val/test/loss": 3.0}
    assert seen[1] == ({"val/loss": 2.0, "val/test/loss": 3.0}, {"val/test/loss": 3.0})


def test_what_was_reduced_on_call_is_not_in_it() -> None:
    """`reduce` writes nothing and changes no latest value."""

    def train(logger: dm.Logger) -> None:
        logger.log({"loss": dm.Average(1.0)}, step=0)
        logger.reduce({"loss": dm.Average(9.0), "extra": dm.Count(1)})

    assert latest_after(2, train) == {"loss": 1.0}


def test_changing_it_changes_nothing() -> None:
    """It is a copy, made for whoever asks."""

    def train(logger: dm.Logger) -> None:
        logger.log({"loss": dm.Average(1.0)}, step=0)
        logger.flush(wait=True)
        logger.latest.clear()
        assert logger.latest == {"loss": 1.0}

    records(2, train)
