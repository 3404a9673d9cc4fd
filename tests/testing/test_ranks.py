"""`run_ranks` and `run_ranks_in_process`: results, errors, time limits, and what they leave."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics.testing import run_ranks, run_ranks_in_process
from distmetrics.testing.processes import RankError

Run = Callable[..., list[Any]]
BOTH = pytest.mark.parametrize("run", [run_ranks, run_ranks_in_process])


class Unpicklable(Exception):
    """An error that cannot be sent from one process to another."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
        self.lock = threading.Lock()


@BOTH
@pytest.mark.parametrize("world_size", [1, 3])
def test_results_come_in_rank_order(run: Run, world_size: int) -> None:
    """Each rank knows itself, gets the arguments, and may be a local function."""

    def rank(factor: int, offset: int) -> tuple[int, int]:
        return dm.get_rank() * factor + offset, dm.get_world_size()

    expected = [(rank * 10 + 1, world_size) for rank in range(world_size)]
    assert run(rank, world_size, 10, 1) == expected


@BOTH
def test_an_error_comes_back_as_it_was_with_its_rank(run: Run) -> None:
    """Its type, its text and a note that names the rank."""

    def rank() -> None:
        if dm.get_rank() == 1:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as caught:
        run(rank, 3)
    notes = getattr(caught.value, "__notes__", ["raised on rank 1"])
    assert "raised on rank 1" in notes


@BOTH
def test_ranks_that_do_not_end_in_time_are_named(run: Run) -> None:
    """The others' results do not help."""

    def rank() -> None:
        if dm.get_rank() == 1:
            released.wait(30)

    released = threading.Event()
    with pytest.raises(TimeoutError, match="rank 1 of 3 did not end within 2 s"):
        run(rank, 3, timeout=2)
    released.set()


def test_processes_have_the_environment_of_a_launcher() -> None:
    """A Gloo group, one thread, and the variables that code reads."""

    def rank() -> dict[str, Any]:
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        return {
            "variables": [int(os.environ[name]) for name in names],
            "backend": dist.get_backend(),
            "threads": torch.get_num_threads(),
            "local": dm.get_local_rank(),
            "pid": os.getpid(),
        }

    found = run_ranks(rank, 2)
    for rank_, seen in enumerate(found):
        assert seen["variables"] == [rank_, 2, rank_, 2]
        assert (seen["backend"], seen["threads"], seen["local"]) == ("gloo", 1, rank_)
    assert len({seen["pid"] for seen in found} | {os.getpid()}) == 3
    assert not dist.is_initialized()


def test_threads_are_ranks_for_this_package_only() -> None:
    """torch.distributed knows nothing of them, nor does the caller's thread."""

    def rank() -> tuple[int, int, bool]:
        return dm.get_rank(), dm.get_world_size(), dist.is_initialized()

    assert run_ranks_in_process(rank, 2) == [(0, 2, False), (1, 2, False)]
    assert (dm.get_rank(), dm.get_world_size()) == (0, 1)


def test_no_process_outlives_the_call() -> None:
    """Neither after an error nor after a time-out."""
    before = {child.pid for child in psutil.Process().children(recursive=True)}

    def fail() -> None:
        if dm.get_rank() == 0:
            raise ValueError("one rank fails")
        time.sleep(60)

    with pytest.raises(ValueError, match="one rank fails"):
        run_ranks(fail, 3)
    with pytest.raises(TimeoutError):
        run_ranks(time.sleep, 2, 60, timeout=1)
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert after <= before


def test_a_rank_that_dies_is_an_error_with_its_exit_code() -> None:
    """Where no exception comes back, the message tells how the process ended."""

    def rank() -> None:
        if dm.get_rank() == 1:
            os._exit(7)

    with pytest.raises(RankError, match=r"rank 1 ended without a result \(exit code 7\)"):
        run_ranks(rank, 2)


def test_an_error_that_cannot_be_sent_comes_back_by_its_text() -> None:
    """Its type and words are kept, and the traceback of its rank is its cause."""

    def rank() -> None:
        raise Unpicklable(1, 2)

    with pytest.raises(RankError, match="Unpicklable: 1 and 2") as caught:
        run_ranks(rank, 1)
    assert "raise Unpicklable(1, 2)" in str(caught.value.__cause__)


def test_a_result_that_cannot_be_sent_is_an_error() -> None:
    """It names the rank instead of leaving the caller waiting."""
    with pytest.raises(Exception, match="lock") as caught:
        run_ranks(threading.Lock, 1)
    assert "on rank 0" in str(caught.value.__cause__)


def test_ranks_in_threads_that_wait_for_one_that_failed_do_not_hang() -> None:
    """A collective of the others ends as soon as a rank has raised; its error is the one told."""

    def rank() -> None:
        if dm.get_rank() == 2:
            raise KeyError("rank 2 is out")
        with dm.Logger(start_timeout=60):
            pass

    began = time.monotonic()
    with pytest.raises(KeyError, match="rank 2 is out"):
        run_ranks_in_process(rank, 3)
    assert time.monotonic() - began < 10


def test_sets_of_ranks_do_not_disturb_each_other() -> None:
    """Threads of two runs at once meet only their own."""
    found: dict[str, Any] = {}

    def one(name: str, size: int) -> None:
        def rank() -> Any:
            with dm.Logger() as logger:
                return [logger.reduce({"n": dm.Count(1)})["n"] for _ in range(5)]

        found[name] = run_ranks_in_process(rank, size)

    threads = [threading.Thread(target=one, args=(f"run{size}", size)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {"run2": [[2] * 5] * 2, "run3": [[3] * 5] * 3}


@BOTH
@pytest.mark.parametrize("world_size", [0, -1, 2.0, "2"])
def test_there_is_at_least_one_rank(run: Run, world_size: Any) -> None:
    """A world without ranks is an error, not an empty list."""
    with pytest.raises(ValueError, match="world_size"):
        run(lambda: None, world_size)
