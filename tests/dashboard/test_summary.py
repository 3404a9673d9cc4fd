from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from distmetrics.dashboard.subject import of_runs, subject_of
from distmetrics.dashboard.summary import show_run, sparkline, summed_up
from distmetrics.runs import RunData, Series
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run


def printed(run: Path, width: int = 140) -> str:
    """What `show` prints of a run."""
    console = Console(file=io.StringIO(), width=width)
    show_run(console, run, follow=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def row(text: str, key: str) -> list[str]:
    """The cells of a key's row."""
    (line,) = [line for line in text.splitlines() if line.split()[:1] == [key]]
    return line.split()


def test_keys_stand_under_their_groups_with_last_min_and_max(tmp_path: Path) -> None:
    """The learning of a run is seen at a glance."""
    text = printed(write_run(tmp_path / "run", steps=40))
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines[0] == "run, step 39, 1 rank"
    quality, matching = lines.index("quality"), lines.index("matching")
    loss = next(place for place, line in enumerate(lines) if line.startswith("loss "))
    assert quality < loss < matching
    assert row(text, "max_len")[:5] == ["max_len", "tokens", "139", "101", "139"]
    assert row(text, "tokens_seen")[2:5] == ["81920", "4096", "81920"]
    assert "cross entropy of a sample" in text


def test_big_integers_are_shown_exactly() -> None:
    """A count beyond 2**53 keeps its last digit."""
    steps = np.arange(2)
    exact = np.array([2**60 + 1, 2**60 + 3], object)
    series = Series(steps, exact.astype(float), np.ones(2, np.int64), exact, integer=True)
    subject = of_runs([RunData(Path("x"), "table", None, {"n": series})])
    console = Console(file=io.StringIO(), width=140)
    console.print(summed_up(subject))
    assert isinstance(console.file, io.StringIO)
    assert str(2**60 + 3) in console.file.getvalue()


def test_odd_keys_are_printed_as_they_are(tmp_path: Path) -> None:
    """Brackets in keys are no marks of the terminal library."""
    text = printed(write_odd_run(tmp_path / "run"), width=600)
    assert all(key in text for key in ODD_KEYS)


def test_a_run_without_a_record_is_shown_as_such(tmp_path: Path) -> None:
    """A run that has just begun is no error."""
    run = write_run(tmp_path / "run", steps=2)
    (run / "metrics.jsonl").unlink()
    assert "no record yet" in printed(run)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=60))
def test_a_curve_has_a_character_for_each_stretch(values: list[float]) -> None:
    """Whatever the values, also none or huge ones."""
    text = sparkline(np.array(values, float), width=10)
    assert len(text) == min(10, len(values))
    assert set(text) <= set("▁▂▃▄▅▆▇█·")


@pytest.mark.parametrize(
    ("values", "curve"), [([1.0] * 3, "▅▅▅"), ([np.nan, 1.0], "·▅"), ([-1e308, 1e308], "▁█")]
)
def test_constants_gaps_and_huge_ranges_have_curves(values: list[float], curve: str) -> None:
    """No division by zero and no overflow."""
    assert sparkline(np.array(values)) == curve


def test_a_directory_without_a_registry_is_shown(tmp_path: Path) -> None:
    """Runs of other tools have keys too."""
    (tmp_path / "log.csv").write_text("step,loss\n0,1.5\n1,0.5\n", encoding="utf-8")
    assert row(printed(tmp_path / "log.csv"), "loss")[1:4] == ["0.5", "0.5", "1.5"]


def test_declarations_of_another_version_are_left_out(tmp_path: Path) -> None:
    """A kind that is not known yet costs only its own description."""
    run = write_run(tmp_path / "run", steps=10)
    text = (run / "run.json").read_text(encoding="utf-8")
    (run / "run.json").write_text(text.replace('"maximum"', '"of the future"'), encoding="utf-8")
    subject = subject_of(run)
    assert subject.keys["loss"].unit == "nats"
    assert any("1 declarations" in warning for warning in subject.warnings)
