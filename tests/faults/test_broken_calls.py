"""A round breaks while all ranks wait in a call: it returns the same on every rank, once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.comm.inprocess import InProcess
from distmetrics.errors import PeerLostError
from distmetrics.testing import run_ranks_in_process
from tests.faults import work
from tests.faults.train import logger_of

WORLD_SIZE = 3
STEPS = 7  # the last window is open when the calls come


class _Break:
    """On one rank a collective fails after it has ended for the others, the n-th since `arm`."""

    def __init__(self, patch: pytest.MonkeyPatch, victim: int, collective: int) -> None:
        self.victim, self.left, self.armed, self.reached = victim, collective, False, False
        self._lock = threading.Lock()
        for name in ("all_reduce", "all_gather"):
            patch.setattr(InProcess, name, self._failing(getattr(InProcess, name)))

    def arm(self) -> None:
        """Count from now on."""
        self.armed = True

    def _failing(self, original: Any) -> Any:
        def collective(communicator: InProcess, *args: Any) -> Any:
            result = original(communicator, *args)
            if self.armed and communicator.rank == self.victim:
                with self._lock:
                    self.left -= 1
                    if self.left == 0:
                        self.reached = True
                        raise PeerLostError("a planted fault")
            return result

        return collective


def _call(run_dir: Path, broken: _Break | None) -> dict[str, Any]:
    """Every kind of call that waits, twice; what each returned."""
    rank = dm.get_rank()
    logger = logger_of(run_dir, peer_timeout=20.0)
    found: dict[str, Any] = {}
    for number in range(2):
        for step in range(number * STEPS, (number + 1) * STEPS):
            logger.log(work.outputs(rank, step), step=step)
        if broken is not None and rank == broken.victim and not number:
            broken.arm()
        found[f"reduce {number}"] = logger.reduce({"seen": 10**number})
        found[f"state {number}"] = logger.state_dict()
        found[f"flush {number}"] = logger.flush(wait=True)
        found[f"latest {number}"] = dict(logger.latest)
    logger.close()
    return found


def _without_times(found: dict[str, Any]) -> dict[str, Any]:
    """Without what an open window holds of the clock."""
    for name, value in found.items():
        if name.startswith("state"):
            for stream in value["streams"].values():
                stream["seconds"] = 0
    return found


def _check(tmp_path: Path, victim: int, collectives: range) -> int:
    """Break at each of these collectives; how many of them there are."""
    (whole, *_) = run_ranks_in_process(_call, WORLD_SIZE, tmp_path / "whole", None)
    reached = 0
    for collective in collectives:
        run_dir = tmp_path / f"broken{collective}"
        with pytest.MonkeyPatch.context() as patch:
            broken = _Break(patch, victim, collective)
            found = run_ranks_in_process(_call, WORLD_SIZE, run_dir, broken)
        reached += broken.reached
        assert found[0] == found[1] == found[2], (victim, collective)
        assert _without_times(found[0]) == _without_times(whole), (victim, collective)
        rows, want = work.rows_of(run_dir), work.rows_of(tmp_path / "whole")
        assert [(row.window, row.values) for row in rows] == [
            (row.window, row.values) for row in want
        ]
    return reached


@pytest.mark.parametrize(("victim", "first"), [(0, 4), (1, 9)])
def test_calls_return_the_same_after_a_broken_round(
    tmp_path: Path, victim: int, first: int
) -> None:
    """Those that have returned on the other ranks return on this one, with the same values."""
    assert _check(tmp_path, victim, range(first, first + 3)) == 3


@pytest.mark.heavy
@pytest.mark.parametrize("victim", [0, 2])
def test_calls_return_the_same_wherever_a_round_breaks(tmp_path: Path, victim: int) -> None:
    """As above, at every collective of the calls."""
    assert _check(tmp_path, victim, range(1, 40)) > 12
