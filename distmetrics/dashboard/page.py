"""A board as one self-contained page of HTML, with all values of its runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics import pages
from distmetrics.dashboard.board import Board, Key, Panel
from distmetrics.dashboard.subject import Subject
from distmetrics.errors import InvalidValue
from distmetrics.runs import RunData, Series


def to_html(board: Board, subject: Subject) -> str:
    """The page: a chart for each panel, drawn when it is scrolled to, and a table of all keys.

    Charts are drawn by plotly.js, which is in the page. A curve longer than the chart is wide is
    thinned out to the lowest and highest value of each stretch, anew for every zoom, so that no
    peak is lost. All texts are escaped.

    Raises:
        InvalidValue: the subject has no run, hence no values.
        MissingPackage: plotly or jinja2 is not installed.
    """
    if not subject.runs:
        raise InvalidValue(
            f"{subject.title!r} is a registry and has no values to draw; give a run directory"
        )
    arrays = _Arrays()
    keys = [key for key in board.keys if not key.pattern]
    axes = [key for key in keys if key.description.cumulative or _is_axis(key, board)]
    data = {
        "runs": [_run(run, name, keys, arrays) for run, name in _named(subject)],
        "rows": [[_panel(panel) for panel in row.panels] for row in board.rows],
        "axes": [{"key": key.name, "label": _with_unit(key)} for key in axes],
    }
    return pages.render(
        __package__,
        "page.html",
        board=board,
        runs=data["runs"],
        axes=data["axes"],
        keys=[_row(key, subject.runs) for key in keys if key.logged],
        warnings=tuple(subject.warnings),
        data=pages.embedded(data),
        values=pages.embedded([pages.packed(one) for one in arrays.all]),
        plotly=pages.plotly(),
        script=pages.script(__package__, "page.js"),
    )


class _Arrays:
    """The arrays of all curves; steps and times that keys share are kept once."""

    def __init__(self) -> None:
        self.all: list[NDArray[np.float64]] = []
        self._known: dict[int, tuple[NDArray[Any], int]] = {}

    def add(self, array: NDArray[Any]) -> int:
        """The number under which the page finds the array."""
        known = self._known.get(id(array))
        if known is not None:
            return known[1]
        number = len(self.all)
        self._known[id(array)] = (array, number)  # kept, so that its id stays its own
        self.all.append(array.astype(np.float64, copy=False))
        return number


def _named(subject: Subject) -> Iterable[tuple[RunData, str]]:
    return zip(subject.runs, subject.names, strict=True)


def _run(run: RunData, name: str, keys: Sequence[Key], arrays: _Arrays) -> dict[str, Any]:
    series = {key.name: run.series[key.name] for key in keys if key.name in run.series}
    clocks = [one.times for one in series.values() if one.times is not None]
    clocks = [clock for clock in clocks if np.isfinite(clock).any()]
    start = min((float(np.nanmin(clock)) for clock in clocks), default=0.0)
    end = max((float(np.nanmax(clock)) for clock in clocks), default=0.0)
    ranks = run.world_size
    label = name if ranks is None else f"{name}, {ranks} rank{'' if ranks == 1 else 's'}"
    return {
        "label": label,
        "start": start,
        "seconds": end - start,
        "series": {
            key: [arrays.add(one.steps), _times(one, arrays), arrays.add(one.values)]
            for key, one in series.items()
        },
    }


def _times(series: Series, arrays: _Arrays) -> int | None:
    return arrays.add(series.times) if series.times is not None else None


def _panel(panel: Panel) -> dict[str, Any]:
    names = [key.name for key in panel.keys if not key.pattern]
    return {
        "title": panel.title,
        "keys": names,
        "spread": panel.draw == "spread",
        "points": panel.draw == "points",
        "log": panel.scale == "log",
        "axis": panel.axis.key.name if panel.axis.key else panel.axis.kind,
        "unit": panel.unit,
    }


def _is_axis(key: Key, board: Board) -> bool:
    return any(panel.axis.key == key for row in board.rows for panel in row.panels)


def _with_unit(key: Key) -> str:
    return f"{key.name} [{key.description.unit}]" if key.description.unit else key.name


def _row(key: Key, runs: Sequence[RunData]) -> dict[str, Any]:
    found = [run.series.get(key.name) for run in runs]
    return {
        "key": key.name,
        "description": key.description,
        "last": [_last(one) for one in found],
    }


def _last(series: Series | None) -> str:
    if series is None or not len(series):
        return ""
    if series.exact is not None:
        return str(series.exact[-1])
    value = float(series.values[-1])
    return str(int(value)) if series.integer else f"{value:.6g}"
