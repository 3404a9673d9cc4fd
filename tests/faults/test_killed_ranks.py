"""A rank is killed at a point of a round: the others know, go on, and nothing spooled is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.crash import kill
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
    assert left.windows > 0
    assert left.lost == 0
    assert left.slowest < 1.0
    assert left.closing < 10.0


@pytest.mark.parametrize("point", ["header", "sum", "reduced"])
def test_a_killed_rank_is_named_and_its_windows_are_merged(tmp_path: Path, point: str) -> None:
    """Every survivor names it with its last step and a key; what all had spooled comes back."""
    _kill(tmp_path, Fault(1, point))


@pytest.mark.parametrize("point", ["sum", "commit", "committed"])
def test_the_rank_that_writes_may_die(tmp_path: Path, point: str) -> None:
    """Rank 0 serves the store and writes: the others name it, and no row is missing or doubled."""
    _kill(tmp_path, Fault(0, point))


@pytest.mark.heavy
@pytest.mark.parametrize("rank", [0, 1, 3])
@pytest.mark.parametrize("point", ["spooling", "header", "exchange", "sum", "max", "reduced"])
def test_any_rank_may_die_at_any_point(tmp_path: Path, point: str, rank: int) -> None:
    """As above, of four ranks."""
    after = 0 if point == "exchange" else 1
    _kill(tmp_path, Fault(rank, point, after=after), world_size=4)
