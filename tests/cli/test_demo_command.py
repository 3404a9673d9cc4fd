"""The command ``distmetrics demo``: its options, and what it says when it cannot start."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from importlib.metadata import version

import pytest
from click.testing import CliRunner

from distmetrics.cli import COMMANDS, main


def test_every_command_can_be_imported_and_shows_its_help() -> None:
    """The list of commands names none that is not there."""
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])
        assert result.exit_code == 0, result.output
        assert "Usage:" in result.output


def test_the_version_is_printed() -> None:
    """``--version`` prints the installed version."""
    result = CliRunner().invoke(main, ["--version"])
    assert f"version {version('distmetrics')}" in result.output


def test_an_unknown_command_is_refused() -> None:
    """A command that is not there is a usage error."""
    assert CliRunner().invoke(main, ["nosuch"]).exit_code == 2


@pytest.mark.parametrize("value", ["", "1,,2", "0", "two", "-1,2"])
def test_world_sizes_must_be_positive_numbers(value: str) -> None:
    """A list that is none is refused before anything runs, and an example is given."""
    result = CliRunner().invoke(main, ["demo", "--world-sizes", value])
    assert result.exit_code == 2
    assert "such as 1,2,4" in result.output


def test_a_missing_package_comes_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without scikit-learn the demo says how to get it, and shows no traceback."""
    find = importlib.util.find_spec

    def without_sklearn(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "sklearn" else find(name, package)

    monkeypatch.setattr("distmetrics.cli.demo.find_spec", without_sklearn)
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 1
    assert "-m pip install scikit-learn" in result.output
