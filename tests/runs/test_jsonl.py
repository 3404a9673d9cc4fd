"""Reading run directories of distmetrics."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmetrics.record import Record
from distmetrics.runs import RunData, open_run


def write(folder: Path, rows: list[dict[str, Any]], facts: dict[str, Any] | None = None) -> Path:
    """A run directory with these rows; fields that a row lacks are filled in."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for row in rows:
        step = row["step"]
        full = {"first_step": step, "window": step, "time": 0.0, "world_size": 2, "attempt": 0}
        lines.append(json.dumps(full | row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    if facts is not None:
        (folder / "run.json").write_text(json.dumps(facts))
    return folder


def values_of(run: RunData, key: str) -> dict[int, float]:
    """Step to value of one key."""
    series = run.series[key]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_rows_become_one_series_per_key(tmp_path: Path) -> None:
    """Each key has its steps and values, and ints are known as such."""
    rows = [{"step": step, "values": {"loss": 0.5 / (step + 1), "n": step}} for step in range(4)]
    run = open_run(write(tmp_path, rows))
    assert values_of(run, "loss") == {0: 0.5, 1: 0.25, 2: 0.5 / 3, 3: 0.125}
    assert run.series["n"].integer
    assert not run.series["loss"].integer
    assert run.world_size == 2
    assert run.warnings == []


def test_later_attempts_supersede_earlier_rows(tmp_path: Path) -> None:
    """After a resume at step 100 the rows of the first attempt from there on are gone."""
    rows = [{"step": step, "values": {"x": 0}} for step in range(150)]
    rows += [{"step": step, "attempt": 1, "values": {"x": 1}} for step in range(100, 120)]
    run = open_run(write(tmp_path, rows))
    found = values_of(run, "x")
    assert sorted(found) == list(range(120))
    assert [step for step, value in found.items() if value == 1] == list(range(100, 120))


def test_a_resume_supersedes_the_rows_of_children_too(tmp_path: Path) -> None:
    """An evaluation after the step at which the run was resumed belongs to the lost attempt."""
    rows = [
        {"step": 5, "values": {"loss": 1.0}},
        {"step": 9, "logger": "val", "values": {"val/loss": 9.0}},
        {"step": 7, "attempt": 1, "values": {"loss": 2.0}},
    ]
    run = open_run(write(tmp_path, rows))
    assert "val/loss" not in run.series
    assert values_of(run, "loss") == {5: 1.0, 7: 2.0}


def test_a_child_with_steps_of_its_own_supersedes_its_own_kind(tmp_path: Path) -> None:
    """Its epochs begin again at their own number, which cuts none of the logger's steps."""
    rows = [{"step": step, "values": {"x": 0}} for step in range(0, 200, 50)]
    rows += [{"step": n, "logger": "ep", "values": {"ep/x": 0}} for n in range(4)]
    rows += [{"step": 100, "attempt": 1, "values": {"x": 1}}]
    rows += [{"step": 2, "logger": "ep", "attempt": 1, "values": {"ep/x": 1}}]
    run = open_run(write(tmp_path, rows))
    assert values_of(run, "x") == {0: 0, 50: 0, 100: 1}
    assert values_of(run, "ep/x") == {0: 0, 1: 0, 2: 1}


def test_late_rows_are_superseded_with_the_window_they_came_with(tmp_path: Path) -> None:
    """Their steps lie before the step of the resume, and are not logged by the later attempt."""
    rows = [
        {"step": 2, "window": 5, "late": True, "values": {"y": 1.0}},
        {"step": 3, "window": 12, "late": True, "values": {"y": 2.0}},
        {"step": 12, "values": {"x": 0.0}},
        {"step": 10, "attempt": 1, "values": {"x": 1.0}},
    ]
    run = open_run(write(tmp_path, rows))
    assert values_of(run, "y") == {2: 1.0}
    assert values_of(run, "x") == {10: 1.0}


def test_late_rows_never_replace_a_window(tmp_path: Path) -> None:
    """A late row is a part of a step only: it stays where no other row has the step."""
    rows = [
        {"step": 9, "values": {"loss": 1.0}},
        {"step": 9, "late": True, "values": {"loss": 7.0}},
        {"step": 4, "late": True, "attempt": 1, "values": {"loss": 5.0}},
    ]
    run = open_run(write(tmp_path, rows))
    assert values_of(run, "loss") == {4: 5.0, 9: 1.0}
    assert any("late" in warning for warning in run.warnings)


def test_nonfinite_names_are_numbers_again(tmp_path: Path) -> None:
    """The names that strict JSON has in place of NaN and the infinities are turned back."""
    rows = [{"step": 0, "values": {"a": "NaN", "b": "Infinity", "c": "-Infinity", "d": 1.5}}]
    run = open_run(write(tmp_path, rows))
    assert math.isnan(values_of(run, "a")[0])
    assert values_of(run, "b") == {0: math.inf}
    assert values_of(run, "c") == {0: -math.inf}
    assert values_of(run, "d") == {0: 1.5}


@pytest.mark.parametrize("tail", [b'{"step": 3, "val', b"\0" * 40, b'{"step": 3}'])
def test_a_torn_tail_costs_no_other_row(tmp_path: Path, tail: bytes) -> None:
    """All whole rows are read, and a torn or damaged end is warned of unless it is empty."""
    folder = write(tmp_path, [{"step": step, "values": {"x": step}} for step in range(3)])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(tail)
    run = open_run(folder)
    assert values_of(run, "x") == {0: 0, 1: 1, 2: 2}
    assert bool(run.warnings) == bool(tail.strip(b"\0"))


def test_garbage_in_the_middle_is_counted(tmp_path: Path) -> None:
    """Lines that are no record are left out, and said to be."""
    folder = write(tmp_path, [{"step": 0, "values": {"x": 1}}])
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b"\xff\xfe garbage\n[1, 2]\n")
        file.write(b'{"step": 1, "attempt": 0, "values": {"x": 2}}\n')
    run = open_run(folder)
    assert values_of(run, "x") == {0: 1, 1: 2}
    assert "2 lines" in run.warnings[0]


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 + 1, 2**64 + 3, -(2**200) - 1, 10**400])
def test_big_ints_stay_exact(tmp_path: Path, value: int) -> None:
    """Ints beyond what a float holds are kept as they are."""
    rows = [{"step": step, "values": {"n": value + step, "x": 0.5}} for step in range(3)]
    series = open_run(write(tmp_path, rows)).series["n"]
    assert series.exact is not None
    assert [int(one) for one in series.exact] == [value, value + 1, value + 2]


