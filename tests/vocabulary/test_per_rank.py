"""Per-rank values: each rank's own, with the extremes of all."""

from __future__ import annotations

import logging
import math
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.reductions import per_rank
from distmetrics.reductions.state import Counter, State
from distmetrics.testing import MemorySink, run_ranks_in_process


def registry() -> dm.Registry:
    """A registry with one per-rank key."""
    made = dm.Registry()
    made.per_rank("mem", unit="GiB")
    return made


def rows(calls: list[list[tuple[int, Any]]], every: int | None = 1) -> list[dict[str, Any]]:
    """The records' values when each rank logs its pairs of a step and a value."""
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry(), sinks=[memory] if rank == 0 else [], every=every) as logger:
            for step, value in calls[rank]:
                logger.log({"mem": value}, step=step)

    run_ranks_in_process(train, len(calls))
    return [dict(record.values) for record in memory.records]


@pytest.mark.parametrize(
    ("values", "least", "most", "where"),
    [([1, 5, 3], 1, 5, 1), ([-1.5, -2.5], -2.5, -1.5, 0), ([7], 7, 7, 0), ([0, 0], 0, 0, 0)],
)
def test_every_rank_has_a_key_and_all_ranks_extremes(
    values: list[float], least: float, most: float, where: int
) -> None:
    """``mem/rank0`` ..., ``mem/min``, ``mem/max`` and the rank of the largest."""
    (row,) = rows([[(0, value)] for value in values])
    assert row == {
        **{f"mem/rank{rank}": value for rank, value in enumerate(values)},
        "mem/min": least,
        "mem/max": most,
        "mem/argmax": where,
    }
    assert all(type(row[f"mem/rank{rank}"]) is type(value) for rank, value in enumerate(values))


def test_a_ranks_value_is_that_of_its_last_step() -> None:
    """Whatever came before in the window, and whichever call came last."""
    calls = [[(0, 9), (1, 8), (2, 1)], [(0, 7), (1, 5)], []]
    (row,) = rows(calls, every=3)
    assert row == {"mem/rank0": 1, "mem/rank1": 5, "mem/min": 1, "mem/max": 5, "mem/argmax": 1}


def test_windows_are_told_apart() -> None:
    """A window's values are its own, also where a rank logged nothing in it."""
    first, second = rows([[(0, 1), (1, 2)], [(1, 3)]])
    assert first == {"mem/rank0": 1, "mem/min": 1, "mem/max": 1, "mem/argmax": 0}
    assert second["mem/rank0"] == 2
    assert second["mem/rank1"] == 3


@pytest.mark.parametrize("value", [0.0, -0.0, 1e308, -5e-324, math.inf, -math.inf])
def test_any_number_comes_back(value: float) -> None:
    """Zero and numbers at the ends of the range are told from no value."""
    (row,) = rows([[(0, value)], [(0, 1.0)]])
    assert row["mem/rank0"] == value
    assert row["mem/rank1"] == 1.0


def test_nan_is_shown_where_it_is() -> None:
    """The extremes are NaN, and argmax points at it, as in NumPy."""
    (row,) = rows([[(0, 2.0)], [(0, math.nan)], [(0, 3.0)]])
    assert math.isnan(row["mem/rank1"])
    assert math.isnan(row["mem/max"])
    assert (row["mem/argmax"], row["mem/nonfinite"]) == (1, 1)


def test_one_value_a_call() -> None:
    """A tensor of several is an error that names the key."""
    with dm.Logger(registry()) as logger, pytest.raises(dm.DistmetricsError, match="'mem'"):
        logger.log({"mem": [1, 2]}, step=0)


def test_its_scaling_class_is_its_own() -> None:
    """The audit does not expect the same values at other world sizes."""
    assert registry()["mem"].scaling == "per_rank"


def state(ranks: int) -> State:
    """The merged state when so many ranks logged their numbers."""
    reduction = per_rank()
    counts: dict[int, int] = {}
    for rank in range(ranks):
        ((_, images),) = reduction.contribute(_array(rank), None).maxes
        fields = [int(images[0]), 0, 0]
        assert reduction.at_rank is not None
        counts |= {bucket: count for _, bucket, count in reduction.at_rank(fields, rank)}
    counters = [0] * len(Counter)
    counters[Counter.COUNT] = ranks
    return State([], 0, counters, [0, 0, 0], tallies=[counts])


def _array(value: int) -> Any:
    import numpy as np

    return np.array([value])


def test_beyond_64_ranks_the_output_is_bounded() -> None:
    """The first 64 ranks have keys, the extremes are those of all ranks."""
    found = per_rank().value(state(1000), None, "propagate")  # type: ignore[arg-type]
    assert isinstance(found, dict)
    assert len(found) == 64 + 3
    assert (found["rank63"], found["min"], found["max"], found["argmax"]) == (63, 0, 999, 999)


def test_that_ranks_are_left_out_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """On rank 0, when a logger with more than 64 ranks is made."""

    def make() -> None:
        dm.Logger(registry()).close()

    with caplog.at_level(logging.INFO, "distmetrics"):
        run_ranks_in_process(make, 65, timeout=100)
    said = [message for message in caplog.messages if "'mem'" in message]
    assert len(said) == 1
    assert "the first 64 of 65 ranks" in said[0]
