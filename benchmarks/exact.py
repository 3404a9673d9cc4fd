"""Exact sums per second, beside math.fsum and np.sum on the same data.

    python benchmarks/exact.py

One thread. `exact` adds an array of values to rows given in any order, by one call of `add`; the
other two get one ready-made array a row, so that they need not sort, and fsum a list made of it.
Each figure is the median of several repeats, taken in turn. `np.sum` is not exact; beyond 2**53
fsum is not exact for integers.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from distmetrics import exact

REPEATS = 7
SHAPES = [(640, 64), (40_000, 64), (1_000_000, 1), (1_000_000, 64)]
KINDS = [np.float64, np.float32, np.int64]


def seconds_of(calls: list[Callable[[], object]], count: int) -> list[float]:
    """The median time of each call, in seconds; every repeat runs `count` of each in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(REPEATS):
        for call, taken in zip(calls, times, strict=True):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - begin) / count)
    return [statistics.median(taken) for taken in times]


def compare(values: np.ndarray, rows: np.ndarray, count: int) -> list[float]:
    """Seconds to sum the values by `exact`, `math.fsum` and `np.sum`; checks the results first."""
    arrays = [values[rows == row] for row in range(count)]
    block = exact.zeros(count)
    exact.add(block, rows, values)
    sums = [exact.to_float(units, block.lo) for units in exact.decode(block.digits, block.lo)]
    if sums != [math.fsum(array) for array in arrays]:
        sys.exit("the exact sums differ from math.fsum")
    return seconds_of(
        [
            lambda: exact.add(block, rows, values),
            lambda: [math.fsum(array.tolist()) for array in arrays],
            lambda: [np.sum(array) for array in arrays],
        ],
        count=max(1, 50_000 // values.size),
    )


def sums() -> None:
    """Prints one line a kind of number and shape."""
    rng = np.random.default_rng(0)
    print(f"{'million values per second':42}{'exact:fsum':>12}{'exact:np.sum':>14}")
    print(f"{'values':>9}{'rows':>6}  {'type':8}{'exact':>7}{'fsum':>7}{'np.sum':>9}")
    for size, count in SHAPES:
        for kind in KINDS:
            spread = 1000 if kind is np.int64 else 1
            values = (rng.standard_normal(size) * spread).astype(kind)
            rows = rng.integers(0, count, size)
            taken = compare(values, rows, count)
            speeds = [size / seconds / 1e6 for seconds in taken]
            print(
                f"{size:9}{count:6}  {np.dtype(kind).name:8}{speeds[0]:7.1f}{speeds[1]:7.1f}"
                f"{speeds[2]:9.1f}{speeds[0] / speeds[1]:9.2f}{speeds[0] / speeds[2]:14.3f}"
            )


def reading() -> None:
    """Prints what it takes to read, normalize and merge the sums of a small batch."""
    rng = np.random.default_rng(0)
    print("\nmicroseconds for a block of 64 sums (128 values a sum)")
    for label, values in [
        ("values of one magnitude", rng.standard_normal(64 * 128)),
        ("values over float64's whole range", np.exp(rng.uniform(-700, 700, 64 * 128))),
    ]:
        block = exact.zeros(64)
        exact.add(block, np.arange(64 * 128) % 64, values)
        fresh = exact.take(block, slice(None))
        other = exact.zeros(64)

        def read(block: exact.Limbs = block) -> list[float]:
            return [exact.to_float(u, block.lo) for u in exact.decode(block.digits, block.lo)]

        def normalize(block: exact.Limbs = fresh) -> None:
            exact.normalize(exact.take(block, slice(None)))

        def merge(into: exact.Limbs = other, block: exact.Limbs = block) -> None:
            exact.merge(into, block)

        taken = [seconds * 1e6 for seconds in seconds_of([read, normalize, merge], 200)]
        print(
            f"{label:35}{block.digits.shape[1]:4} limbs: read {taken[0]:.0f}, "
            f"normalize {taken[1]:.0f}, merge {taken[2]:.0f}"
        )


if __name__ == "__main__":
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, {os.cpu_count()} cores\n")
    sums()
    reading()
