"""What each rank said of each key, call by call: for whoever asks how a value came about.

A line of ``contributions-rank<k>.jsonl`` is one key of one call::

    {"step": 3, "window": 9, "logger": null, "key": "loss", "reduction": "average",
     "value": [0.5, 0.25], "weight": [3, 1]}

`step` and `window` are those of the record that the call went into. A ratio is recorded as its
quotients, weighted by the denominators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.snapshot import Route, Snapshot
from distmetrics.window.labels import step_of
from distmetrics.window.stream import Window

Array = NDArray[Any]


class Contributions:
    """Records the contributions of one rank. Used from one thread at a time.

    Args:
        path: the file, which grows with every window.
        tell: receives what a user should know.
    """

    def __init__(self, path: Path, tell: Callable[[str], object]) -> None:
        self._path = path
        self._tell = tell
        self._failed = False
        self._pending: dict[str, list[tuple[int, Snapshot]]] = {}

    def add(self, stream: str, step: int | None, snapshot: Snapshot) -> None:
        """A call was taken in; None: its step is that of the flush to come."""
        if not stream.startswith(COLLECTIVE) and not self._failed:
            self._pending.setdefault(stream, []).append((-1 if step is None else step, snapshot))

    def close(self, stream: str, windows: Mapping[int, Window]) -> None:
        """Windows of a stream were closed: write what went into them."""
        pending = self._pending.get(stream, [])
        lines: list[str] = []
        kept: list[tuple[int, Snapshot]] = []
        for step, snapshot in pending:
            label = _label_of(step, windows)
            if label is None:
                kept.append((step, snapshot))
                continue
            for row in _rows(snapshot, stream):
                head = {"step": step_of(label) if step < 0 else step, "window": step_of(label)}
                lines.append(json.dumps(head | {"logger": stream or None} | row))
        if pending:
            self._pending[stream] = kept
        if lines:
            self._write("\n".join(lines) + "\n")

    def _write(self, text: str) -> None:
        try:
            with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
        except OSError as error:
            self._failed = True
            self._pending.clear()
            self._tell(
                f"contributions cannot be recorded in {str(self._path)!r} "
                f"({error.strerror or error}): recording ends, the training goes on"
            )


def _label_of(step: int, windows: Mapping[int, Window]) -> int | None:
    """The label of the window into which a call at this step went; None: it is open still."""
    for label, window in windows.items():
        inside = any(first <= step <= last for first, last in window.steps.runs)
        if inside or step in window.late or step < 0:
            return label
    return None


def _rows(snapshot: Snapshot, stream: str) -> Iterator[dict[str, Any]]:
    """The keys of a call."""
    for route in snapshot.plan.routes:
        weights = None if route.weights is None else _columns(snapshot, *route.weights)
        for index, values in enumerate(_columns(snapshot, *route.values)):
            key = route.keys[index]
            row: dict[str, Any] = {
                "key": prefix_of(stream) + key.name,
                "reduction": route.reduction.kind,
            }
            yield row | _told(route, values, None if weights is None else weights[index])


def _told(route: Route, values: Array, weights: Array | None) -> dict[str, Any]:
    if weights is None:
        return {"value": _plain(values)}
    if route.reduction.pairs:
        with np.errstate(divide="ignore", invalid="ignore"):
            values = values.astype(np.float64) / weights.astype(np.float64)
    return {"value": _plain(values), "weight": _plain(weights)}


def _columns(snapshot: Snapshot, array: int, columns: tuple[int, ...]) -> list[Array]:
    values = snapshot.arrays[array]
    if snapshot.sizes is None:
        return [values[column : column + 1] for column in columns]
    ends = np.cumsum([0, *snapshot.sizes[array]])
    return [values[ends[column] : ends[column + 1]] for column in columns]


def _plain(values: Array) -> list[Any]:
    return [
        value
        if not isinstance(value, float) or math.isfinite(value)
        else "NaN"
        if math.isnan(value)
        else "Infinity"
        if value > 0
        else "-Infinity"
        for value in values.tolist()
    ]
