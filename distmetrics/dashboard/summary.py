"""A run in the terminal: its keys by group, with last, least and most, a curve, unit and help."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from distmetrics.dashboard.follow import followed
from distmetrics.dashboard.subject import Subject, subject_of
from distmetrics.runs import RunData, Series
from distmetrics.runs.series import Floats
from distmetrics.sinks.described import Description

_BARS = "▁▂▃▄▅▆▇█"
_GAP = "·"
_REST = "other"
CURVE = 24
"""Characters that a curve takes."""


def show_run(console: Console, place: Path, *, follow: bool) -> None:
    """Print what the run at a place came to; with `follow` again whenever it has gone on.

    Following ends with the run or by an interrupt. On a terminal one table stays in place.

    Raises:
        RunDirError: there is no run at the place.
    """
    if not follow:
        console.print(summed_up(subject_of(place)))
        return
    try:
        if not console.is_terminal:
            for subject in followed(place):
                console.print(summed_up(subject))
            return
        with Live(console=console, vertical_overflow="visible", auto_refresh=False) as live:
            for subject in followed(place):
                live.update(summed_up(subject), refresh=True)
    except KeyboardInterrupt:
        return  # how following a run that goes on ends


def summed_up(subject: Subject) -> RenderableType:
    """A subject's first run: a heading, what is odd about its files, its keys."""
    run = subject.runs[0]
    parts: list[RenderableType] = [heading(run, subject.title)]
    parts += [Text(f"! {warning}", style="yellow") for warning in subject.warnings]
    parts.append(summary_table(subject) if run.series else Text("no record yet", style="dim"))
    return Group(*parts)


def summary_table(subject: Subject) -> Table:
    """A table of all keys of a subject's first run, under the headings of their groups.

    Example:
        >>> from pathlib import Path
        >>> steps = np.arange(3)
        >>> loss = Series(steps, np.array([3.0, 1.0, 2.0]), np.ones(3, np.int64))
        >>> run = RunData(Path("exp1"), "table", None, {"loss": loss})
        >>> table = summary_table(Subject("exp1", {"loss": Description()}, runs=[run]))
        >>> table.row_count, [str(cell) for cell in table.columns[2].cells]
        (1, ['2'])
    """
    run = subject.runs[0]
    groups: dict[str, list[str]] = {}
    for key in run.series:
        groups.setdefault(subject.keys[key].group or _REST, []).append(key)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("key", overflow="fold", min_width=10)
    table.add_column("unit", overflow="fold")
    for name in ("last", "min", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("curve", no_wrap=True)
    table.add_column("what it is", overflow="fold", style="dim")
    for group in sorted(groups, key=lambda name: name == _REST):
        if len(groups) > 1:
            if table.row_count:
                table.add_row()
            table.add_row(Text(group, style="bold"))
        for key in groups[group]:
            table.add_row(*_row(key, run.series[key], subject.keys[key]))
    return table


def heading(run: RunData, name: str) -> Text:
    """What a run is, in one line."""
    parts = [name]
    if run.last_step is not None:
        parts.append(f"step {run.last_step}")
    if run.world_size is not None:
        parts.append(f"{run.world_size} rank{'' if run.world_size == 1 else 's'}")
    if run.precision == "float32":
        parts.append("float32")
    return Text(", ".join(parts), style="bold")


def sparkline(values: Floats, width: int = CURVE) -> str:
    """A curve of block characters, each the mean of a stretch; a dot where none is finite.

    >>> sparkline(np.array([0.0, 1.0, 2.0, np.nan, 7.0]), width=5)
    '▁▂▃·█'
    """
    parts = np.array_split(values, min(width, len(values))) if len(values) else []
    means = [
        float(np.mean(part[np.isfinite(part)])) if np.isfinite(part).any() else math.nan
        for part in parts
    ]
    finite = [mean for mean in means if math.isfinite(mean)]
    if not finite:
        return _GAP * len(means)
    low, high = min(finite), max(finite)
    return "".join(_bar(mean, low, high) for mean in means)


def _bar(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return _GAP
    # Halves first: the difference of two large floats may be infinite.
    share = (mean / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def _row(key: str, series: Series, description: Description) -> Iterable[Text]:
    values = series.values
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)
    last = series.exact[-1] if series.exact is not None else values[-1]
    numbers = (_shown(one, series.integer) for one in (last, low, high))
    texts = (key, description.unit, *numbers, sparkline(values), description.help)
    return (Text(text) for text in texts)


def _shown(value: float, integer: bool) -> str:
    if integer and math.isfinite(value):
        return str(int(value))
    return f"{value:.6g}"
