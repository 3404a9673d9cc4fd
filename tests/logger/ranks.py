"""Loggers on ranks that are threads of this process, and what rank 0 writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks_in_process

Make = Callable[[], dm.Registry]


def records(
    world_size: int,
    train: Callable[[dm.Logger], object],
    registry: Make = dm.Registry,
    every: int | None = 1,
    **options: Any,
) -> list[dm.Record]:
    """The records of a run in which every rank calls `train` with its logger."""
    memory = MemorySink()

    def rank() -> None:
        sinks = [memory] if dm.get_rank() == 0 else []
        with dm.Logger(registry(), sinks=sinks, every=every, **options) as logger:
            train(logger)

    run_ranks_in_process(rank, world_size, timeout=30)
    return memory.records


def values(found: Sequence[dm.Record]) -> list[dict[str, Any]]:
    """The values of each record."""
    return [dict(record.values) for record in found]


def only(found: Sequence[dm.Record]) -> dict[str, Any]:
    """The values of the only record."""
    (record,) = found
    return dict(record.values)


@contextmanager
def warned(match: str, times: int | None = None) -> Iterator[list[str]]:
    """Expect warnings of distmetrics from any thread, one of them like `match`.

    Args:
        match: a pattern that is found in a warning.
        times: how many warnings it is found in, over all ranks.
    """
    texts: list[str] = []
    with pytest.warns(dm.DistmetricsWarning, match=match) as caught:
        yield texts
    texts += [str(warning.message) for warning in caught]
    if times is not None:
        import re

        assert sum(re.search(match, text) is not None for text in texts) == times, texts
