"""What a training learns of other ranks: once, at its next call, and where it waits for them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import run_ranks_in_process
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import Lost, logger_of


def _call_beside_the_dead(life: Life, run_dir: Path, call: str, on_peer_lost: Any) -> list[Any]:
    """One rank dies while the other waits for it in a call; what that raises, twice."""
    logger = logger_of(run_dir, on_peer_lost=on_peer_lost)
    for step in range(10):
        logger.log(work.outputs(life.rank, step), step=step)
    logger.flush(wait=True)
    if life.rank == 1:
        time.sleep(0.2)
        life.die("waiting")
    calls = {
        "flush": lambda: logger.flush(wait=True),
        "reduce": lambda: logger.reduce({"seen": 1}),
        "state_dict": logger.state_dict,
    }
    raised: list[Any] = []
    for _ in range(2):
        began = time.monotonic()
        try:
            calls[call]()
        except dm.PeerLostError as error:
            raised.append((Lost.of(error), time.monotonic() - began))
    logger.log(work.outputs(0, 10), step=10)  # logging goes on all the same
    logger._core.leave()
    return raised


@pytest.mark.parametrize("call", ["flush", "reduce", "state_dict"])
def test_a_call_that_waits_for_a_dead_rank_raises(tmp_path: Path, call: str) -> None:
    """Soon, with the rank, whatever is asked for; and so does the next call."""
    with ranks(2, _call_beside_the_dead, tmp_path / "run", call, "warn") as (alive, _):
        raised = alive.result()
        warned = [said.data for said in alive.heard if said.what == "warned"]
    assert len(raised) == 2
    for lost, seconds in raised:
        assert lost.rank == 1
        assert lost.step == 9
        assert lost.key == "loss"
        assert seconds < 10
    assert sum("rank 1 is lost" in text for text in warned) <= 1


def _go_on_beside_the_dead(life: Life, run_dir: Path) -> None:
    logger = logger_of(run_dir, on_peer_lost="warn")
    logger.log(work.outputs(life.rank, 0), step=0)
    logger.flush(wait=True)
    if life.rank == 2:
        life.die("anywhere")
    for step in range(1, 200):
        time.sleep(0.01)
        logger.log(work.outputs(life.rank, step), step=step)
    logger.close()


def test_a_lost_rank_is_warned_of_once(tmp_path: Path) -> None:
    """By default it is no error: a warning at the next call, and no more of it later."""
    with ranks(3, _go_on_beside_the_dead, tmp_path / "run") as started:
        for rank in started[:2]:
            rank.result()
            warned = [said.data for said in rank.heard if said.what == "warned"]
            assert sum("rank 2 is lost" in text for text in warned) == 1
            assert len(warned) == 1


def _come_late(life: Life) -> None:
    if life.rank == 1:
        life.hear("go")
    dm.Logger(notice_after=0.2).close()


def test_a_rank_that_is_late_at_the_start_is_named_while_the_others_wait() -> None:
    """Not only when it is over."""
    with ranks(2, _come_late) as (waits, late):
        assert "waiting for rank 1 to make the same logger" in waits.expect("warned").data
        late.tell("go")
        waits.result()
        late.result()


def test_an_interrupted_call_waits_no_longer() -> None:
    """After an interrupt in a call that waits, the others do not take this rank for waiting."""
    found: dict[int, Any] = {}

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger() as logger:
            logger.log({"n": dm.Count(1)}, step=0)
            if rank == 0:
                core = logger._core
                say = core.notices.say

                def interrupt(text: str) -> None:
                    raise KeyboardInterrupt

                core.notices.say = interrupt  # type: ignore[method-assign]
                with pytest.raises(KeyboardInterrupt):
                    logger.flush(wait=True)
                core.notices.say = say  # type: ignore[method-assign]
                found["interrupted"] = True
            else:
                while "interrupted" not in found:
                    time.sleep(0.01)
            found[rank] = logger.reduce({"n": dm.Count(2)})

    with pytest.MonkeyPatch.context() as patch:
        logger_class = dm.Logger
        patch.setattr(dm, "Logger", lambda: logger_class(notice_after=0.1, peer_timeout=20))
        run_ranks_in_process(train, 2)
    assert found[0] == found[1] == {"n": 4}
