"""`distmetrics show`: what a registry declares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from distmetrics.errors import InvalidValue
from distmetrics.registry import Registry


@click.command()
@click.option(
    "--registry",
    "registry_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="A registry as TOML, or the run.json of a run.",
)
def show(registry_file: Path) -> None:
    """List the keys of a registry with reduction, unit, group and scaling class."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(read_registry(registry_file).table())


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
