"""The values of one key in several runs, brought to common steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.runs import Declared, Series

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

FLOAT32_STEP = 2.0**-23
"""Two float32 numbers that came from equal float64 ones differ by no more, relatively."""

_FLOOR = 0.1


@dataclass(frozen=True)
class Aligned:
    """One key over R runs and the n steps at which all of them have a finite value.

    Attributes:
        key: the key.
        sizes: the runs' world sizes, ascending; the first run is the reference.
        steps: shape (n,), int64: the common steps, or positions on another axis.
        values: shape (R, n), float64, finite.
        spread: shape (n,), float64: largest minus smallest value of a step; of ints exact.
        integer: all values were written as ints, or are whole and beyond doubt.
        single: some run holds no more than float32.
        split: the number of common steps where a value is finite in some runs only.
        dropped: the number of common steps where it is finite in no run, or not in the same way.
        declared: what the runs declare of the key.
        notes: how the key was compared.
    """

    key: str
    sizes: tuple[int, ...]
    steps: NDArray[Any]
    values: Floats
    spread: Floats
    integer: bool = False
    single: bool = False
    split: int = 0
    dropped: int = 0
    declared: Declared | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def count(self) -> int:
        """The number of steps that can be compared."""
        return int(self.values.shape[1])

    @property
    def whole(self) -> bool:
        """Whether all values are whole numbers, however they were written."""
        return self.integer or bool(np.all(self.values == np.rint(self.values)))

    @property
    def scale(self) -> float:
        """The median over the steps of the largest magnitude among the runs."""
        return float(np.median(np.abs(self.values).max(axis=0))) if self.count else 0.0

    def relative(self, row: int | None = None) -> Floats:
        """Shape (n,): `spread` relative to the largest magnitude of the step.

        With `row`: the difference of that run to the reference in place of `spread`. A step whose
        values are below a tenth of the key's median counts as if they were that tenth:
        differences of values that happen to be near zero say little.
        """
        largest = np.maximum(np.abs(self.values).max(axis=0), _FLOOR * self.scale)
        found: Floats = np.zeros_like(largest)
        spread = self.spread if row is None else np.abs(self.values[row] - self.values[0])
        np.divide(spread, largest, out=found, where=largest > 0)
        return found


_MOST, _FIRST, _BLOCK, _RARE = 4096, 1024, 32, 1024


def thinned(aligned: Aligned, differing: Bools) -> Aligned:
    """A key at no more than some thousand steps, enough to tell why its runs differ.

    Kept are the first steps, blocks of neighbouring steps spread over the rest, and, since they
    may be rare, steps that are marked in `differing`, shape (n,).
    """
    count = aligned.count
    if count <= _MOST + _RARE:
        return aligned
    blocks = np.linspace(_FIRST, count - _BLOCK, (_MOST - _FIRST) // _BLOCK).astype(np.int64)
    kept = np.zeros(count, bool)
    kept[:_FIRST] = True
    kept[(blocks[:, None] + np.arange(_BLOCK)).ravel()] = True
    rare = np.flatnonzero(differing & ~kept)
    if differing.mean() < 0.1:
        kept[rare[:: max(1, len(rare) // _RARE)]] = True
    rows = np.flatnonzero(kept)
    return replace(
        aligned,
        steps=aligned.steps[rows],
        values=aligned.values[:, rows],
        spread=aligned.spread[rows],
    )


def align(
    key: str,
    series: Sequence[Series],
    sizes: Sequence[int],
    declared: Declared | None = None,
) -> Aligned:
    """One key's series of several runs at the steps that all of them have.

    >>> one = Series(np.array([0, 1, 2]), np.array([1.0, 2.0, 3.0]), np.array([1, 1, 1]))
    >>> two = Series(np.array([1, 2, 3]), np.array([2.0, 3.5, 4.0]), np.array([1, 1, 1]))
    >>> both = align("loss", [one, two], [1, 2])
    >>> both.steps.tolist(), both.spread.tolist()
    ([1, 2], [0.0, 0.5])
    """
    order = sorted(range(len(sizes)), key=lambda place: sizes[place])
    series = [series[place] for place in order]
    steps, rows = common_steps([one.steps for one in series])
    values = np.stack(
        [
            one.values if row is None else one.values[row]
            for one, row in zip(series, rows, strict=True)
        ]
    )
    spread = _spread(series, rows, values)
    longest = max((len(one) for one in series), default=0)
    notes = () if len(steps) == longest else (f"{len(steps)} of up to {longest} steps are common",)
    return build(
        key,
        tuple(sizes[place] for place in order),
        steps,
        values,
        spread,
        integer=all(_whole(one) for one in series),
        single=any(one.precision == "float32" for one in series),
        declared=declared,
        notes=notes,
    )


def build(
    key: str,
    sizes: tuple[int, ...],
    steps: NDArray[Any],
    values: Floats,
    spread: Floats,
    *,
    integer: bool,
    single: bool,
    declared: Declared | None,
    notes: tuple[str, ...],
) -> Aligned:
    """An `Aligned` of the steps whose values are finite; the others are counted."""
    finite = np.isfinite(values)
    split, dropped = 0, 0
    if not finite.all():
        alike = (values == values[0]) | (np.isnan(values) & np.isnan(values[0]))
        good = finite.all(axis=0)
        parted = ~good & ~alike.all(axis=0)
        split = int(np.sum(parted))
        dropped = int(np.sum(~good)) - split
        if split:
            notes = (*notes, _first_split(sizes, steps, finite, int(np.argmax(parted))))
        steps, values, spread = steps[good], values[:, good], spread[good]
    return Aligned(
        key, sizes, steps, values, spread, integer, single, split, dropped, declared, notes
    )


def _first_split(sizes: tuple[int, ...], steps: NDArray[Any], finite: Bools, place: int) -> str:
    """Where a value is first finite in some runs only, and in which it is not."""
    worse = ", ".join(
        str(size) for size, good in zip(sizes, finite[:, place], strict=True) if not good
    )
    return f"not finite at world size {worse}, first at step {steps[place]:g}"


def common_steps(
    steps: Sequence[NDArray[Any]],
) -> tuple[NDArray[Any], list[NDArray[np.intp] | None]]:
    """The steps that all have, and for each where they stand in it (None: everywhere)."""
    first = steps[0]
    if all(one is first or np.array_equal(one, first) for one in steps[1:]):
        return first, [None] * len(steps)
    common = first
    for one in steps[1:]:
        common = np.intersect1d(common, one, assume_unique=True)
    return common, [np.searchsorted(one, common) for one in steps]


def _whole(series: Series) -> bool:
    """Whether values are ints: written so, or whole where the file knows only floats."""
    if series.integer or series.precision == "float64":
        return series.integer
    values = series.values
    return bool(np.all(np.isfinite(values)) and np.all(values == np.rint(values)))


def _spread(
    series: Sequence[Series], rows: Sequence[NDArray[np.intp] | None], values: Floats
) -> Floats:
    """Largest minus smallest value of each step; of ints beyond 2**53 in exact arithmetic."""
    if all(one.exact is None for one in series) or not all(one.integer for one in series):
        with np.errstate(invalid="ignore"):
            found: Floats = values.max(axis=0) - values.min(axis=0)
        return found
    ints = []
    for one, row in zip(series, rows, strict=True):
        column: NDArray[Any] = one.values if one.exact is None else one.exact
        ints.append([int(value) for value in (column if row is None else column[row])])
    return np.array([float(max(step) - min(step)) for step in zip(*ints, strict=True)])
