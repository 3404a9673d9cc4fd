"""One flush on several ranks, given as what each rank logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks_in_process

Calls = Sequence[Mapping[str, Any]]


def row(*ranks: Calls, registry: Any = dm.Registry, **options: Any) -> dict[str, Any]:
    """The values of the one record of a step in which each rank makes its calls."""
    (found,) = rows(*ranks, registry=registry, **options)
    return found


def rows(*ranks: Calls, registry: Any = dm.Registry, **options: Any) -> list[dict[str, Any]]:
    """The values of all records; the calls of a rank share a step unless they have a ``step``."""
    memory = MemorySink()

    def rank() -> None:
        sinks = [memory] if dm.get_rank() == 0 else []
        with dm.Logger(registry(), sinks=sinks, **options) as logger:
            for call in ranks[dm.get_rank()]:
                outputs = {key: value for key, value in call.items() if key != "step"}
                logger.log(outputs, step=call.get("step", 0))

    run_ranks_in_process(rank, len(ranks), timeout=30)
    return [dict(record.values) for record in memory.records]


def registry(**methods: str) -> Any:
    """What makes a registry whose keys are declared by the names of its methods."""

    def make() -> dm.Registry:
        made = dm.Registry()
        for key, method in methods.items():
            getattr(made, method)(key)
        return made

    return make


def weighted() -> dm.Registry:
    """A loss whose weight is the key `n`."""
    made = dm.Registry()
    made.average("loss", weight="n")
    return made
