"""Tensors of many values of one key: folded as blocks, to the bits of value by value."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.window import blocks
from tests.laws.reference import all_bits
from tests.vocabulary.splits import deal, reduced

KINDS = ("average", "count", "total", "minimum", "maximum", "std", "l2_norm")


def registry() -> dm.Registry:
    """One key of each kind that takes tensors."""
    made = dm.Registry()
    for kind in KINDS:
        made.declare(kind, [kind], {})
    made.average("weighted", weight="w")
    made.histogram("histogram", edges=[-1.0, 0.0, 1.0])
    made.quantiles("quantiles", qs=[0.0, 0.5, 0.99, 1.0])
    made.ignore("w")
    return made


def outputs(dtype: Any) -> Callable[[list[Any]], dict[str, Any]]:
    """All keys with the values of some samples, which are pairs of a value and a weight."""

    def of(batch: list[tuple[float, float]]) -> dict[str, Any]:
        values = np.array([value for value, _ in batch], dtype)
        weights = np.array([weight for _, weight in batch], np.float32)
        keys = (*KINDS, "weighted", "histogram", "quantiles")
        return {**dict.fromkeys(keys, values), "w": weights}

    return of


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([np.float32, np.float64, np.float16, np.int32]),
    st.sampled_from(["plain", "zero weights", "nan", "inf", "wide", "subnormal"]),
    st.integers(0, 1 << 30),
)
def test_blocks_have_the_bits_of_single_values(dtype: Any, kind: str, seed: int) -> None:
    """Whole tensors, and the same values dealt to ranks in small and large pieces."""
    random = np.random.default_rng(seed)
    values = random.normal(size=1500) * 10
    weights = random.random(1500)
    if kind == "zero weights":
        weights[random.random(1500) < 0.3] = 0
    elif kind == "wide":
        values *= 10.0 ** random.integers(-4, 4, 1500)
    elif kind == "subnormal":
        values[::7] *= 1e-45
    elif kind != "plain" and dtype is not np.int32:
        values[5] = math.nan if kind == "nan" else math.inf
    samples = list(zip(values.astype(dtype).tolist(), weights.tolist(), strict=True))
    with np.errstate(all="ignore"):
        whole = reduced(registry(), [[samples]], outputs(dtype))
        single = reduced(
            registry(), [[samples[i : i + 100] for i in range(0, 1500, 100)]], outputs(dtype)
        )
        for world_size in (1, 3):
            dealt = deal(Random(seed), samples, world_size)
            assert all_bits(reduced(registry(), dealt, outputs(dtype))) == all_bits(whole)
    assert all_bits(single) == all_bits(whole)


def test_a_block_is_what_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large tensors take the way of blocks, so that the test above compares two ways."""
    taken = []
    add = blocks._add_block
    monkeypatch.setattr(blocks, "_add_block", lambda *given: (taken.append(given), add(*given))[1])
    reduced(registry(), [[[(1.0, 1.0)] * 1000]], outputs(np.float32))
    assert len(taken) == len(KINDS) + 3
    taken.clear()
    reduced(registry(), [[[(1.0, 1.0)] * 10]], outputs(np.float32))
    assert not taken


def test_tensors_on_other_shapes_and_keys_share_a_call() -> None:
    """A large tensor beside scalars and small ones."""
    made = dm.Registry()
    made.average("a", "b", "c")
    memory = dm.sinks.MemorySink()
    with dm.Logger(made, sinks=[memory]) as logger:
        logger.log({"a": torch.ones(64, 64), "b": 2.0, "c": torch.arange(3)}, step=0)
    assert memory.records[0].values == {"a": 1.0, "b": 2.0, "c": 1.0}


def test_a_windows_memory_does_not_grow_with_its_values() -> None:
    """Thirty steps of 4,096 values hold what one does, once they are folded."""

    def size(steps: int) -> int:
        from distmetrics.snapshot import Snapshotter
        from distmetrics.window.stream import Stream

        snapshotter = Snapshotter(registry(), "", None, print)
        stream = Stream("", None, snapshotter.table, 0, 0.0)
        values = np.random.default_rng(0).uniform(1, 2, 4096).astype(np.float32)
        for step in range(steps):
            stream.log(step, snapshotter.take(outputs(np.float32)([(v, 1.0) for v in values])), 0.0)
        window = stream.folded()
        assert window is not None
        held = window.main.lanes
        assert held is not None
        arrays = (held.sums.digits, held.counters, held.maxes, held.tallies.cells)
        return sum(array.nbytes for array in arrays)

    assert size(30) <= size(1) + 512
