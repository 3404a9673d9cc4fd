"""Comparing by another axis than the step: samples or tokens, for runs that share no steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.audit.aligned import Aligned, Bools, Floats, build
from distmetrics.errors import InvalidValue
from distmetrics.runs import Declared, RunData, Series

_RISING = 0.9
_SAME = 1e-9


def positions(run: RunData, key: str) -> Series:
    """Where on the axis `key` each step of a run lies: a running total.

    A key that hardly ever stays or falls is one already; else it counts what each step adds, and
    is summed up.

    Raises:
        InvalidValue: the run has no such key, or its values are no finite, non-negative numbers.
    """
    series = run.series.get(key)
    if series is None:
        raise InvalidValue(f"--x {key!r}: {run.path} has no such key")
    values = series.values
    if not np.isfinite(values).all() or np.any(values < 0):
        raise InvalidValue(f"--x {key!r}: {run.path} has values that are negative or not finite")
    rises = np.diff(values)
    declared = run.declarations[key]
    total = declared is not None and declared.reduction in {"total", "axis"}
    if total or (len(rises) and np.all(rises >= 0) and np.mean(rises > 0) >= _RISING):
        return series
    return Series(series.steps, np.cumsum(values * series.spans), series.spans)


def align_on(
    key: str,
    series: Sequence[Series],
    places: Sequence[Series],
    sizes: Sequence[int],
    declared: Declared | None = None,
) -> Aligned:
    """One key's series of several runs at the axis positions of the run with the fewest of them.

    Between two positions a finer run's values are averaged; counts are summed, extremes and
    running totals taken as such, so that they cover the same samples.
    """
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    series = [series[place] for place in order]
    at = [_at(series[row], places[place]) for row, place in enumerate(order)]
    whole = all(np.all(one.values == np.rint(one.values)) for one in series)
    combine = _combination(declared, whole=whole)
    coarsest = max(range(len(at)), key=lambda row: (_gap(at[row]), -len(at[row])))
    reach = min((float(one[-1]) if len(one) else 0.0) for one in at)
    grid = at[coarsest][at[coarsest] <= reach * (1 + _SAME)]
    rows = [
        _gather(one.values, where, grid, combine) for one, where in zip(series, at, strict=True)
    ]
    values = np.stack(rows)
    covered = _covered(at, grid)
    values, grid = values[:, covered], grid[covered]
    with np.errstate(invalid="ignore"):
        spread: Floats = values.max(axis=0) - values.min(axis=0)
    return build(
        key,
        tuple(sizes[place] for place in order),
        grid,
        values,
        spread,
        integer=whole and combine is not np.mean and all(one.integer for one in series),
        single=any(one.precision == "float32" for one in series),
        declared=declared,
        notes=(f"{len(grid)} positions of the axis are common",),
    )


def _at(series: Series, places: Series) -> Floats:
    """Shape (n,): the axis position of each value."""
    if len(places) == 0:
        return np.zeros(0)
    return np.interp(series.steps, places.steps, places.values)


def _gap(places: Floats) -> float:
    return float(np.median(np.diff(places))) if len(places) > 1 else np.inf


def _last(values: Floats) -> float:
    return float(values[-1])


Combine = Callable[[Floats], Any]

_COMBINATIONS: dict[str, Combine] = {
    "count": np.sum,
    "maximum": np.max,
    "minimum": np.min,
    "total": _last,
    "axis": _last,
    "same": _last,
}


def _combination(declared: Declared | None, *, whole: bool) -> Combine:
    if declared is not None and declared.reduction in _COMBINATIONS:
        return _COMBINATIONS[declared.reduction]
    return np.sum if whole and declared is None else np.mean


def _bounds(where: Floats, grid: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """For each grid position the first and the end of the values in (previous, this]."""
    first = float(grid[1] - grid[0]) if len(grid) > 1 else np.inf
    before = np.concatenate([[grid[0] - first], grid[:-1]]) if len(grid) else grid
    slack = _SAME * np.maximum(np.abs(grid), 1.0)
    begin = np.searchsorted(where, before + slack, "right")
    return begin, np.searchsorted(where, grid + slack, "right")


def _gather(values: Floats, where: Floats, grid: Floats, combine: Combine) -> Floats:
    """The values combined between grid positions; NaN where there are none."""
    begin, end = _bounds(where, grid)
    if np.all(end - begin == 1):
        return values[begin]
    pairs = zip(begin.tolist(), end.tolist(), strict=True)
    return np.array(
        [float(combine(values[one:other])) if other > one else np.nan for one, other in pairs]
    )


def _covered(at: Sequence[Floats], grid: Floats) -> Bools:
    """The positions at which every run has values."""
    covered = np.ones(len(grid), bool)
    for where in at:
        begin, end = _bounds(where, grid)
        covered &= end > begin
    return covered
