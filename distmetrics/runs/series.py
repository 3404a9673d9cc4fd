"""What is read back from a run: one series per key, and what the run says of itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distmetrics.runs.declared import Declarations

Precision = Literal["float64", "float32"]
Format = Literal["distmetrics", "tensorboard", "wandb", "table"]

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]


@dataclass(frozen=True)
class Series:
    """The values of one key over the steps at which it was logged.

    Attributes:
        steps: shape (n,), int64, strictly increasing; of several values for one step the last.
        values: shape (n,), float64.
        spans: shape (n,), int64: how many steps each value covers, at least 1.
        exact: where every value is an int and some are beyond 2**53: the ints themselves, as int64
            or Python objects. None where `values` hold them exactly.
        integer: every value was written as an int.
        precision: "float32" where the file keeps no more.
        times: shape (n,), float64: when each value was written, in seconds since the epoch; NaN
            where a row does not say, None where none does.
    """

    steps: Steps
    values: Floats
    spans: Steps
    exact: NDArray[Any] | None = None
    integer: bool = False
    precision: Precision = "float64"
    times: Floats | None = None

    def __len__(self) -> int:
        return len(self.steps)


@dataclass
class RunData:
    """One run, read back from its files.

    Attributes:
        path: where it was read from.
        format: which reader read it.
        world_size: the number of ranks; None where neither the files nor the caller say.
        series: key (with a child's prefix) to its values.
        declarations: what the run's registry says of its keys; empty for runs of other tools.
        warnings: what was left out or looks odd, as sentences.
        config: the user's configuration, where the files hold one.
    """

    path: Path
    format: Format
    world_size: int | None
    series: dict[str, Series]
    declarations: Declarations = field(default_factory=Declarations)
    warnings: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def precision(self) -> Precision:
        """What the files hold of each number: "float32" if any series has no more."""
        single = any(series.precision == "float32" for series in self.series.values())
        return "float32" if single else "float64"

    @property
    def last_step(self) -> int | None:
        """The highest step of any key; None for an empty run."""
        return max((int(one.steps[-1]) for one in self.series.values() if len(one)), default=None)


def spans_of(steps: Steps) -> Steps:
    """How many steps each value covers, where a file does not say: those since the one before.

    The first value gets what the second covers.

    >>> spans_of(np.array([9, 19, 29])).tolist(), spans_of(np.array([4])).tolist()
    ([10, 10, 10], [1])
    """
    if len(steps) < 2:
        return np.ones(len(steps), np.int64)
    gaps = np.diff(steps)
    spans: Steps = np.maximum(np.concatenate([gaps[:1], gaps]), 1)
    return spans


def plural(count: int, noun: str) -> str:
    """``"1 row"``, ``"2 rows"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def listed(names: Iterable[object], limit: int = 5) -> str:
    """The first names, and how many more there are.

    >>> listed("abc", limit=2)
    'a, b and 1 more'
    """
    shown = [str(name) for name in names]
    rest = len(shown) - limit
    return ", ".join(shown[:limit]) + (f" and {rest} more" if rest > 0 else "")
