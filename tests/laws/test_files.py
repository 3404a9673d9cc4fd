"""Real Gloo processes and real files: the same values in each sink, and silence beside rank 0."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import distmetrics as dm
from tests.laws.reference import all_bits
from tests.sinks.wandb_log import read_wandb, wandb_files

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Finished:
    """A run that is over."""

    folder: Path
    seen: list[dict[str, Any]]
    output: str

    @property
    def records(self) -> list[dm.Record]:
        """The rows of metrics.jsonl, by a strict parser."""
        lines = (self.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return [dm.Record.from_json(line) for line in lines]

    def rows(self, name: str | None = None) -> list[tuple[Any, ...]]:
        """The rows of a logger or child without their times, values in bits."""
        return [
            (r.step, r.first_step, r.window, all_bits(dict(r.values)))
            for r in self.records
            if r.logger == name
        ]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Finished]:
    """Runs at each world size, made when they are asked for and kept."""
    made: dict[int, Finished] = {}

    def get(world_size: int) -> Finished:
        if world_size not in made:
            folder = tmp_path_factory.mktemp("runs") / f"w{world_size}"
            result = subprocess.run(
                [sys.executable, "-m", "tests.laws.training", str(folder), str(world_size)],
                capture_output=True,
                text=True,
                timeout=110,
                check=False,
                cwd=REPOSITORY,
            )
            assert result.returncode == 0, result.stderr
            seen = json.loads((folder / "seen.json").read_text())
            made[world_size] = Finished(folder, seen, result.stdout + result.stderr)
        return made[world_size]

    return get


def float32(value: float) -> float:
    """The value as TensorBoard keeps it."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def same(one: float, other: float) -> bool:
    """Equal, or both NaN."""
    return one == other or (math.isnan(one) and math.isnan(other))


def test_values_on_processes_are_those_of_one_process(run: Callable[[int], Finished]) -> None:
    """Every row has the same steps and bits at two world sizes, and so has what ranks are told."""
    one, three = run(1), run(3)
    for name in (None, "val"):
        assert three.rows(name) == one.rows(name)
    assert len(one.rows()) == 4
    assert [row[0] for row in one.rows("val")] == [5, 11]
    assert all(seen["last"] == one.seen[0]["last"] for seen in three.seen)


def test_event_files_hold_the_values_of_the_records(run: Callable[[int], Finished]) -> None:
    """One event file; every tag has each record's value as float32, at its step and time."""
    finished = run(3)
    (file,) = (finished.folder / "tensorboard").iterdir()
    events = EventAccumulator(str(file), {"scalars": 0}).Reload()
    wanted: dict[str, list[tuple[int, float, float]]] = {}
    for record in finished.records:
        for key, value in record.values.items():
            assert isinstance(value, int | float)
            row = (record.step, float32(float(value)), record.time)
            wanted.setdefault(key, []).append(row)
    assert set(events.Tags()["scalars"]) == set(wanted)
    for tag, rows in wanted.items():
        found = [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)]
        assert [row[0] for row in found] == [row[0] for row in rows]
        assert all(same(a[1], b[1]) for a, b in zip(found, rows, strict=True)), tag
        assert all(abs(a[2] - b[2]) < 1e-3 for a, b in zip(found, rows, strict=True))


def test_wandb_files_hold_the_values_of_the_records(run: Callable[[int], Finished]) -> None:
    """One offline run; every record is a row with its values and its step as an ordinary key."""
    finished = run(3)
    (file,) = wandb_files(finished.folder)
    log = read_wandb(file)
    records = finished.records
    assert len(log.rows) == len(records)
    for row, record in zip(log.rows, records, strict=True):
        step = "step" if record.logger is None else f"{record.logger}/step"
        assert row[step] == record.step
        for key, value in record.values.items():
            assert same(float(row[key]), float(value)), key  # type: ignore[arg-type]


def test_other_ranks_write_nothing_import_no_sink_and_print_nothing(
    run: Callable[[int], Finished],
) -> None:
    """Law 8: they leave the sinks' packages alone, and their output is empty."""
    finished = run(3)
    assert [seen["modules"] for seen in finished.seen[1:]] == [[], []]
    assert "tensorboard" in finished.seen[0]["modules"]
    assert [seen["printed"] for seen in finished.seen[1:]] == ["", ""]
    assert [seen["errors"] for seen in finished.seen] == [0, 0, 0]
    assert [seen["dropped"] for seen in finished.seen] == [0, 0, 0]
    assert finished.output == ""


def test_rank_0_says_what_it_took_for_granted_and_nothing_else(
    run: Callable[[int], Finished],
) -> None:
    """Every key of the run is registered or needed by one that is, so there is no note."""
    assert run(3).seen[0]["printed"] == ""


def test_a_run_has_one_of_each_file(run: Callable[[int], Finished]) -> None:
    """Whatever the number of ranks; and no spool is left of a run that ended well."""
    names = {path.name for path in run(3).folder.iterdir()} - {"seen.json", ".lock"}
    assert names - {"spool"} == {"metrics.jsonl", "run.json", "tensorboard", "wandb"}
    assert not any(path.is_file() for path in (run(3).folder / "spool").rglob("*"))


@pytest.mark.heavy
@pytest.mark.parametrize("world_size", [2, 4])
def test_values_do_not_depend_on_further_world_sizes(
    run: Callable[[int], Finished], world_size: int
) -> None:
    """The same rows on two and four processes."""
    for name in (None, "val"):
        assert run(world_size).rows(name) == run(1).rows(name)
