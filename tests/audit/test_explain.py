"""Taking values apart from recorded contributions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from distmetrics.audit.explain import explain
from distmetrics.errors import InvalidValue, RunDirError


def record(folder: Path, rank: int, rows: list[dict[str, Any]]) -> None:
    """Writes what one rank contributed."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / f"contributions-rank{rank}.jsonl").write_text(lines)


def test_each_rank_and_the_formulas_are_shown(tmp_path: Path) -> None:
    """Sums, weights and means per rank; the right formula and the usual wrong ones."""
    record(
        tmp_path,
        0,
        [
            {
                "step": 3,
                "window": 9,
                "key": "loss",
                "value": [1.0, 3.0],
                "weight": [4, 2],
                "reduction": "average",
            }
        ],
    )
    record(
        tmp_path,
        1,
        [
            {
                "step": 4,
                "window": 9,
                "key": "loss",
                "value": [2.0, 6.0, math.pi],
                "weight": [4, 1, 0],
            }
        ],
    )
    row = {"step": 9, "first_step": 0, "window": 9, "values": {"loss": 24 / 11}, "world_size": 2}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    found = explain(tmp_path, "loss")
    assert found.window == 9
    assert found.reduction == "average"
    assert [part.elements for part in found.parts] == [2, 2]
    assert [part.padding for part in found.parts] == [0, 1]
    assert found.parts[0].mean == pytest.approx(10 / 6)
    assert found.formulas["weighted mean over all ranks"] == 24 / 11
    assert found.formulas["plain mean of all elements"] == 3.0
    assert found.formulas["mean of the ranks' means"] == pytest.approx((10 / 6 + 14 / 5) / 2)
    assert found.formulas["rank 0's own mean"] == pytest.approx(10 / 6)
    assert found.matches() == ["weighted mean over all ranks"]


def test_a_step_inside_a_window_names_the_window(tmp_path: Path) -> None:
    """Any step of the window will do, and so will its label."""
    record(
        tmp_path,
        0,
        [
            {"step": step, "window": 9 if step < 10 else 19, "key": "n", "value": 1}
            for step in range(12)
        ],
    )
    assert explain(tmp_path, "n", 4).window == 9
    assert explain(tmp_path, "n", 19).window == 19
    assert explain(tmp_path, "n").window == 19
    assert explain(tmp_path, "n", 4).formulas["sum over all ranks, per step"] == 1.0
    assert explain(tmp_path, "n").logged is None


def test_names_of_nonfinite_numbers_and_torn_lines_are_read(tmp_path: Path) -> None:
    """Recordings are strict JSON, and may end in the middle of a line."""
    record(tmp_path, 0, [{"step": 0, "key": "x", "value": ["NaN", 1.0]}])
    with (tmp_path / "contributions-rank0.jsonl").open("a") as file:
        file.write('{"step": 0, "key": "x", "va')
    found = explain(tmp_path, "x")
    assert math.isnan(found.formulas["weighted mean over all ranks"])
    assert found.parts[0].calls == 1


def test_what_was_not_recorded_is_an_error(tmp_path: Path) -> None:
    """No recording, another key, another step: each says what there is."""
    with pytest.raises(RunDirError, match="record_contributions=True"):
        explain(tmp_path, "loss")
    record(tmp_path, 0, [{"step": 3, "key": "loss", "value": 1.0}])
    with pytest.raises(InvalidValue, match="recorded are loss"):
        explain(tmp_path, "acc")
    with pytest.raises(InvalidValue, match="recorded windows are 3"):
        explain(tmp_path, "loss", 7)
    record(tmp_path, 0, [{"step": 3, "key": "loss", "value": [1.0, 2.0, 3.0], "weight": [1, 2]}])
    with pytest.raises(InvalidValue, match="3 values and 2 weights"):
        explain(tmp_path, "loss")
