"""Calls that need every rank, where ranks are in different ones or have closed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.testing import run_ranks_in_process
from tests.logger.ranks import records, values

CALLS: dict[str, Callable[[dm.Logger], Any]] = {
    "flush(wait=True)": lambda logger: logger.flush(wait=True),
    "reduce": lambda logger: logger.reduce({"x": dm.Count(1)}),
    "state_dict": lambda logger: logger.state_dict(),
    "flush(wait=True) of 'val'": lambda logger: logger.child("val").flush(wait=True),
}


@pytest.mark.parametrize("other", [call for call in CALLS if call != "flush(wait=True)"])
def test_ranks_that_wait_in_different_calls_name_each_other(other: str) -> None:
    """Each learns where the other was last and what it waits for, though both give up at once."""
    barrier = threading.Barrier(2)
    said: dict[int, dm.PeerTimeoutError] = {}

    def train(logger: dm.Logger) -> None:
        logger.log({"m": 1.0}, step=7)
        rank = dm.get_rank()
        barrier.wait(20)
        with pytest.raises(dm.PeerTimeoutError) as caught:
            CALLS[other if rank else "flush(wait=True)"](logger)
        said[rank] = caught.value
        barrier.wait(20)

    records(2, train, peer_timeout=1)
    first, second = str(said[0]), str(said[1])
    assert first.startswith("flush(wait=True) at step 7 (keys 'm'): rank 1 (last steps: rank 1: 7)")
    assert f"(waiting meanwhile: rank 1 in {other}); every rank must call it" in first
    assert "rank 0 (last steps: rank 0: 7)" in second
    assert "(waiting meanwhile: rank 0 in flush(wait=True)); every rank must call it" in second
    assert said[0].ranks == (1,)
    assert said[1].ranks == (0,)


def _after_a_rank_has_closed(train: Callable[[dm.Logger], object], world_size: int) -> None:
    """Let the last rank log three steps and close, and then all others four, before `train`."""
    first, closing = threading.Barrier(world_size), threading.Event()
    last = threading.Barrier(world_size - 1)

    def rank() -> None:
        mine = dm.get_rank()
        logger = dm.Logger(every=2)
        for step in range(3):
            logger.log({"n": dm.Count(1)}, step=step)
        first.wait(20)
        if mine == world_size - 1:
            closer = threading.Thread(target=logger.close)
            closer.start()
            closing.set()
            closer.join(20)
        else:
            assert closing.wait(20)
            logger.log({"n": dm.Count(1)}, step=3)
            while not logger._core._parts.worker._peers._closed:
                logger._core._parts.worker.wake()
            train(logger)
            last.wait(20)
            logger.close()

    run_ranks_in_process(rank, world_size, timeout=30)


def test_no_state_is_taken_once_a_rank_has_closed() -> None:
    """All ranks that are left learn which one it was: its part of open windows would be missing."""

    def train(logger: dm.Logger) -> None:
        for _ in range(2):
            with pytest.raises(dm.PeerLostError) as caught:
                logger.state_dict()
            assert "state_dict: rank 2 has closed its logger, and a state" in str(caught.value)
            assert caught.value.rank == 2

    _after_a_rank_has_closed(train, 3)


def test_a_waiting_flush_holds_all_that_a_closed_rank_has_logged() -> None:
    """Nothing of it is missing, so that there is nothing to warn of."""

    def train(logger: dm.Logger) -> None:
        assert logger.flush(wait=True) == {"n": 5 / 2}

    _after_a_rank_has_closed(train, 3)


def test_calls_match_again_after_ranks_were_in_different_ones() -> None:
    """What each had put into the call that failed is in none that follows."""
    barrier = threading.Barrier(2)

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=0)
        with pytest.raises(dm.PeerTimeoutError):
            CALLS["reduce" if dm.get_rank() else "state_dict"](logger)
        barrier.wait(20)
        assert logger.reduce({"x": dm.Count(1)}) == {"x": 2}
        assert logger.state_dict()["streams"][""]["latest"] == 0

    assert values(records(2, train, peer_timeout=1)) == [{"n": 2}]
