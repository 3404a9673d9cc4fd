"""Rows of ``{key: number}`` gathered into one array per key, in little memory.

Rows are kept in blocks of equal keys and turned over column by column, so that a row costs a few
microseconds and a number eight bytes, and keys that are logged together share one array of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.runs.series import Floats, Precision, Series, Steps, spans_of

_BLOCK = 1024
_EXACT = 2**53
_NAMED = {
    "nan": np.nan,
    "infinity": np.inf,
    "inf": np.inf,
    "-infinity": -np.inf,
    "-inf": -np.inf,
}


@dataclass
class _Layout:
    """Rows of a logger that have one tuple of keys: those not yet turned over, and the arrays."""

    logger: str
    keys: tuple[str, ...]
    stamps: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    done_stamps: list[NDArray[np.int64]] = field(default_factory=list)
    done_times: list[Floats] = field(default_factory=list)
    done: dict[str, list[NDArray[Any]]] = field(default_factory=dict)

    def turn_over(self) -> None:
        if not self.rows:
            return
        self.done_stamps.append(np.array(self.stamps, np.int64))
        self.done_times.append(np.array(self.times, np.float64))
        for key, column in zip(self.keys, zip(*self.rows, strict=True), strict=True):
            self.done.setdefault(key, []).append(column_array(column))
        self.stamps, self.times, self.rows = [], [], []


class Columns:
    """Gathers rows and gives back one `Series` per key.

    Of several rows for one key and step the last added stays. Rows of a later attempt supersede
    rows of earlier attempts from the later one's first step on; for a child that is the later
    attempt's first step of the child itself, as its steps may be its own, or of the logger. Rows
    marked as late never push out another row, and are superseded as the window they came with.

    >>> rows = Columns()
    >>> rows.add(0, {"loss": 1.0, "n": 3})
    >>> rows.add(1, {"loss": 0.5, "n": 4})
    >>> found = rows.series()
    >>> found["loss"].values.tolist(), found["n"].integer, found["n"].steps.tolist()
    ([1.0, 0.5], True, [0, 1])
    """

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, tuple[str, ...]], _Layout] = {}
        self._count = 0
        self._starts: dict[int, dict[str, int]] = {}
        self.lacks_spans = True
        self.lacks_times = True

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        step: int,
        values: Mapping[str, Any],
        *,
        attempt: int = 0,
        first_step: int | None = None,
        late: bool = False,
        time: float | None = None,
        logger: str = "",
        window: int | None = None,
    ) -> None:
        """Adds one row; `values` holds numbers or the names of non-finite ones."""
        keys = tuple(values)
        layout = self._layouts.get((logger, keys))
        if layout is None:
            layout = self._layouts[logger, keys] = _Layout(logger, keys)
        span = 0
        if first_step is not None:
            self.lacks_spans = False
            span = max(step - first_step + 1, 1)
        if not late:
            begin = step if first_step is None else first_step
            starts = self._starts.setdefault(attempt, {})
            starts[logger] = min(begin, starts.get(logger, begin))
        # A late row sorts in front of all others, so that keeping the last never keeps it.
        order = self._count if not late else self._count - (1 << 60)
        if time is not None:
            self.lacks_times = False
        written = window if late and window is not None else step
        layout.stamps.append((step, order, attempt, span, written))
        layout.times.append(np.nan if time is None else time)
        layout.rows.append(tuple(values.values()))
        self._count += 1
        if len(layout.rows) >= _BLOCK:
            layout.turn_over()

    def series(self, precision: Precision = "float64") -> dict[str, Series]:
        """One series per key, in the order in which the keys first came."""
        stamps: dict[int, NDArray[np.int64]] = {}
        clocks: dict[int, Floats] = {}
        parts: dict[str, list[tuple[int, list[NDArray[Any]]]]] = {}
        for number, layout in enumerate(self._layouts.values()):
            layout.turn_over()
            if not layout.keys:
                continue
            stamps[number] = np.concatenate(layout.done_stamps)
            clocks[number] = np.concatenate(layout.done_times)
            for key in layout.keys:
                parts.setdefault(key, []).append((number, layout.done.pop(key)))
        limits = [self._limits(layout.logger) for layout in self._layouts.values()]
        rows: dict[tuple[int, ...], tuple[NDArray[np.int64] | None, Steps, Steps, Floats]] = {}
        found: dict[str, Series] = {}
        for key in list(parts):
            pieces = parts.pop(key)
            which = tuple(number for number, _ in pieces)
            if which not in rows:
                kept, steps, spans = _kept_rows(
                    [stamps[number] for number in which], [limits[number] for number in which]
                )
                times = np.concatenate([clocks[number] for number in which])
                rows[which] = (kept, steps, spans, times if kept is None else times[kept])
            kept, steps, spans, times = rows[which]
            column = [array for _, arrays in pieces for array in arrays]
            values, exact, integer = joined(column)
            if kept is not None:
                values = values[kept]
                exact = None if exact is None else exact[kept]
            if len(steps):
                spans = spans_of(steps) if self.lacks_spans else spans
                clock = None if self.lacks_times else times
                found[key] = Series(steps, values, spans, exact, integer, precision, clock)
        return found

    def _limits(self, logger: str) -> dict[int, int]:
        """For each attempt that a later one supersedes: the first step that it does not keep."""
        limits: dict[int, int] = {}
        lowest: int | None = None
        for attempt in sorted(self._starts, reverse=True):
            if lowest is not None:
                limits[attempt] = lowest
            starts = self._starts[attempt]
            begins = [starts[name] for name in {logger, ""} & starts.keys()]
            lowest = min(begins if lowest is None else [*begins, lowest], default=None)
        return limits


def _kept_rows(
    stamps: list[NDArray[np.int64]], limits: list[dict[int, int]]
) -> tuple[NDArray[np.int64] | None, Steps, Steps]:
    """Which rows stay, in order of steps (None: all, as they are), their steps and spans."""
    table = np.concatenate(stamps)
    steps = table[:, 0]
    if not any(limits) and np.all(np.diff(steps) > 0):
        return None, steps.copy(), table[:, 3].copy()
    stays = []
    for part, superseded in zip(stamps, limits, strict=True):
        stay = np.ones(len(part), bool)
        for attempt, limit in superseded.items():
            stay &= ~((part[:, 2] == attempt) & (part[:, 4] >= limit))
        stays.append(stay)
    stay = np.concatenate(stays)
    rows = np.flatnonzero(stay)
    rows = rows[np.lexsort((table[rows, 1], steps[rows]))]
    last = np.ones(len(rows), bool)
    last[:-1] = np.diff(steps[rows]) != 0
    rows = rows[last]
    return rows, steps[rows], table[rows, 3]


def column_array(column: tuple[Any, ...]) -> NDArray[Any]:
    """One block of a key's values: int64 where all are ints, object beyond that, else float64."""
    try:
        array = np.array(column)
    except (ValueError, OverflowError):
        return _by_hand(column)
    if array.ndim == 1 and array.dtype.kind in "bi":
        return array.astype(np.int64)
    if array.ndim == 1 and array.dtype == np.float64:
        big = array.size and not np.all(np.abs(array) < _EXACT)
        return _by_hand(column) if big else array
    return _by_hand(column)


