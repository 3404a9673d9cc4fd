"""A rank is killed at a point of a round: the others know, go on, and nothing spooled is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from distmetrics.spool.merge import merge
from tests.faults import work
from tests.faults.ranks import ranks
from tests.faults.train import Fault, Lost, steady

STEPS = 150
PACE = 0.01
KNOWN = 5.0
"""Seconds in which the others know, on a busy machine; the benchmark measures how soon it is."""


def _kill(tmp_path: Path, fault: Fault, world_size: int = 3) -> None:
    """Kill a rank; check what the others learn, and what a merge makes of the spools."""
    run_dir = tmp_path / "run"
    with ranks(world_size, steady, run_dir, STEPS, PACE, fault, {}) as started:
        died = started[fault.rank].expect("reached")
        assert died.data == fault.point
        spooled = []
        for rank in started:
            if rank.rank == fault.rank:
                continue
            said = rank.expect("lost")
            lost: Lost = said.data
            assert said.at - died.at < KNOWN
            assert lost.rank == fault.rank
            assert lost.key == "loss"
            assert lost.step is not None
            assert f"rank {fault.rank} is lost" in lost.text
            counters = rank.result()
            assert counters["slowest"] < 1.0
            assert counters["closing"] < 10.0
            assert counters["spooled_step"] >= STEPS - work.EVERY - 1
            spooled.append(counters["spooled_step"])
    before = len(work.rows_of(run_dir))
    merged = merge(run_dir)
    rows = work.rows_of(run_dir)
    assert len(rows) == before + len(merged.written)
    work.check_rows(rows, [row.window for row in rows], world_size)
    assert [row.window for row in rows] == work.labels(2 * len(rows))
    assert rows[-1].window >= (lost.step or 0) - 2 * work.EVERY
    assert merged.waiting
    assert not merge(run_dir).written


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