def test_a_histogram_is_one_series_per_bin(tmp_path: Path) -> None:
    """Counts of bins can be compared like any other count."""
    histogram = {"edges": [0.0, 1.0, 2.0], "counts": [3, 4], "above": 2}
    run = open_run(write(tmp_path, [{"step": 0, "values": {"h": histogram, "x": 1.0}}]))
    assert values_of(run, "h[0]") == {0: 3}
    assert values_of(run, "h[1]") == {0: 4}
    assert values_of(run, "h[above]") == {0: 2}
    assert values_of(run, "h[below]") == {0: 0}


def test_spans_come_from_the_windows(tmp_path: Path) -> None:
    """How many steps a value covers is what its row says."""
    rows = [
        {"step": 9, "first_step": 0, "values": {"x": 1.0}},
        {"step": 12, "first_step": 10, "values": {"x": 2.0}},
    ]
    assert open_run(write(tmp_path, rows)).series["x"].spans.tolist() == [10, 3]


def test_run_json_tells_what_keys_mean(tmp_path: Path) -> None:
    """Scaling classes and weights come from the registry in run.json; names beat patterns."""
    registry = [
        {"pattern": "*", "reduction": "count"},
        {"pattern": "perf/*", "reduction": "rate", "params": {"of": "n"}},
        {"pattern": "loss", "reduction": "average", "params": {"weight": "tokens"}},
        {"pattern": "mem", "reduction": "per_rank"},
        {"pattern": "future", "reduction": "a kind to come", "scaling": "extensive"},
    ]
    rows = [{"step": 0, "values": {"loss": 1.0}}]
    run = open_run(write(tmp_path, rows, {"world_size": 4, "registry": registry}))
    declared = run.declarations
    assert declared["perf/tokens"].scaling == "extensive"
    assert declared["val/loss"].weight == "tokens"
    assert declared["mem/rank3"].scaling == declared["mem"].scaling == "per_rank"
    assert declared["future"].scaling == "extensive"
    assert declared["whatever"].reduction == "count"


@pytest.mark.parametrize("text", ["", "[]", "{broken", '{"world_size": "two"}'])
def test_a_broken_run_json_does_no_harm(tmp_path: Path, text: str) -> None:
    """The rows are read, and their world size counts."""
    folder = write(tmp_path, [{"step": 0, "values": {"x": 1.0}}])
    (folder / "run.json").write_text(text)
    assert open_run(folder).world_size == 2


def test_a_changing_world_size_is_said(tmp_path: Path) -> None:
    """A run that was resumed on fewer ranks counts as what most of its rows say, with a warning."""
    rows = [
        {"step": step, "world_size": 4 if step < 8 else 2, "values": {"x": 1}} for step in range(10)
    ]
    run = open_run(write(tmp_path, rows))
    assert run.world_size == 4
    assert "2, 4" in run.warnings[0]


numbers = st.one_of(
    st.floats(allow_nan=True), st.integers(-(2**70), 2**70), st.integers(-1000, 1000)
)
steps = st.lists(
    st.tuples(st.integers(0, 30), st.dictionaries(st.sampled_from("abc"), numbers, min_size=1)),
    min_size=1,
    max_size=40,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=steps)
def test_what_records_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, dict[str, float]]]
) -> None:
    """Every key has the last value written for each step, to the bit."""
    folder = tmp_path_factory.mktemp("run")
    expected: dict[str, dict[int, float]] = {}
    with (folder / "metrics.jsonl").open("w") as file:
        for step, values in rows:
            file.write(Record(step, step, step, 0.0, values).to_json() + "\n")
            for key, value in values.items():
                expected.setdefault(key, {})[step] = value
    run = open_run(folder)
    assert set(run.series) == set(expected)
    for key, wanted in expected.items():
        series = run.series[key]
        assert series.steps.tolist() == sorted(wanted)
        for place, step in enumerate(sorted(wanted)):
            value = wanted[step]
            if series.exact is not None:
                assert int(series.exact[place]) == value
            elif not (isinstance(value, float) and math.isnan(value)):
                assert np.array(series.values[place]).tobytes() == np.array(float(value)).tobytes()
            else:
                assert np.isnan(series.values[place])
