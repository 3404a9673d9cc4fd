"""`errors="warn"`: a bad value in a long run is reported and counted, and the run goes on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from tests.logger.ranks import records, values, warned


def declared() -> dm.Registry:
    """Keys that are easy to log wrongly."""
    registry = dm.Registry()
    registry.count("n")
    registry.average("loss", weight="n")
    return registry


def test_the_rest_of_the_call_is_logged_and_the_value_counted() -> None:
    """One warning for each key on the rank concerned; `stats` has the number."""
    counted = {}

    def train(logger: dm.Logger) -> None:
        bad: Any = 0.5
        for step in range(4):
            if dm.get_rank() == 1:
                bad = ("0.5", 1 + 2j, None, object())[step]
            logger.log({"loss": bad, "n": 2}, step=step)
        counted[dm.get_rank()] = logger.stats()["bad_values"]

    with warned("key 'loss': the value is str '0.5'.*left out; further ones", times=1) as texts:
        found = records(2, train, declared, errors="warn")
    assert len(texts) == 1
    assert values(found) == [{"loss": 0.5, "n": 4}] * 4
    assert counted == {0: 0, 1: 3}


def test_each_key_is_reported_by_itself_with_its_prefix() -> None:
    """The same key of a child is another one."""

    def train(logger: dm.Logger) -> None:
        for scope in (logger, logger.child("val")):
            scope.log({"n": "x", "loss": 1.0}, step=0)

    with pytest.warns(dm.DistmetricsWarning) as caught:
        records(1, train, declared, errors="warn")
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 4
    assert sum("key 'n': the value is str 'x'" in text for text in texts) == 1
    assert sum("key 'val/n'" in text for text in texts) == 1


def test_conflicts_and_unknown_keys_do_not_stop_the_run() -> None:
    """Neither a second declaration nor a key that a strict registry does not know raises."""

    def strict() -> dm.Registry:
        registry = dm.Registry(strict=True)
        registry.count("n")
        return registry

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Average(1.0), "other": 1}, step=0)
        logger.log({"n": 1}, step=1)

    with pytest.warns(dm.DistmetricsWarning) as caught:
        found = records(2, train, strict, errors="warn")
    assert values(found) == [{"n": 2}]
    assert sum("'other' is not registered" in str(w.message) for w in caught) == 2
    assert sum("registered as count()" in str(w.message) for w in caught) == 2


def test_a_declaration_that_differs_between_ranks_is_warned_of() -> None:
    """The key is set aside, and every rank is told once."""

    def train(logger: dm.Logger) -> None:
        tag = dm.Count if dm.get_rank() else dm.Average
        for step in range(4):
            logger.log({"k": tag(1), "n": dm.Count(1)}, step=step)
            logger.flush(wait=True)

    with warned(r"key 'k' was declared in two ways: average\(\) \(rank 0\); count\(\)", times=2):
        found = records(2, train, errors="warn")
    assert values(found) == [{"n": 2}] * 4


@pytest.mark.parametrize("step", [-1, 0.5, "3", np.array([1])])
def test_a_wrong_step_is_an_error_all_the_same(step: Any) -> None:
    """Without a step nothing of the call could be logged."""

    def train(logger: dm.Logger) -> None:
        with pytest.raises((ValueError, TypeError)):
            logger.log({"n": 1}, step=step)

    assert records(1, train, declared, errors="warn") == []


def test_what_is_left_out_is_left_out_on_the_fast_path_too() -> None:
    """A negative weight in the middle of usual calls takes its average only."""

    def train(logger: dm.Logger) -> None:
        for step in range(5):
            n = torch.tensor(-1.0 if step == 3 else 2.0)
            logger.log({"loss": torch.tensor(1.0), "n": n, "x": torch.tensor(4.0)}, step=step)

    with warned("key 'loss': a weight is -1.0", times=1):
        found = records(1, train, declared, errors="warn")
    assert [record.values.get("loss") for record in found] == [1.0, 1.0, 1.0, None, 1.0]
    assert [record.values["x"] for record in found] == [4.0] * 5
