"""Histograms: counted exactly, drawn with their true bins."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from distmetrics.record import Record
from distmetrics.sinks import JsonlSink, TensorBoardSink, WandbSink
from distmetrics.sinks.histograms import histograms
from tests.sinks.records import record, run
from tests.sinks.wandb_log import read_wandb, wandb_files
from tests.vocabulary.splits import assert_same_bits, reduced

_EDGES = st.lists(
    st.floats(-1e6, 1e6).map(lambda edge: edge + 0.0), min_size=2, max_size=9, unique=True
).map(sorted)


def of(edges: list[float], **described: Any) -> dm.Registry:
    """A registry with one histogram."""
    registry = dm.Registry()
    registry.histogram("h", edges=edges, **described)
    return registry


@settings(max_examples=30, deadline=None)
@given(st.data(), _EDGES, st.integers(0, 1 << 30))
def test_counts_are_those_of_numpy_however_samples_are_dealt(
    data: st.DataObject, edges: list[float], seed: int
) -> None:
    """The same bins in every split, and those of `numpy.histogram`, with what lies outside."""
    value = st.one_of(st.floats(width=32), st.sampled_from(edges), st.integers(-(10**6), 10**6))
    samples = data.draw(st.lists(value, min_size=1, max_size=40))
    values = assert_same_bits(of(edges), samples, lambda batch: {"h": batch}, seed)
    finite = [float(x) for x in samples if math.isfinite(x)]
    counts, _ = np.histogram(finite, edges)
    expected = {"edges": edges, "counts": counts.tolist()}
    beside = {
        "below": sum(x < edges[0] for x in finite),
        "above": sum(x > edges[-1] for x in finite),
        "nan": sum(map(math.isnan, samples)),
        "inf": samples.count(math.inf),
        "neginf": samples.count(-math.inf),
    }
    assert values["h"] == expected | {name: n for name, n in beside.items() if n}
    assert values.get("h/nonfinite", 0) == len(samples) - len(finite)


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([0.5, 1.5], dtype=torch.bfloat16),
        torch.tensor([[0.5], [1.5]], dtype=torch.float16),
        np.array([0.5, 1.5], np.float32),
        [0.5, 1.5],
        torch.tensor([0, 1]),
        np.array([False, True]),
    ],
)
def test_values_of_every_kind_are_counted(values: Any) -> None:
    """Each element is a contribution, whatever its dtype and shape."""
    assert reduced(of([0, 1, 2]), [[values]], lambda batch: {"h": batch})["h"]["counts"] == [1, 1]


def test_integers_beyond_float64_lie_above_or_below() -> None:
    """They need no special case."""
    found = reduced(of([0, 1]), [[[10**400, -(10**400), 1]]], lambda batch: {"h": batch})
    assert found["h"] == {"edges": [0.0, 1.0], "counts": [1], "below": 1, "above": 1}


def test_left_out_values_are_counted_apart_only() -> None:
    """With nonfinite="skip" the histogram has no NaN beside, and the key's count of them stays."""
    registry = of([0.0, 1.0], nonfinite="skip")
    found = reduced(registry, [[[math.nan, 0.5]]], lambda batch: {"h": batch})
    assert found == {"h": {"edges": [0.0, 1.0], "counts": [1]}, "h/nonfinite": 1}
    found = reduced(registry, [[[math.nan]]], lambda batch: {"h": batch})
    assert found == {"h": {"edges": [0.0, 1.0], "counts": [0]}, "h/nonfinite": 1}


def test_a_window_adds_its_steps_up() -> None:
    """The counts are those of all steps, not of the last one or of each."""
    memory = dm.sinks.MemorySink()
    with dm.Logger(of([0, 1, 2]), sinks=[memory], every=3) as logger:
        for step in range(6):
            logger.log({"h": [0.5, 1.5]}, step=step)
    assert [row.values["h"]["counts"] for row in memory.records] == [[3, 3], [3, 3]]


