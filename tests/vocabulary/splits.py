"""One data set logged in many ways: dealt to ranks and micro-batches, reduced, and compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.laws.reference import all_bits

Deal = list[list[list[Any]]]
"""For each rank its micro-batches."""


def deal(random: Random, samples: Sequence[Any], world_size: int) -> Deal:
    """The samples dealt to ranks and micro-batches; some of these get none."""
    dealt: Deal = [[[] for _ in range(random.randrange(4))] for _ in range(world_size)]
    dealt[random.randrange(world_size)].append([])
    places = [batch for rank in dealt for batch in rank]
    for sample in random.sample(list(samples), len(samples)):
        random.choice(places).append(sample)
    return dealt


def reduced(
    registry: dm.Registry, dealt: Deal, outputs: Callable[[list[Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The values of the one record to which every micro-batch of every rank adds."""
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry, sinks=[memory] if rank == 0 else [], every=None) as logger:
            for batch in dealt[rank]:
                logger.log(outputs(batch), step=0)

    run_ranks_in_process(train, len(dealt))
    (record,) = memory.records or [None]
    return {} if record is None else dict(record.values)


def assert_same_bits(
    registry: dm.Registry,
    samples: Sequence[Any],
    outputs: Callable[[list[Any]], dict[str, Any]],
    seed: int,
    world_sizes: Sequence[int] = (1, 2, 3, 4),
) -> dict[str, Any]:
    """What the samples come to, which is the same in bits however they are dealt."""
    random = Random(seed)
    whole = reduced(registry, [[list(samples)]], outputs)
    for world_size in world_sizes:
        split = reduced(registry, deal(random, samples, world_size), outputs)
        assert all_bits(split) == all_bits(whole), world_size
    return whole
