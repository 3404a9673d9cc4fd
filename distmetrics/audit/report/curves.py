"""The curves of a key, thinned out for drawing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.audit import axis
from distmetrics.runs import RunData, Series

POINTS = 400
"""The most points of a curve; enough for a chart that is 800 pixels wide."""

_DIGITS = 7


def curves(key: str, runs: Sequence[RunData], x: str | None = None) -> dict[str, Any]:
    """The common steps of the runs that have the key, and a curve of values for each run.

    Steps, or positions on the axis `x`, are those common to all, thinned out to `POINTS`: of each
    stretch of steps the one where the runs differ most is kept, so that no difference is thinned
    away.
    """
    having = [run for run in runs if key in run.series]
    if not having:
        return {"steps": [], "curves": []}
    series = [run.series[key] for run in having]
    steps, values = _common(series) if x is None else _on_axis(key, having, series, x)
    rows = _thinned(values)
    found = [
        {"world_size": run.world_size, "values": _plain(one[rows])}
        for run, one in zip(having, values, strict=True)
    ]
    return {"steps": steps[rows].tolist(), "curves": found}


def _common(series: Sequence[Series]) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    steps = series[0].steps
    for one in series[1:]:
        if one.steps is not steps:
            steps = np.intersect1d(steps, one.steps, assume_unique=True)
    return steps, [one.values[np.searchsorted(one.steps, steps)] for one in series]


def _on_axis(
    key: str, runs: Sequence[RunData], series: Sequence[Series], x: str
) -> tuple[NDArray[Any], list[NDArray[Any]]]:
    places = [axis.positions(run, x) for run in runs]
    sizes = [run.world_size or 0 for run in runs]
    declared = next((one for run in runs if (one := run.declarations[key]) is not None), None)
    found = axis.align_on(key, series, places, sizes, declared)
    return found.steps, list(found.values)


def _thinned(values: Sequence[NDArray[Any]]) -> NDArray[np.intp]:
    count = len(values[0])
    if count <= POINTS:
        return np.arange(count)
    stacked = np.stack(values)
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(stacked.max(axis=0) - stacked.min(axis=0), posinf=np.inf)
    edges = np.linspace(0, count, POINTS - 1).astype(int)
    kept = {0, count - 1}
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        kept.add(begin + int(np.argmax(spread[begin:end])))
    return np.array(sorted(kept))


def _plain(values: NDArray[Any]) -> list[float | None]:
    """Values for JSON: `None`, which leaves a gap in a curve, for what is not finite."""
    rounded = (float(f"{value:.{_DIGITS}g}") for value in values.tolist())
    return [
        (int(value) if value.is_integer() else value) if np.isfinite(value) else None
        for value in rounded
    ]
