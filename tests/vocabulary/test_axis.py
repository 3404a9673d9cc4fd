"""Axes: running totals that charts use as x-axis."""

from __future__ import annotations

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks_in_process


def test_an_axis_runs_on_over_ranks_and_windows() -> None:
    """Samples of all ranks and all windows so far, as whole numbers."""
    registry = dm.Registry()
    registry.axis("samples")
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry, sinks=[memory] if rank == 0 else [], every=2) as logger:
            for step in range(5):
                logger.log({"samples": rank + 1}, step=step)

    run_ranks_in_process(train, 3)
    assert [record.values["samples"] for record in memory.records] == [12, 24, 30]


def test_an_axis_goes_on_after_a_checkpoint() -> None:
    """A loaded state holds the total so far."""
    registry = dm.Registry()
    registry.axis("samples")
    with dm.Logger(registry) as logger:
        logger.log({"samples": 5}, step=0)
        state = logger.state_dict()
    memory = MemorySink()
    with dm.Logger(registry, sinks=[memory]) as logger:
        logger.load_state_dict(state)
        logger.log({"samples": 7}, step=1)
    assert memory.records[-1].values["samples"] == 12
