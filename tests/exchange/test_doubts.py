"""What merged lanes leave open is settled by what the ranks that count have said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distmetrics as dm
from distmetrics.errors import DistmetricsWarning
from distmetrics.exchange.topology import RecordedMesh
from distmetrics.testing import run_ranks_in_process

MESH = RecordedMesh(np.arange(4).reshape(2, 2), ("data", "tensor"))


def logged(values: dict[int, tuple[float, int]]) -> tuple[Any, list[str]]:
    """The value of a `same` key with two replicas each, of ranks that log a value at a step."""
    registry = dm.Registry()
    registry.same("lr", replicated_over=("tensor",))
    memory = dm.sinks.MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        logger = dm.Logger(registry, sinks=[memory] if rank == 0 else [], every=10, mesh=MESH)
        logger.log({"n": dm.Count(1)}, step=0)
        if rank in values:
            value, step = values[rank]
            logger.log({"lr": value}, step=step)
        logger.close()

    with pytest.warns(DistmetricsWarning) as warned:
        run_ranks_in_process(train, 4)
    (record,) = memory.records
    return record.values.get("lr"), sorted({str(w.message) for w in warned})


def test_what_a_replica_says_does_not_count_where_the_first_one_speaks() -> None:
    """The lowest rank of those that count is logged, and no other replica is held against it."""
    value, texts = logged({0: (0.5, 9), 1: (0.25, 9), 2: (0.125, 9), 3: (0.125, 9)})
    assert value == 0.5
    assert texts == [
        (
            "key 'lr' should be the same on all ranks and differs on rank 2 at step 9 (rank 0: "
            "0.5, rank 2: 0.125); rank 0's is logged: set it alike on every rank, or declare it "
            "otherwise, per_rank say"
        )
    ]


def test_what_only_another_replica_says_is_left_out() -> None:
    """Also where it is the last word."""
    value, texts = logged({1: (0.25, 9), 2: (0.125, 3), 0: (0.5, 2)})
    assert value == 0.125
    assert any("replicated over 'tensor'" in text for text in texts)
