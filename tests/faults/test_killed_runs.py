"""All ranks are killed at random moments: what they had on disk comes back, once and exact."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.crash import crash


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.heavy) for seed in (2, 3, 4))]
)
def test_nothing_that_was_spooled_is_lost(tmp_path: Path, seed: int) -> None:
    """No line is torn but the last; after a merge every window is there once, with its bits."""
    draw = random.Random(seed)
    seconds, pace = draw.uniform(0.0, 1.0), draw.choice([0.0, 0.001, 0.01])
    left = crash(tmp_path / "run", 2 + seed % 2, seconds, pace, draw)
    assert left.lost == 0
    assert left.windows > 0