def _by_hand(column: tuple[Any, ...]) -> NDArray[Any]:
    if all(isinstance(value, int) for value in column):
        small = all(-(2**63) <= value < 2**63 for value in column)
        return np.array(column, np.int64 if small else object)
    return np.array([as_float(value) for value in column], np.float64)


def as_float(value: Any) -> float:
    """A number, or the name of a non-finite one, as a float; NaN for anything else.

    >>> as_float(3), as_float("-Infinity"), as_float(2**2000)
    (3.0, -inf, inf)
    """
    if isinstance(value, str):
        return _NAMED.get(value.strip().lower(), np.nan)
    try:
        return float(value)
    except OverflowError:
        return np.inf if value > 0 else -np.inf
    except (TypeError, ValueError):
        return np.nan


def is_number(value: Any) -> bool:
    """Whether a parsed JSON value is a number, or a string that names a non-finite one."""
    if isinstance(value, str):
        return value.strip().lower() in _NAMED
    return isinstance(value, int | float)


def joined(column: list[NDArray[Any]]) -> tuple[Floats, NDArray[Any] | None, bool]:
    """The blocks of one key: as float64, exactly where that takes more, and whether all ints."""
    kinds = {array.dtype.kind for array in column}
    if kinds == {"f"}:
        return (column[0] if len(column) == 1 else np.concatenate(column)), None, False
    if "f" not in kinds:
        whole = np.concatenate(column)
        if whole.dtype.kind == "O":
            return np.array([as_float(value) for value in whole]), whole, True
        big = whole.size > 0 and (int(whole.max()) > _EXACT or int(whole.min()) < -_EXACT)
        return whole.astype(np.float64), whole if big else None, True
    floats = [
        np.array([as_float(value) for value in array]) if array.dtype.kind == "O" else array
        for array in column
    ]
    return np.concatenate(floats).astype(np.float64), None, False
