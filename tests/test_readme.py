"""The README's example runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distmetrics.record import Record

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied into a file it writes one record per window, with the values it announces."""
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    lines = (tmp_path / "runs/first/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [Record.from_json(line) for line in lines]
    assert [record.step for record in records] == list(range(9, 100, 10))
    for record in records:
        assert record.values["num_samples"] == 32
        assert record.values["accuracy"] == pytest.approx(record.values["num_correct"] / 32)
        assert 0 < record.values["loss"] < 1


def test_it_stays_short() -> None:
    """A newcomer reads it to the end."""
    assert len(README.splitlines()) < 150
