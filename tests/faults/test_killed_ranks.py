"""A rank is killed at a point of a round: the others know, go on, and nothing spooled is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.crash import kill
from tests.faults.points import POINTS, WRITING
from tests.faults.train import Fault

KNOWN = 5.0
"""Seconds in which the others know, on a busy machine; the benchmark measures how soon it is."""


def _kill(tmp_path: Path, fault: Fault, world_size: int = 3) -> None:
    """Kill a rank; check what the others learn, and what a merge makes of the spools."""
    left = kill(tmp_path / "run", fault, world_size)
    for rank, lost in left.told.items():
        assert lost.rank == fault.rank, rank
        assert lost.key == "loss"
        assert lost.step is not None
        assert f"rank {fault.rank} is lost" in lost.text
    assert max(left.seconds) < KNOWN
    assert left.torn == (fault.point == "sink")
    assert left.windows > 0
    assert left.lost == 0
    assert left.slowest < 1.0
    assert left.closing < 10.0


@pytest.mark.parametrize(
    ("rank", "point"),
    [
        (1, "header"),
        (0, "sink"),  # it serves the store of the launch, and writes
    ],
)
def test_a_killed_rank_is_named_and_its_windows_are_merged(
    tmp_path: Path, rank: int, point: str
) -> None:
    """Every survivor names it with its last step and a key; what all had spooled comes back."""
    _kill(tmp_path, Fault(rank, point))


@pytest.mark.heavy
@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("point", POINTS)
def test_any_rank_may_die_at_any_point(tmp_path: Path, point: str, rank: int) -> None:
    """As above, of four ranks; a part of these points only the rank that writes passes."""
    if point in WRITING:
        rank = 0
    _kill(tmp_path, Fault(rank, point, after=0 if point == "exchange" else 1), world_size=4)
