"""A board as a W&B workspace."""

from __future__ import annotations

import json
import os
import unicodedata
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from distmetrics.dashboard.board import Board, Key, Panel, Row
from distmetrics.dashboard.patterns import anywhere
from distmetrics.dashboard.subject import Subject
from distmetrics.dashboard.template import TIME
from distmetrics.errors import DistmetricsError, MissingPackage
from distmetrics.runs.wandb import records
from distmetrics.sinks.wandb_account import has_credentials

if TYPE_CHECKING:
    from wandb_workspaces.workspaces import Section, Workspace

_ABSENT = ("offline", "dryrun", "disabled")
_SYMBOLS = ("So", "Sk", "Sm", "Sc", "Cs")  # kinds of characters that no name of a view may hold


class Place(NamedTuple):
    """Where in W&B a workspace belongs; empty where that is not known."""

    entity: str
    project: str


def place_of(subject: Subject, entity: str | None = None, project: str | None = None) -> Place:
    """The entity and project that are given, else those of the run's W&B file."""
    written = _written_place(subject.folder) if subject.folder is not None else Place("", "")
    return Place(entity or written.entity, project or written.project or "uncategorized")


def workspace(board: Board, place: Place) -> Workspace:
    """The workspace: a section for each row, a line plot for each panel.

    Keys of children have the step of their own rows, so that each child's keys are a plot of their
    own. A panel without keys matches those that may still come by a regular expression. A section
    "about" says what the keys are.

    Raises:
        MissingPackage: wandb-workspaces is not installed.
    """
    ws, wr = _packages()
    sections = [_section(row) for row in board.rows]
    if board.keys:
        about = wr.MarkdownPanel(markdown=_about(board))
        sections.append(ws.Section(name="about", panels=[about], is_open=False))
    made: Workspace = ws.Workspace(
        entity=place.entity,
        project=place.project,
        name=_name(board.title),
        sections=sections,
    )
    return made


def to_json(made: Workspace) -> str:
    """The workspace's specification, as W&B stores it."""
    view = made._to_model()  # noqa: SLF001 - the package has no public way that needs no server
    spec = json.loads(view.spec.model_dump_json(by_alias=True, exclude_none=True))
    place = {"entity": made.entity, "project": made.project, "name": made.name}
    return json.dumps({**place, "spec": spec}, indent=2, ensure_ascii=False) + "\n"


def push(made: Any) -> str | None:
    """The address of the workspace, sent to W&B; None where there is no login.

    Raises:
        DistmetricsError: W&B did not take it.
    """
    import wandb

    if os.environ.get("WANDB_MODE") in _ABSENT or not has_credentials(wandb.setup().settings):
        return None
    try:
        made.entity = made.entity or wandb.Api().default_entity or ""
        made.save()
    except Exception as error:  # whatever the network and W&B's client raise
        raise DistmetricsError(f"W&B did not take the workspace: {error}") from error
    return str(made.url)


def _name(title: str) -> str:
    return "".join("-" if unicodedata.category(char) in _SYMBOLS else char for char in title)


def _packages() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            # It is written in the manner of pydantic's first version, and importing it says so.
            warnings.simplefilter("ignore", DeprecationWarning)
            import wandb_workspaces.reports.v2 as wr
            import wandb_workspaces.workspaces as ws
    except ImportError as error:
        raise MissingPackage(
            f"a W&B workspace needs wandb-workspaces ({error}); install it with: "
            "python -m pip install wandb-workspaces"
        ) from error
    return ws, wr


def _section(row: Row) -> Section:
    ws, _ = _packages()
    plots = [plot for panel in row.panels for plot in _plots(panel)]
    section: Section = ws.Section(name=row.title, panels=plots, is_open=True)
    return section


def _plots(panel: Panel) -> Iterator[Any]:
    _, wr = _packages()
    options = {"x": _axis(panel), "log_y": panel.scale == "log", "title_y": panel.unit or None}
    patterns = [key.name for key in panel.keys if key.pattern]
    if not panel.keys:
        patterns = list(panel.patterns)
    for head, keys in _by_child(panel).items():
        title = f"{head}: {panel.title}" if head else panel.title
        yield wr.LinePlot(title=title, y=[key.name for key in keys], **options)
    if patterns:
        wanted = "|".join(f"^{anywhere(pattern)}$" for pattern in patterns)
        yield wr.LinePlot(title=panel.title, metric_regex=wanted, **options)


def _by_child(panel: Panel) -> dict[str, list[Key]]:
    """A panel's keys by what stands before their first slash, which may be a child's name."""
    found: dict[str, list[Key]] = {}
    for key in panel.keys:
        if not key.pattern:
            head, slash, _ = key.name.partition("/")
            found.setdefault(head if slash else "", []).append(key)
    return found


def _axis(panel: Panel) -> str | None:
    """None leaves the axis to the step that the run itself defined for the key."""
    if panel.axis.key is not None:
        return panel.axis.key.name
    return "Relative Time (Process)" if panel.axis.kind == TIME else None


def _about(board: Board) -> str:
    lines = [board.text, "", "| key | unit | what it is |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(key.name)} | {_cell(key.description.unit)} | {_cell(key.description.help)} |"
        for key in board.keys
    ]
    lines += ["", *(f"* {_cell(problem)}" for problem in board.problems)]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "".join(f"\\{char}" if char in r"\`*_[]<>|#" else char for char in text)


def _written_place(folder: Path) -> Place:
    """The entity and project in the run directory's newest W&B file."""
    files = sorted(folder.glob("wandb/**/*.wandb"), key=lambda path: path.stat().st_mtime)
    for path in reversed(files):
        from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

        for data in records(path, []):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "run":
                return Place(record.run.entity, record.run.project)
    return Place("", "")
