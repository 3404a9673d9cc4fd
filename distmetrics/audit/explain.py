"""Taking one value apart: who contributed what, and what other formulas would have given.

A logger that is asked to record its contributions writes `contributions-rank<k>.jsonl` into the run
directory, one strict-JSON object a line for each key of each call::

    {"step": 3, "window": 9, "logger": null, "key": "loss", "reduction": "average",
     "value": [0.5, 0.25], "weight": [3, 1]}

`value` and `weight` are numbers or (nested) lists of them, with non-finite numbers by name;
`weight`, `window`, `logger` and `reduction` may be left out. `key` bears a child's prefix.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.runs import open_run
from distmetrics.runs.columns import as_float
from distmetrics.runs.jsonl import lines_of
from distmetrics.runs.series import listed

_FILE = re.compile(r"contributions-rank(\d+)\.jsonl")


@dataclass(frozen=True)
class Contribution:
    """What one rank said of a key in one call.

    Attributes:
        rank: the rank.
        step: the step.
        window: the label of the window it belongs to: that of the row; by default the step.
        reduction: the name of the key's reduction, if recorded.
        values: the elements.
        weights: one for each element; all 1 where none was given.
    """

    rank: int
    step: int
    window: int
    reduction: str
    values: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def used(self) -> list[tuple[float, float]]:
        """The elements with a weight other than 0, and their weights."""
        return [one for one in zip(self.values, self.weights, strict=True) if one[1] != 0]


@dataclass(frozen=True)
class RankPart:
    """What one rank contributed to a window.

    Attributes:
        rank: the rank.
        calls: the number of its calls.
        elements: the number of its elements with a weight other than 0.
        padding: the number of elements with weight 0.
        weight: the sum of the weights.
        total: the sum of the values.
        mean: the weighted mean; NaN without elements.
        least: the smallest element; NaN without elements.
        most: the largest one.
    """

    rank: int
    calls: int
    elements: int
    padding: int
    weight: float
    total: float
    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Explanation:
    """One value taken apart.

    Attributes:
        key: the key.
        window: the label of its window.
        reduction: the name of its reduction; "" if it is not known.
        logged: the value in the run's record; None if there is none.
        parts: what each rank contributed.
        formulas: name of a formula to what it gives.
    """

    key: str
    window: int
    reduction: str
    logged: float | None
    parts: Sequence[RankPart]
    formulas: Mapping[str, float]

    def matches(self, rtol: float = 1e-12) -> list[str]:
        """The formulas that give the logged value."""
        if self.logged is None:
            return []
        logged = self.logged
        return [
            name
            for name, value in self.formulas.items()
            if math.isclose(value, logged, rel_tol=rtol)
            or (math.isnan(value) and math.isnan(logged))
        ]


def explain(run_dir: Path, key: str, step: int | None = None) -> Explanation:
    """One value of a run taken apart, from its recorded contributions.

    Args:
        run_dir: the run directory.
        key: the key, with a child's prefix.
        step: a step in the window, or its label; None: the last window that was recorded.

    Raises:
        RunDirError: there is no recording.
        InvalidValue: the recording does not have the key, or not at this step.
    """
    contributions = list(recorded(run_dir, key))
    windows = sorted({one.window for one in contributions})
    window = windows[-1] if step is None else _window_of(contributions, key, step)
    chosen = [one for one in contributions if one.window == window]
    reduction = next((one.reduction for one in chosen if one.reduction), "")
    ranks = sorted({one.rank for one in chosen})
    parts = [_part(rank, [one for one in chosen if one.rank == rank]) for rank in ranks]
    return Explanation(
        key, window, reduction, _logged(run_dir, key, window), parts, _formulas(chosen, parts)
    )


def recorded(run_dir: Path, key: str) -> Iterator[Contribution]:
    """The recorded contributions of all ranks to a key.

    Raises:
        RunDirError: there is no recording.
        InvalidValue: the recording does not have the key.
    """
    files = {
        int(match[1]): path
        for path in sorted(run_dir.iterdir() if run_dir.is_dir() else [])
        if (match := _FILE.fullmatch(path.name))
    }
    if not files:
        raise RunDirError(
            f"{run_dir} holds no recorded contributions (contributions-rank0.jsonl, ...): make the "
            "logger with record_contributions=True"
        )
    keys: dict[str, None] = {}
    found = False
    for rank, path in sorted(files.items()):
        for line in lines_of(path, []):
            row = _row(line)
            if row is None:
                continue
            keys.setdefault(str(row["key"]))
            if row["key"] == key:
                found = True
                yield _contribution(rank, row)
    if not found:
        raise InvalidValue(f"no rank recorded the key {key!r}; recorded are {listed(keys, 10)}")


def _row(line: bytes) -> dict[str, Any] | None:
    """A line's object; None for a torn or foreign line, of which a recording may have a last."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    good = isinstance(row, dict) and {"key", "step", "value"} <= row.keys()
    return row if good and isinstance(row["step"], int) else None


