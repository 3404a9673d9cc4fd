from __future__ import annotations

import threading
from pathlib import Path

import pytest

import distmetrics as dm
from distmetrics.dashboard.follow import followed, has_writer
from distmetrics.errors import RunDirError
from tests.dashboard.runs import write_run

pytestmark = pytest.mark.timeout(60)


def test_a_run_is_followed_until_its_writer_is_gone(tmp_path: Path) -> None:
    """Each growth is seen, the last record too, and then it ends by itself."""
    run = tmp_path / "run"
    logger = dm.Logger(run_dir=run)
    logger.log({"loss": 1.0}, step=0)
    logger.flush(wait=True)
    assert has_writer(run)
    seen = []
    for subject in followed(run):
        last = subject.runs[0].last_step
        seen.append(last)
        if len(seen) == 1:
            logger.log({"loss": 0.5}, step=1)
            logger.close()
    assert seen[0] == 0
    assert seen[-1] == 1
    assert not has_writer(run)


def test_a_run_that_is_over_is_followed_until_one_stops(tmp_path: Path) -> None:
    """It may be resumed any time."""
    stop = threading.Event()
    states = followed(write_run(tmp_path / "run", steps=4), stop)
    assert next(states).runs[0].last_step == 3
    stop.set()
    assert list(states) == []


def test_nothing_to_follow_is_an_error(tmp_path: Path) -> None:
    """A path without a run is named."""
    with pytest.raises(RunDirError, match="no such file"):
        next(followed(tmp_path / "none"))
