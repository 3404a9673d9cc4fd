"""What per-sample values cost the worker, beside scalars; and what a window holds in memory.

One process logs, ``every=10``, to metrics.jsonl: 64 scalar tensors a step; then one key with 32,768
values a step, for several kinds. Worker CPU is that of the process without its training thread.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import torch

import distmetrics as dm
from distmetrics.snapshot import Snapshotter
from distmetrics.window.stream import Stream

EVERY = 10
SCALARS = 64
VALUES = 32_768
PACE = 0.004
"""Seconds of a step."""


def registry() -> dm.Registry:
    """One key of each kind that takes tensors."""
    made = dm.Registry()
    made.average("average*", "weighted")
    made.count("count")
    made.maximum("maximum")
    made.std("std")
    made.l2_norm("l2_norm")
    made.histogram("histogram", edges=[i / 8 for i in range(-32, 33)])
    made.quantiles("quantiles", qs=[0.5, 0.9, 0.99])
    return made


def worker_seconds(
    outputs: Mapping[str, Any], steps: int, weight: Any = None
) -> tuple[float, float]:
    """CPU seconds of the worker, and of the training thread, for each window of a run."""
    with (
        tempfile.TemporaryDirectory() as folder,
        dm.Logger(registry(), every=EVERY, run_dir=folder) as logger,
    ):
        for step in range(2 * EVERY):
            logger.log(outputs, step=step, weight=weight)
        logger.flush(wait=True)
        process, thread = time.process_time(), time.thread_time()
        for step in range(2 * EVERY, 2 * EVERY + steps):
            logger.log(outputs, step=step, weight=weight)
            time.sleep(PACE)
        logger.flush(wait=True)
        mine = time.thread_time() - thread
        spent = time.process_time() - process - mine
    return spent * EVERY / steps, mine * EVERY / steps


def window_bytes(values: int, steps: int) -> int:
    """Bytes that the folded state of one window holds after so many steps."""
    snapshotter = Snapshotter(registry(), "", None, print)
    stream = Stream("", None, snapshotter.table, 0, 0.0)
    kinds = ("average", "std", "maximum", "histogram", "quantiles")
    for step in range(steps):
        sample = torch.randn(values)
        stream.log(step, snapshotter.take(dict.fromkeys(kinds, sample)), 0.0)
    window = stream.folded()
    assert window is not None
    lanes = window.main.lanes
    assert lanes is not None
    arrays = (lanes.sums.digits, lanes.counters, lanes.maxes)
    return sum(array.nbytes for array in (*arrays, lanes.tallies.cells, lanes.tallies.counts))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    scalars = {f"average{i}": torch.randn(()) for i in range(SCALARS)}
    base: list[float] = []
    found: dict[str, list[tuple[float, float]]] = {}
    sample = torch.randn(VALUES)
    runs: dict[str, tuple[Mapping[str, Any], Any]] = {
        kind: ({kind: sample}, None)
        for kind in ("average", "count", "maximum", "std", "l2_norm", "histogram", "quantiles")
    }
    runs["weighted"] = ({"weighted": sample}, torch.rand(VALUES))
    runs["masked"] = ({"weighted": sample}, torch.rand(VALUES) < 0.8)
    for _ in range(options.repeat):  # in turns, so that a busy machine is busy for all
        base.append(worker_seconds(scalars, options.steps)[0])
        for name, (outputs, weight) in runs.items():
            found.setdefault(name, []).append(worker_seconds(outputs, options.steps, weight))
    unit = min(base)
    print(f"CPU ms for each window of {EVERY} steps, fastest of {options.repeat} (median)")
    print(f"{SCALARS} scalars: worker {1e3 * unit:.2f} ({1e3 * statistics.median(base):.2f})")
    for name, seconds in found.items():
        worker = [w for w, _ in seconds]
        print(
            f"{VALUES} values, {name:9}: worker {1e3 * min(worker):6.2f} "
            f"({1e3 * statistics.median(worker):.2f}), {min(worker) / unit:5.2f} times the "
            f"scalars; training thread {1e3 * min(t for _, t in seconds):.2f}"
        )
    print("\nbytes of a window with one key each of average, std, maximum, histogram, quantiles")
    for values, steps in ((64, 1), (VALUES, 1), (VALUES, 30), (VALUES, 300)):
        print(f"{values:6} values a step, {steps:3} steps: {window_bytes(values, steps):8}")


if __name__ == "__main__":
    main()
