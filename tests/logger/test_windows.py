"""Steps, micro-batches and windows: which records there are, and what they say of their steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue
from tests.logger.ranks import only, records, values


def spans(found: list[dm.Record]) -> list[tuple[int, int, int]]:
    """First step, last step and label of each record."""
    return [(record.first_step, record.step, record.window) for record in found]


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 3])
def test_calls_of_one_step_are_micro_batches(world_size: int) -> None:
    """Calls that share a step are one step, on every rank."""

    def train(logger: dm.Logger) -> None:
        for step in range(2):
            for micro in range(3):
                logger.log({"n": dm.Count(1), "loss": dm.Average(micro)}, step=step)

    found = records(world_size, train)
    assert values(found) == [{"n": 3 * world_size, "loss": 1.0}] * 2


def test_a_window_covers_the_steps_of_its_place_on_the_grid() -> None:
    """With every=10, steps 0 to 9 are one window; the first and the last may be short."""

    def train(logger: dm.Logger) -> None:
        for step in range(7, 23):
            logger.log({"n": dm.Count(1)}, step=step)

    found = records(2, train, every=10)
    assert spans(found) == [(7, 9, 9), (10, 19, 19), (20, 22, 29)]
    assert values(found) == [{"n": 2}] * 3


def test_a_count_is_the_total_for_each_step() -> None:
    """The global sum is divided by the steps that any rank logged, and whole if it can be."""

    def train(logger: dm.Logger) -> None:
        for step in (0, 1, 4):
            if step != 1 or dm.get_rank() == 1:
                logger.log({"n": dm.Count(2), "odd": dm.Count(step)}, step=step)

    assert only(records(2, train, every=5)) == {"n": 10 / 3, "odd": 3}


def test_steps_that_are_far_apart_give_a_record_each() -> None:
    """Steps may be skipped, by a million too; there is no record of what nobody logged."""

    def train(logger: dm.Logger) -> None:
        for step in (0, 10**6, 10**12):
            logger.log({"n": dm.Count(1)}, step=step)

    assert spans(records(2, train, every=10)) == [
        (0, 0, 9),
        (10**6, 10**6, 10**6 + 9),
        (10**12, 10**12, 10**12 + 9),
    ]


def test_ranks_may_log_different_steps() -> None:
    """The record's steps are those that any rank logged."""

    def train(logger: dm.Logger) -> None:
        for step in range(dm.get_rank(), 12, 3):
            logger.log({"n": dm.Count(1)}, step=step)

    found = records(3, train, every=6)
    assert spans(found) == [(0, 5, 5), (6, 11, 11)]
    assert values(found) == [{"n": 1}, {"n": 1}]


def test_without_every_a_window_lasts_until_the_flush() -> None:
    """The record bears the step that is given to `flush`."""

    def train(logger: dm.Logger) -> None:
        for step in range(5):
            logger.log({"n": dm.Count(1)}, step=step)
        logger.flush(7)
        logger.log({"n": dm.Count(1)}, step=9)

    found = records(2, train, every=None)
    assert values(found) == [{"n": 10}, {"n": 2}]
    assert [record.window for record in found] == [7, 9]


def test_a_key_that_nobody_logs_is_not_in_the_record() -> None:
    """Absent is absent, not zero; a rank that does not log a key adds nothing to it."""

    def train(logger: dm.Logger) -> None:
        logger.log({"a": dm.Average(1.0)} if dm.get_rank() == 0 else {"b": dm.Maximum(3)}, step=0)
        logger.log({"a": dm.Average(3.0)}, step=1)
        logger.log({"a": dm.Average([]), "n": dm.Count([])}, step=2)

    assert values(records(3, train)) == [{"a": 1.0, "b": 3}, {"a": 3.0}]


# --- steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        3,
        3.0,
        np.int64(3),
        np.float32(3),
        np.array(3),
        np.array(3.0),
        torch.tensor(3),
        torch.tensor(3.0, dtype=torch.bfloat16),
    ],
    ids=repr,
)
def test_a_whole_number_of_any_kind_is_a_step(step: Any) -> None:
    """Integral floats and 0-d arrays and tensors are taken as ints."""
    (record,) = records(1, lambda logger: logger.log({"n": dm.Count(1)}, step=step))
    assert (type(record.step), record.step) == (int, 3)


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        (4096.5, InvalidValue, "step=4096.5 is no whole number"),
        (float("nan"), InvalidValue, "step=nan"),
        (float("inf"), InvalidValue, "step=inf"),
        (torch.tensor(0.5), InvalidValue, "step=0.5"),
        (-1, InvalidValue, "step=-1 is out of range; a step is from 0"),
        (np.int64(-5), InvalidValue, "step=-5"),
        (2**60, InvalidValue, "out of range"),
        (1e300, InvalidValue, "out of range"),
        (True, InvalidType, "is a bool"),
        (torch.tensor(True), InvalidType, "is a bool"),
        ("3", InvalidType, "step='3' is a str"),
        (3 + 0j, InvalidType, "is a complex"),
        (Fraction(3), InvalidType, "is a Fraction"),
        ([3], InvalidType, "is a list"),
        (torch.tensor([3]), InvalidType, r"shape \(1,\)"),
        (np.array([3, 4]), InvalidType, r"shape \(2,\)"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("call", ["log", "flush"])
def test_anything_else_is_no_step(step: Any, error: type[Exception], said: str, call: str) -> None:
    """A wrong step is an error at the call; nothing is logged under it."""

    def train(logger: dm.Logger) -> None:
        with pytest.raises(error, match=said):
            logger.log({"n": dm.Count(1)}, step=step) if call == "log" else logger.flush(step)
        logger.log({"n": dm.Count(1)}, step=0)

    assert only(records(1, train)) == {"n": 1}


def test_without_a_step_calls_count_on() -> None:
    """`step=None` is one more than the highest step so far, also after given ones and flushes."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)})
        logger.log({"n": dm.Count(1)})
        logger.log({"n": dm.Count(1)}, step=7)
        logger.log({"n": dm.Count(1)})
        logger.flush(20)
        logger.log({"n": dm.Count(1)})

    assert [record.step for record in records(2, train)] == [0, 1, 7, 8, 21]


def test_an_empty_call_is_no_step() -> None:
    """`log({}, step=s)` promises nothing more below `s`, and is not counted as a logged step."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(6)}, step=0)
        logger.log({}, step=1)
        logger.log({"n": dm.Count(6), "gone": None}, step=2)
        logger.log({"gone": None}, step=3)

    found = records(2, train, every=4)
    assert spans(found) == [(0, 2, 3)]
    assert only(found) == {"n": 12}
