"""What the demo prints at its end: the last values, where the files are, how to look at them."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich.table import Table

from distmetrics.errors import RunDirError
from distmetrics.record import Record, Value


def read_records(run_dir: Path) -> list[Record]:
    """The records of a run, in the order in which they were written.

    Raises:
        RunDirError: the run wrote none.
    """
    path = run_dir / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if not lines:
        raise RunDirError(f"{path} holds no record: the run ended before its first window did")
    return [Record.from_json(line) for line in lines]


def last_values(records: Iterable[Record], logger: str | None) -> dict[str, tuple[int, Value]]:
    """Each key of one logger or child, without its prefix, to its last step and value."""
    prefix = "" if logger is None else f"{logger}/"
    return {
        key.removeprefix(prefix): (record.step, value)
        for record in records
        if record.logger == logger
        for key, value in record.values.items()
    }


def last_values_table(records: Sequence[Record]) -> Table:
    """The last values of the training and of the held-out evaluation, side by side."""
    training, held_out = last_values(records, None), last_values(records, "val")
    table = Table(title="last values", title_justify="left")
    table.add_column("key")
    table.add_column(f"training, step {_last_step(training)}", justify="right")
    table.add_column(f"held out, step {_last_step(held_out)}", justify="right")
    for key in dict.fromkeys((*training, *held_out)):
        table.add_row(
            key, *(_short(side[key][1] if key in side else "") for side in (training, held_out))
        )
    return table


def world_size_table(
    runs: Mapping[int, Mapping[str, Value]], beside: str
) -> tuple[Table, list[str]]:
    """The values of one evaluation at each world size, and the keys whose bits differ.

    `beside` is a key shown for comparison only, in the last row.
    """
    first = next(iter(runs.values()))
    keys = list(dict.fromkeys(key for values in runs.values() for key in values if key != beside))
    table = Table(title="one evaluation at each world size", title_justify="left")
    table.add_column("key")
    for world_size in runs:
        table.add_column(_ranks(world_size), justify="right", overflow="fold")
    table.add_column("")
    differing = []
    for key in keys:
        same = len({_bits(values.get(key)) for values in runs.values()}) == 1
        if not same:
            differing.append(key)
        verdict = "identical bits" if same else "[red]differs[/red]"
        table.add_row(key, *(repr(values.get(key)) for values in runs.values()), verdict)
    if beside in first:
        table.add_section()
        table.add_row(
            beside, *(repr(values.get(beside)) for values in runs.values()), "for comparison"
        )
    return table, differing


def ways_to_look(run_dir: Path) -> dict[str, str]:
    """What can be looked at, to the command for it, ready for a shell in the current folder."""
    offline = sorted((run_dir / "wandb").rglob("*.wandb"))
    commands = {
        "the exact records": ["tail", "-n", "1", str(run_dir / "metrics.jsonl")],
        "one page of charts": [_program("distmetrics"), "dashboard", "html", str(run_dir)],
        "charts in the browser": [
            _program("tensorboard"),
            "--logdir",
            str(run_dir / "tensorboard"),
        ],
    }
    for log in offline:
        commands["W&B in the terminal"] = [_program("wandb"), "leet", str(log.parent)]
        commands["send it to W&B (needs an account)"] = [_program("wandb"), "sync", str(log.parent)]
    return {what: shlex.join(command) for what, command in commands.items()}


def _program(name: str) -> str:
    """How the user's shell calls a program that stands beside this Python."""
    beside = Path(sys.executable).parent / name
    found = shutil.which(name)
    if not beside.exists() or (found is not None and Path(found) == beside):
        return name
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)


def _bits(value: Value | None) -> object:
    """What two values share if and only if they are of one type and equal in every bit."""
    return value.hex() if isinstance(value, float) else (type(value), str(value))


def _short(value: Value | str) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _last_step(side: Mapping[str, tuple[int, Value]]) -> int | str:
    return max((step for step, _ in side.values()), default="none")


def _ranks(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size} ranks"