@pytest.mark.parametrize(
    "edges",
    [
        [],
        [1.0],
        [1.0, 1.0],
        [2.0, 1.0],
        [0.0, math.nan],
        [0.0, math.inf],
        "0123",
        3,
        [0, "1"],
        None,
    ],
)
def test_edges_that_make_no_bins_are_refused(edges: Any) -> None:
    """The message names the key and says what edges are."""
    with pytest.raises(dm.DistmetricsError, match=r"'h'.*edges= are at least two finite numbers"):
        of(edges)


def test_edges_of_any_kind_are_one_declaration() -> None:
    """A tuple, an array and a range of the same numbers agree."""
    registry = of([0.0, 1.0, 2.0])
    registry.histogram("h", edges=np.arange(3))  # type: ignore[arg-type]
    registry.histogram("h", edges=range(3))
    with pytest.raises(dm.DeclarationConflict):
        registry.histogram("h", edges=[0, 1, 3])


_DRAWN = {"edges": [0.0, 1.0, 3.0], "counts": [5, 7], "below": 2, "above": 1, "nan": 4}


def test_a_file_holds_it_exactly(tmp_path: Path) -> None:
    """metrics.jsonl has the histogram of DESIGN, and reads back as it was."""
    sink = JsonlSink()
    sink.open(run(tmp_path))
    sink.write(record(9, {"h": _DRAWN}))
    sink.close()
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line)["values"]["h"] == _DRAWN
    assert Record.from_json(line).values["h"] == _DRAWN


def test_tensorboard_draws_the_true_bins(tmp_path: Path) -> None:
    """Each bin is a bucket with its ends; what lies outside has one as wide as its neighbour."""
    sink = TensorBoardSink()
    sink.open(run(tmp_path))
    sink.write(record(9, {"h": _DRAWN, "loss": 0.5}))
    sink.write(record(19, {"h": {"edges": [0.0, 1.0], "counts": [3]}}))
    sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"), {"histograms": 0})
    events.Reload()
    first, second = events.Histograms("h")
    drawn = first.histogram_value
    assert (first.step, drawn.min, drawn.max, drawn.num) == (9, -1.0, 5.0, 15.0)
    assert (drawn.bucket_limit, drawn.bucket) == ([0.0, 1.0, 3.0, 5.0], [2.0, 5.0, 7.0, 1.0])
    assert second.histogram_value.bucket == [3.0]
    assert [event.value for event in events.Scalars("loss")] == [0.5]


def test_wandb_has_the_true_bins(tmp_path: Path) -> None:
    """A W&B histogram in the offline file, with counts and ends."""
    sink = WandbSink("offline")
    sink.open(run(tmp_path))
    sink.write(record(9, {"h": _DRAWN}))
    sink.close()
    (file,) = wandb_files(tmp_path)
    (row,) = read_wandb(file).rows
    assert row["h._type"] == "histogram"
    assert row["h.values"] == [2, 5, 7, 1]
    assert row["h.bins"] == [-1.0, 0.0, 1.0, 3.0, 5.0]


def test_more_bins_than_wandb_takes_are_put_together(tmp_path: Path) -> None:
    """Neighbouring bins are added up, none is lost."""
    many = {"edges": [float(i) for i in range(2001)], "counts": [1] * 2000}
    sink = WandbSink("offline")
    sink.open(run(tmp_path))
    sink.write(record(9, {"h": many}))
    sink.close()
    (file,) = wandb_files(tmp_path)
    (row,) = read_wandb(file).rows
    assert sum(row["h.values"]) == 2000
    assert len(row["h.values"]) <= 512
    assert (row["h.bins"][0], row["h.bins"][-1]) == (0.0, 2000.0)


@given(_EDGES, st.integers(1, 9))
def test_coarser_bins_keep_counts_and_ends(edges: list[float], most: int) -> None:
    """However few are asked for."""
    value = {"edges": edges, "counts": list(range(len(edges) - 1))}
    (bins,) = histograms(record(0, {"h": value})).values()
    coarse = bins.coarsened(most)
    assert len(coarse.counts) == len(coarse.edges) - 1 <= most
    assert sum(coarse.counts) == sum(bins.counts)
    assert (coarse.edges[0], coarse.edges[-1]) == (edges[0], edges[-1])
