"""`same`: a value that all ranks should agree on, and what happens where they do not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import distmetrics as dm
from tests.laws.reference import all_bits
from tests.logger.ranks import records, values, warned


def registry() -> dm.Registry:
    """A learning rate and a seed."""
    made = dm.Registry()
    made.same("lr", "seed")
    return made


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_value_that_ranks_agree_on_is_logged_as_it_is(world_size: int) -> None:
    """Floats in their bits, ints as ints of any size, NaN and infinities too."""
    for value in (0.1, -0.0, 3, 2**63 - 25, -(2**70) - 1, math.inf, math.nan, True):
        found = records(world_size, lambda lg, v=value: lg.log({"lr": v}, step=0), registry)
        number = int(value) if isinstance(value, bool) else value
        wanted: dict[str, Any] = {"lr": number}
        if not math.isfinite(value):
            wanted["lr/nonfinite"] = world_size
        assert [all_bits(one) for one in values(found)] == [all_bits(wanted)]


def test_it_is_the_last_steps_value() -> None:
    """Within a window a later step replaces an earlier one, whatever the order of ranks."""

    def train(logger: dm.Logger) -> None:
        for step in range(8):
            for micro in range(2):
                logger.log({"lr": step + micro / 10}, step=step)

    assert values(records(2, train, registry, every=4)) == [{"lr": 3.1}, {"lr": 7.1}]


def test_ranks_need_not_all_log_it() -> None:
    """One that does is enough; of those that do, the ones at the last step count."""

    def train(logger: dm.Logger) -> None:
        rank = dm.get_rank()
        if rank == 1:
            logger.log({"lr": 0.5}, step=0)
        if rank < 2:
            logger.log({"seed": 10 + rank if rank else 12}, step=2 - rank)

    assert values(records(3, train, registry, every=4)) == [{"lr": 0.5, "seed": 12}]


def test_a_difference_is_warned_of_once_with_ranks_and_values() -> None:
    """The lowest rank's value is logged."""

    def train(logger: dm.Logger) -> None:
        for step in range(4):
            logger.log({"lr": 0.1 if dm.get_rank() != 2 else torch.tensor(0.2)}, step=step)
            logger.flush(wait=True)

    said = (
        r"key 'lr' should be the same on all ranks and differs on rank 2 at step \d+ "
        r"\(rank 0: 0.1, rank 2: 0.2\d*\); rank 0's is logged"
    )
    with warned(said, times=4):
        found = records(4, train, registry)
    assert values(found) == [{"lr": 0.1}] * 4


def test_a_difference_in_the_last_bits_of_a_wide_int_is_seen() -> None:
    """Seeds have 64 bits, of which a float would lose eleven."""

    def train(logger: dm.Logger) -> None:
        logger.log({"seed": 2**62 + dm.get_rank()}, step=0)

    with warned("'seed' should be the same .*4611686018427387904, rank 1: 4611686018427387905"):
        assert values(records(2, train, registry)) == [{"seed": 2**62}]


def test_a_child_may_have_one_too() -> None:
    """Calls without steps keep the last one."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for lr in (0.3, 0.2):
            val.log({"lr": lr})
        val.flush(5)

    assert values(records(2, train, registry)) == [{"val/lr": 0.2}]
