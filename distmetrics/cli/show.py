"""`distmetrics show`: what a run came to, or what a registry declares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from distmetrics.errors import InvalidValue
from distmetrics.registry import Registry


@click.command()
@click.argument("run", required=False, type=click.Path(path_type=Path, exists=True))
@click.option("--follow", is_flag=True, help="Show the run again whenever it has gone on.")
@click.option(
    "--registry",
    "registry_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Show what this registry declares: a TOML file, or the run.json of a run.",
)
def show(run: Path | None, follow: bool, registry_file: Path | None) -> None:
    """Sum a run up: each key's last, smallest and largest value, its curve, unit and help text.

    RUN is a run directory, or any run that another tool wrote as TensorBoard, W&B, CSV or
    JSON-lines files. With --registry, list the keys of a registry instead, with reduction, unit,
    group and scaling class.
    """
    if (run is None) == (registry_file is None):
        raise click.UsageError("give a run, or a registry by --registry FILE")
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if registry_file is not None:
        if follow:
            raise click.UsageError("--follow follows a run; a registry does not go on")
        console.print(read_registry(registry_file).table())
    elif run is not None:
        from distmetrics.dashboard.summary import show_run

        show_run(console, run, follow=follow)


def read_registry(path: Path) -> Registry:
    """The registry in a TOML file or in a ``run.json``.

    Raises:
        InvalidType, InvalidValue, DeclarationConflict: it holds none.
    """
    if path.suffix != ".json":
        return Registry.from_toml(path)
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        declarations, default, strict = run["registry"], run["default"], run["strict"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidValue(f"{path} is no run.json: {type(error).__name__}: {error}") from error
    return Registry.from_declarations(declarations, default, strict)
