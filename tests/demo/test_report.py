"""What the demo prints: last values, comparison of bits, commands that can be pasted."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from distmetrics.demo import report
from distmetrics.errors import RunDirError
from distmetrics.record import Record, Value


def record(step: int, values: dict[str, Value], logger: str | None = None) -> Record:
    """A record of one step."""
    return Record(step, step, step, 0.0, values, logger=logger)


def shown(table: Table) -> str:
    """The table as a terminal shows it."""
    console = Console(width=120, file=None)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def write(run_dir: Path, *records: Record) -> None:
    """The records as a run's file."""
    lines = "".join(f"{each.to_json()}\n" for each in records)
    (run_dir / "metrics.jsonl").write_text(lines, encoding="utf-8")


def test_records_are_read_back_in_order(tmp_path: Path) -> None:
    """What a run wrote comes back, non-finite values included."""
    written = [record(0, {"loss": math.inf}), record(1, {"loss": 0.1})]
    write(tmp_path, *written)
    assert report.read_records(tmp_path) == written


def test_a_run_without_records_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """An empty run is said to be one."""
    with pytest.raises(RunDirError, match=r"metrics\.jsonl holds no record"):
        report.read_records(tmp_path)


def test_each_key_keeps_its_last_value() -> None:
    """A key that the last record lacks keeps the value of an earlier one."""
    records = [
        record(0, {"loss": 3.0, "lr": 0.5}),
        record(1, {"val/loss": 4.0}, logger="val"),
        record(2, {"loss": 1.0}),
    ]
    assert report.last_values(records, None) == {"loss": (2, 1.0), "lr": (0, 0.5)}
    assert report.last_values(records, "val") == {"loss": (1, 4.0)}


def test_training_and_held_out_values_stand_side_by_side() -> None:
    """One row per key, one column per logger, named with its last step."""
    records = [record(9, {"loss": 0.25, "n": 64}), record(9, {"val/loss": 0.5}, logger="val")]
    text = shown(report.last_values_table(records))
    assert "training, step 9" in text
    assert "held out, step 9" in text
    (row,) = [line for line in text.splitlines() if "loss" in line]
    assert "0.25" in row
    assert "0.5" in row


def test_equal_bits_are_called_identical_and_others_are_not() -> None:
    """The last bit of a float, a sign of zero and the type of a number all count."""
    third = 1 / 3
    runs: dict[int, dict[str, Value]] = {
        1: {"loss": third, "off": third, "zero": 0.0, "type": 1, "n": 2**70, "naive": 1.0},
        2: {
            "loss": third,
            "off": math.nextafter(third, 1),
            "zero": -0.0,
            "type": 1.0,
            "n": 2**70,
            "naive": 2.0,
        },
    }
    table, differing = report.world_size_table(runs, beside="naive")
    assert differing == ["off", "zero", "type"]
    text = shown(table)
    assert text.count("identical bits") == 2
    assert "for comparison" in text
    assert repr(third) in text


def test_a_key_that_one_world_size_lacks_differs() -> None:
    """A missing value is no equal value."""
    _, differing = report.world_size_table({1: {"a": 1.0}, 2: {"a": 1.0, "b": 2.0}}, beside="")
    assert differing == ["b"]


def test_commands_can_be_pasted_into_a_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that are not on PATH come with their path, and odd folder names are quoted."""
    run_dir = tmp_path / "my runs" / "demo"
    offline = run_dir / "wandb" / "offline-run-1"
    offline.mkdir(parents=True)
    (offline / "run-1.wandb").touch()
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    commands = {shlex.split(text)[0]: text for text in report.ways_to_look(run_dir).values()}
    beside = Path(sys.executable).parent
    tensorboard = shlex.split(commands[str(beside / "tensorboard")])
    assert tensorboard[1:] == ["--logdir", str(run_dir / "tensorboard")]
    assert shlex.split(commands["tail"])[-1] == str(run_dir / "metrics.jsonl")


def test_an_environment_below_the_current_folder_is_named_by_a_short_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the checkout the commands start with .venv/bin, as a user would type them."""
    beside = Path(sys.executable).parent
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(beside.parent)
    assert any(
        text.startswith(f"{beside.name}/tensorboard ")
        for text in report.ways_to_look(tmp_path).values()
    )


def test_programs_on_the_path_are_called_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an activated environment the plain name is enough."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert any(
        text.startswith("tensorboard --logdir ") for text in report.ways_to_look(tmp_path).values()
    )
