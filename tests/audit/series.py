"""Runs made of arrays, for tests of the judge and of what stands on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distmetrics.audit.aligned import align
from distmetrics.audit.finding import Context
from distmetrics.audit.judge import judge
from distmetrics.audit.verdict import Verdict
from distmetrics.runs import Declarations, Declared, RunData, Series
from distmetrics.runs.columns import column_array, joined
from distmetrics.runs.series import Precision, spans_of


def series(
    values: Sequence[float], steps: Sequence[int] | None = None, precision: Precision = "float64"
) -> Series:
    """A series of these values; ints are known as ints, as a reader would."""
    floats, exact, integer = joined([column_array(tuple(np.asarray(values).tolist()))])
    at = np.arange(len(values)) if steps is None else np.array(steps)
    if precision == "float32":
        floats, exact, integer = floats.astype(np.float32).astype(float), None, False
    return Series(at, floats, spans_of(at), exact, integer, precision)


def verdict(
    values: Mapping[int, Sequence[float]],
    key: str = "metric",
    declared: Declared | None = None,
    precision: Precision = "float64",
    **context: Any,
) -> Verdict:
    """The judge's verdict on world size to values."""
    found = [series(one, precision=precision) for one in values.values()]
    return judge(align(key, found, list(values), declared), Context(**context))


def runs(
    table: Mapping[str, Mapping[int, Sequence[float]]],
    registry: Sequence[Mapping[str, Any]] = (),
) -> list[RunData]:
    """One run per world size from key to world size to values."""
    sizes = sorted({size for values in table.values() for size in values})
    return [
        RunData(
            Path(f"w{size}"),
            "distmetrics",
            size,
            {key: series(values[size]) for key, values in table.items() if size in values},
            Declarations(registry),
        )
        for size in sizes
    ]
