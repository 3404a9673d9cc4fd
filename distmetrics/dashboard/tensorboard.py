"""A board as TensorBoard shows it: custom scalars, texts and the page of hyperparameters.

The layout is a run of its own, ``tensorboard/layout/`` in the run directory: TensorBoard follows
one file of a folder, so that a second one in the run's own folder would hide a live run.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.dashboard.board import Board, Key, Panel
from distmetrics.dashboard.patterns import anywhere, escaped
from distmetrics.errors import MissingPackage, RunDirError
from distmetrics.sinks.scalars import flat

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import Summary

FOLDER = Path("tensorboard") / "layout"
"""Where in a run directory the layout goes."""

_EVENTS = "events.out.tfevents."
_HYPER_METRICS = 50


def write_layout(board: Board, folder: Path, config: Mapping[str, Any]) -> Path:
    """The event file with the board's layout, in `folder`, in place of an earlier one.

    Each panel is a chart of the page "Custom scalars", with the unit in its title. The page "Text"
    holds the board's keys with their units and help texts. `config` tells which hyperparameters
    and metrics the page "HParams" shows; their values are in the run's own file. Panels by another
    axis than the step have no place in TensorBoard, see `left_out`.

    Raises:
        MissingPackage: tensorboard is not installed.
        RunDirError: the file cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event

        from distmetrics.sinks.eventfile import EventFile
    except ImportError as error:
        raise MissingPackage(
            f"the layout needs tensorboard ({error}); install it with: "
            "python -m pip install tensorboard"
        ) from error
    try:
        for before in sorted(folder.glob(f"{_EVENTS}*")):
            before.unlink()
        file = EventFile(folder)
        for summary in _summaries(board, config):
            file.add_event(Event(wall_time=time.time(), step=0, summary=summary))
        file.sync_and_close()
    except OSError as error:
        raise RunDirError(f"{folder} cannot be written: {error.strerror or error}") from error
    return file.path


def left_out(board: Board) -> list[str]:
    """The panels that TensorBoard cannot draw, as sentences."""
    return [
        f"{panel.title!r} is left out: TensorBoard draws custom scalars by step only"
        for row in board.rows
        for panel in row.panels
        if not _drawable(panel)
    ]


def tag_patterns(panel: Panel) -> list[str]:
    r"""The regular expressions that a panel's chart finds its tags by.

    Each key is escaped and anchored, as TensorBoard takes an expression for the beginning of a
    tag. A panel without keys has the template's patterns, so that it fills when such keys come.

    >>> print(*tag_patterns(Panel("loss", (Key("val/loss.ce"),), ("loss*",))))
    ^val\/loss\.ce$
    """
    if not panel.keys:
        return [f"^{anywhere(pattern)}$" for pattern in panel.patterns]
    return [f"^{anywhere(key.name) if key.pattern else escaped(key.name)}$" for key in panel.keys]


def _drawable(panel: Panel) -> bool:
    return panel.axis.key is None


def _summaries(board: Board, config: Mapping[str, Any]) -> Iterable[Summary]:
    yield _layout(board)
    if board.keys:
        yield _text(board)
    if config:
        from tensorboard.plugins.hparams import summary_v2

        metrics = [key for key in board.keys if not key.pattern][:_HYPER_METRICS]
        yield summary_v2.hparams_config_pb(
            [summary_v2.HParam(name) for name in flat(config)],
            [
                summary_v2.Metric(key.name, description=key.description.text or None)
                for key in metrics
            ],
        )


def _layout(board: Board) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata
    from tensorboard.util import tensor_util

    layout = layout_pb2.Layout()
    for row in board.rows:
        panels = [panel for panel in row.panels if _drawable(panel)]
        if not panels:
            continue
        category = layout.category.add(title=row.title)
        for panel in panels:
            chart = category.chart.add(title=panel.title)
            if panel.draw == "spread" and panel.keys:
                for low, high in panel.spreads:
                    # The slowest rank, or the fullest one, is what a step waits for.
                    chart.margin.series.add(value=high.name, lower=low.name, upper=high.name)
            else:
                chart.multiline.tag.extend(tag_patterns(panel))
    summary = Summary()
    summary.value.add(
        tag=metadata.CONFIG_SUMMARY_TAG,
        metadata=metadata.create_summary_metadata(),
        tensor=tensor_util.make_tensor_proto(layout.SerializeToString()),
    )
    return summary


def _text(board: Board) -> Summary:
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.text import metadata
    from tensorboard.util import tensor_util

    lines = [f"**{_cell(board.title)}** {_cell(board.text)}", ""]
    lines += ["| key | unit | help | group |", "| --- | --- | --- | --- |"]
    lines += [_row(key) for key in board.keys]
    if board.problems:
        lines += ["", "Not drawn:", "", *(f"* {_cell(problem)}" for problem in board.problems)]
    summary = Summary()
    summary.value.add(
        tag="metrics/text_summary",
        metadata=metadata.create_summary_metadata("metrics", "what the keys mean"),
        tensor=tensor_util.make_tensor_proto("\n".join(lines).encode()),
    )
    return summary


def _row(key: Key) -> str:
    one = key.description
    return f"| {' | '.join(map(_cell, (key.name, one.unit, one.help, one.group)))} |"


def _cell(text: str) -> str:
    """The text with whatever Markdown would read as a mark escaped."""
    flat_text = " ".join(text.split())
    return "".join(f"\\{char}" if char in r"\`*_{}[]<>()#+-.!|~" else char for char in flat_text)
