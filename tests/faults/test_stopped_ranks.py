"""A rank is stopped for longer than the others wait, and goes on: all catch up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.crash import stop
from tests.faults.train import Fault


@pytest.mark.parametrize("rank", [0, pytest.param(2, marks=pytest.mark.heavy)])
def test_a_rank_that_was_stopped_catches_up(tmp_path: Path, rank: int) -> None:
    """Stopped in a round: named after the time-out; no record is missing or doubled afterwards."""
    run_dir = tmp_path / "run"
    windows, lost, seconds = stop(run_dir, Fault(rank, "sum", "stop"), 3)
    assert windows > 0
    assert lost == 0
    assert max(seconds) < 15
    assert not (run_dir / "spool").exists()
