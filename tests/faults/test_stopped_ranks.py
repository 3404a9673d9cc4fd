"""A rank is stopped for longer than the others wait, and goes on: all catch up."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.faults import work
from tests.faults.ranks import ranks
from tests.faults.train import Fault, Lost, until_told

PEER_TIMEOUT = 2.0


def _stop(tmp_path: Path, fault: Fault, world_size: int = 3) -> None:
    run_dir = tmp_path / "run"
    options: dict[str, Any] = {"peer_timeout": PEER_TIMEOUT}
    with ranks(world_size, until_told, run_dir, 0.01, fault, options) as started:
        stopped = started[fault.rank]
        others = [rank for rank in started if rank is not stopped]
        at = stopped.expect("reached").at
        for rank in others:
            said = rank.expect("lost")
            lost: Lost = said.data
            assert said.at - at > PEER_TIMEOUT * 0.9
            assert lost.rank == fault.rank
            assert f"no answer for {PEER_TIMEOUT:.1f} s" in lost.text
            rank.expect("trained")  # it trains on
        stopped.send(signal.SIGCONT)
        stopped.expect("trained")
        for rank in others:
            assert f"rank {fault.rank} can be reached again" in rank.expect("warned").data
        last = 100 + max(rank.last("trained") for rank in started)
        for rank in started:
            rank.tell("enough", last)
        steps = {rank.result() for rank in started}
    assert steps == {last}
    work.check_rows(work.rows_of(run_dir), work.labels(last), world_size)
    assert not any((run_dir / "spool").glob("*"))


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_was_stopped_catches_up(tmp_path: Path, rank: int) -> None:
    """Stopped in a round: named after the time-out; no record is missing or doubled afterwards."""
    _stop(tmp_path, Fault(rank, "sum", "stop"))
