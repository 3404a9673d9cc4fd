"""Reading tables of other tools."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.runs import RunData, open_run, split_spec


def values_of(run: RunData, key: str) -> dict[int, float]:
    """Step to value of one key."""
    series = run.series[key]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_a_csv_is_read_by_its_step_column(tmp_path: Path) -> None:
    """Columns are keys, empty cells are absent, texts are left out and named."""
    path = tmp_path / "metrics.csv"
    path.write_text("epoch,step,loss,n,note\n0,10,0.5,3,a\n0,20,,4,b\n1,30,nan,5,\n")
    run = open_run(path, world_size=2)
    found = values_of(run, "loss")
    assert found[10] == 0.5
    assert 20 not in found
    assert math.isnan(found[30])
    assert values_of(run, "n") == {10: 3, 20: 4, 30: 5}
    assert run.series["n"].integer
    assert "note" in run.warnings[0]


def test_a_torn_csv_keeps_its_whole_rows(tmp_path: Path) -> None:
    """A last row that lacks columns is left out with a warning."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,a,b\n0,1,2\n1,3,4\n2,5")
    run = open_run(path)
    assert values_of(run, "a") == {0: 1, 1: 3}
    assert "another length" in run.warnings[0]


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("name", ["Step", "global_step", "iteration"])
def test_delimiters_and_names_of_the_step_are_found(
    tmp_path: Path, delimiter: str, name: str
) -> None:
    """Tabs and semicolons do, and so do other names of the step."""
    path = tmp_path / "metrics.csv"
    path.write_text(f"{delimiter.join([name, 'x'])}\n{delimiter.join(['7', '1.5'])}\n")
    assert values_of(open_run(path), "x") == {7: 1.5}


def test_json_lines_are_flattened(tmp_path: Path) -> None:
    """Nested objects join their names; NaN is taken as Python writes it; garbage is counted."""
    path = tmp_path / "log.jsonl"
    path.write_text(
        '{"step": 0, "train": {"loss": 1.5}, "n": 3}\n{"step": 1, "train": {"loss": NaN}}\nbroken\n'
    )
    run = open_run(path)
    found = values_of(run, "train/loss")
    assert found[0] == 1.5
    assert math.isnan(found[1])
    assert values_of(run, "n") == {0: 3}
    assert "1 line" in run.warnings[0]


def test_a_foreign_file_named_like_ours_is_a_table(tmp_path: Path) -> None:
    """Other tools write `metrics.jsonl` too, with the values beside the step."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 1.5}\n{"step": 1, "loss": 1.0}\n')
    run = open_run(tmp_path)
    assert run.format == "table"
    assert values_of(run, "loss") == {0: 1.5, 1: 1.0}


def test_lines_behind_zeros_are_read(tmp_path: Path) -> None:
    """A file that a second process cut to nothing while the first wrote on begins with zeros."""
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\0" * 5000 + b'{"step": 7, "loss": 1.5}\n{"step": 8, "loss": 1.0}\n')
    assert values_of(open_run(path), "loss") == {7: 1.5, 8: 1.0}


def test_rows_without_steps_count_from_zero(tmp_path: Path) -> None:
    """Without a step column the rows are numbered, and that is said."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"loss": 1.0}\n{"loss": 2.0}\n')
    run = open_run(path)
    assert values_of(run, "loss") == {0: 1.0, 1: 2.0}
    assert "count from 0" in run.warnings[0]


@pytest.mark.parametrize("content", ["", "step,a\n", "no table at all", "\0\0\0\0"])
def test_a_file_without_numbers_is_an_error(tmp_path: Path, content: str) -> None:
    """The error names the file."""
    path = tmp_path / "metrics.csv"
    path.write_text(content)
    with pytest.raises(RunDirError, match=r"metrics\.csv"):
        open_run(path)


def test_the_world_size_can_be_given_with_the_path(tmp_path: Path) -> None:
    """``4=path`` is a run of 4 ranks, a path that has such a name is a path."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 0, "x": 1.0}\n')
    assert open_run(f"4={path}").world_size == 4
    assert open_run(path).world_size is None
    with pytest.raises(InvalidValue, match="at least 1"):
        split_spec(f"0={path}")


def test_the_world_size_is_found_in_a_run_json_above(tmp_path: Path) -> None:
    """The TensorBoard folder inside a run directory belongs to that run."""
    (tmp_path / "run.json").write_text('{"world_size": 8}')
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "log.jsonl"
    path.write_text('{"step": 0, "x": 1.0}\n')
    assert open_run(path).world_size == 8


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    """A missing path, an empty folder and one with several runs are told apart."""
    with pytest.raises(RunDirError, match="no such file"):
        open_run(tmp_path / "absent")
    with pytest.raises(RunDirError, match="holds no run"):
        open_run(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("")
    with pytest.raises(RunDirError, match="several runs"):
        open_run(tmp_path)
