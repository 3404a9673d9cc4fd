"""The command line: one file per command, imported when that command is used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from distmetrics.errors import DistmetricsError

COMMANDS = {
    "audit": "distmetrics.audit.commands:audit",
    "dashboard": "distmetrics.dashboard.commands:dashboard",
    "demo": "distmetrics.cli.demo:demo",
    "doctor": "distmetrics.cli.doctor:doctor",
    "merge": "distmetrics.cli.merge:merge",
    "replay": "distmetrics.cli.replay:replay",
    "show": "distmetrics.cli.show:show",
}
"""Name of a command to where it stands, as ``module:attribute``."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for, so that one stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, None if there is none."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name].split(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; an error of this package is a message, not a traceback."""
        try:
            return super().invoke(ctx)
        except DistmetricsError as error:
            raise click.ClickException(str(error)) from error


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="distmetrics")
def main() -> None:
    """Metrics of distributed training that do not depend on how the data was split."""