def _contribution(rank: int, row: Mapping[str, Any]) -> Contribution:
    values = tuple(_flat(row["value"]))
    weight = row.get("weight")
    weights = (1.0,) * len(values) if weight is None else tuple(_flat(weight))
    if len(weights) == 1:
        weights *= len(values)
    if len(weights) != len(values):
        raise InvalidValue(
            f"{row['key']!r} of rank {rank} at step {row['step']}: {len(values)} values and "
            f"{len(weights)} weights are recorded"
        )
    window = row.get("window")
    return Contribution(
        rank,
        row["step"],
        window if isinstance(window, int) else row["step"],
        str(row.get("reduction") or ""),
        values,
        weights,
    )


def _flat(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield as_float(value)


def _window_of(contributions: Sequence[Contribution], key: str, step: int) -> int:
    for one in contributions:
        if step in {one.step, one.window}:
            return one.window
    windows = listed(sorted({one.window for one in contributions}), 10)
    raise InvalidValue(f"{key!r} was not recorded at step {step}; recorded windows are {windows}")


def _part(rank: int, calls: Sequence[Contribution]) -> RankPart:
    used = [pair for one in calls for pair in one.used]
    values = [value for value, _ in used]
    return RankPart(
        rank,
        len(calls),
        len(used),
        sum(len(one.values) for one in calls) - len(used),
        _sum(weight for _, weight in used),
        _sum(values),
        _mean(used),
        min(values, default=math.nan),
        max(values, default=math.nan),
    )


def _formulas(chosen: Sequence[Contribution], parts: Sequence[RankPart]) -> dict[str, float]:
    """What the usual right and wrong formulas give."""
    used = [pair for one in chosen for pair in one.used]
    means = [part.mean for part in parts if part.elements]
    first = next((part for part in parts if part.rank == 0 and part.elements), None)
    steps = {one.step for one in chosen}
    found = {
        "weighted mean over all ranks": _mean(used),
        "plain mean of all elements": _mean([(value, 1.0) for value, _ in used]),
        "mean of the ranks' means": _mean([(mean, 1.0) for mean in means]),
        "sum of the ranks' means": _sum(means),
        "mean of the calls' means": _mean([(_mean(one.used), 1.0) for one in chosen if one.used]),
        "sum over all ranks, per step": _sum(value for value, _ in used) / max(len(steps), 1),
        "sum divided by the ranks, per step": _sum(value for value, _ in used)
        / max(len(steps) * len(parts), 1),
        "root of the sum of squares": math.sqrt(_sum(value * value for value, _ in used)),
        "largest": max((value for value, _ in used), default=math.nan),
        "smallest": min((value for value, _ in used), default=math.nan),
    }
    if first is not None:
        found["rank 0's own mean"] = first.mean
    return found


def _sum(values: Any) -> float:
    """The exact sum, rounded once; non-finite where a part is."""
    numbers = list(values)
    if not all(map(math.isfinite, numbers)):
        return float(sum(numbers))
    total = sum(map(Fraction, numbers), Fraction(0))
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def _mean(pairs: Sequence[tuple[float, float]]) -> float:
    weight = _sum(weight for _, weight in pairs)
    return _sum(value * weight for value, weight in pairs) / weight if weight else math.nan


def _logged(run_dir: Path, key: str, window: int) -> float | None:
    """The value of the window's row: that of the last step up to the label."""
    try:
        series = open_run(run_dir).series.get(key)
    except RunDirError:
        return None
    if series is None:
        return None
    steps = [step for step in series.steps.tolist() if step <= window]
    return float(series.values[len(steps) - 1]) if steps else None
