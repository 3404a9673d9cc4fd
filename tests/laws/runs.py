"""One data set, split over ranks and micro-batches in any way, logged, and its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.laws.reference import all_bits

Samples = list[int]
"""Indexes of samples."""


@dataclass(frozen=True)
class Call:
    """One `log` call: a micro-batch, maybe without samples."""

    step: int
    samples: Samples
    outputs: Mapping[str, Any]
    weight: Any = None


Split = list[list[tuple[int, Samples]]]
"""For each rank its micro-batches: step and samples, in order."""


def random_split(random: Random, steps: Sequence[Samples], world_size: int) -> Split:
    """Deal the samples of every step out to ranks and micro-batches, some of them empty."""
    split: Split = [[] for _ in range(world_size)]
    for step, samples in enumerate(steps):
        parts: dict[int, dict[int, Samples]] = {}
        for sample in random.sample(samples, len(samples)):
            rank, micro = random.randrange(world_size), random.randrange(3)
            parts.setdefault(rank, {}).setdefault(micro, []).append(sample)
        for rank in range(world_size):
            if rank not in parts and random.random() < 0.5:
                parts[rank] = {0: []}
            split[rank] += [(step, parts[rank][micro]) for micro in parts.get(rank, {})]
    return split


def records_of(
    calls: Sequence[Sequence[Call]],
    registry: dm.Registry,
    every: int | None,
    run_dir: Path | None = None,
) -> list[dm.Record]:
    """What rank 0 writes when every rank makes its calls, as threads of this process."""
    memory = MemorySink()

    def train() -> None:
        sinks = [memory] if dm.get_rank() == 0 else []
        with dm.Logger(registry, run_dir, sinks, every) as logger:
            for call in calls[dm.get_rank()]:
                logger.log(call.outputs, step=call.step, weight=call.weight)

    run_ranks_in_process(train, len(calls))
    return memory.records


def calls_of(split: Split, make: Callable[[Samples], Mapping[str, Any]]) -> list[list[Call]]:
    """The calls of every rank; `make` gives the outputs of some samples."""
    return [[Call(step, samples, make(samples)) for step, samples in batches] for batches in split]


def rows_of(records: Sequence[dm.Record]) -> list[tuple[object, ...]]:
    """The records without times, values in bits."""
    return [
        (record.step, record.first_step, record.window, record.late, all_bits(dict(record.values)))
        for record in records
    ]
