"""`distmetrics dashboard`: one command for each target."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from distmetrics.dashboard.board import Board
    from distmetrics.dashboard.subject import Subject


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options of all targets."""
    for option in (
        click.option(
            "--template",
            "templates",
            multiple=True,
            metavar="NAME|FILE",
            help="What to show; may be repeated.  [default: all keys, by the registry's groups]",
        ),
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="Where it goes.  [default: in the run directory]",
        ),
    ):
        command = option(command)
    return command


_ONE = click.argument("run", metavar="RUN_DIR|REGISTRY.toml", type=click.Path(exists=True))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def dashboard() -> None:
    """Make a dashboard for a run, or for a registry before the first run.

    Templates that come along: training, language-model, detection, health, scaling-audit.
    """


@dashboard.command()
@_ONE
@_shared
def tensorboard(run: str, templates: tuple[str, ...], out: Path | None) -> None:
    """Lay out TensorBoard's custom scalars: a run of its own beside the run's events."""
    from distmetrics.dashboard.tensorboard import left_out, write_layout

    subject, board = _arranged((run,), templates, bins=False)
    folder = out or _layout_of(subject)
    write_layout(board, folder, subject.config)
    _tell(board, subject, [*left_out(board), *_without_events(folder)])
    _written(folder, f"tensorboard --logdir {shlex.quote(str(folder.parent))}")


@dashboard.command()
@_ONE
@_shared
@click.option("--entity", help="W&B user or team.  [default: the run's]")
@click.option("--project", help="W&B project.  [default: the run's]")
def wandb(
    run: str,
    templates: tuple[str, ...],
    out: Path | None,
    entity: str | None,
    project: str | None,
) -> None:
    """Make a W&B workspace: saved to a file, and sent where there is a login."""
    from distmetrics.dashboard import wandb as target

    subject, board = _arranged((run,), templates, bins=False)
    place = target.place_of(subject, entity, project)
    workspace = target.workspace(board, place)
    path = out or _file_of(subject, "dashboard.wandb.json")
    _write(path, target.to_json(workspace))
    _tell(board, subject, [])
    _written(path)
    url = target.push(workspace)
    if url is None:
        click.echo("Not sent: there is no W&B login here (wandb login)")
    else:
        click.echo(f"Sent to {url}")


@dashboard.command()
@_ONE
@_shared
def grafana(run: str, templates: tuple[str, ...], out: Path | None) -> None:
    """Make a Grafana dashboard of what the Prometheus sink exposes, to be imported there."""
    from distmetrics.dashboard.grafana import to_json

    subject, board = _arranged((run,), templates, bins=False)
    path = out or _file_of(subject, "dashboard.grafana.json")
    _write(path, to_json(board))
    _tell(board, subject, [])
    _written(path)


@dashboard.command()
@click.argument("runs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(exists=True))
@_shared
def html(runs: tuple[str, ...], templates: tuple[str, ...], out: Path | None) -> None:
    """Make one page of HTML that needs no server; several runs are laid over each other."""
    from distmetrics.dashboard.page import to_html

    subject, board = _arranged(runs, templates)
    page = to_html(board, subject)
    path = out or _file_of(subject, "dashboard.html")
    _write(path, page)
    _tell(board, subject, [])
    _written(path)


def _arranged(
    places: tuple[str, ...], templates: tuple[str, ...], *, bins: bool = True
) -> tuple[Subject, Board]:
    from distmetrics.dashboard.automatic import NAME, automatic_template
    from distmetrics.dashboard.board import arrange
    from distmetrics.dashboard.subject import subject_of, without_bins
    from distmetrics.dashboard.template import load_template

    subject = subject_of(*places)
    if not bins:
        subject = without_bins(subject)
    loaded = [
        automatic_template(subject) if name == NAME else load_template(name)
        for name in templates or (NAME,)
    ]
    return subject, arrange(loaded, subject)


def _layout_of(subject: Subject) -> Path:
    """Where the layout goes: beside the run's events."""
    from distmetrics.dashboard.tensorboard import FOLDER

    if subject.folder is None:
        raise click.UsageError("a registry has no run directory: say where the layout goes: --out")
    foreign = subject.runs[0].format == "tensorboard"
    return subject.folder / (FOLDER.name if foreign else FOLDER)


def _without_events(layout: Path) -> list[str]:
    if any("tfevents" in path.name for path in layout.parent.glob("*")):
        return []
    return [
        f"{layout.parent} holds no events yet: without the sink 'tensorboard' charts stay empty"
    ]


def _file_of(subject: Subject, name: str) -> Path:
    """A file in the run directory; for a registry, or another tool's run, in this folder."""
    ours = subject.runs and subject.runs[0].format == "distmetrics"
    return subject.folder / name if ours and subject.folder is not None else Path(name)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error


def _tell(board: Board, subject: Subject, others: list[str]) -> None:
    for text in (*subject.warnings, *board.problems, *others):
        click.echo(f"! {text}", err=True)


def _written(path: Path, command: str = "") -> None:
    click.echo(f"Wrote {path}")
    if command:
        click.echo(f"To look at it: {command}")
