"""Which rank this process is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import comm
from distmetrics.errors import NotInitialized
from distmetrics.testing import run_ranks_in_process
from tests.comm.forks import by_hand, fork, run_together


def queries() -> tuple[Any, ...]:
    """What the queries say."""
    return (
        comm.get_rank(),
        comm.get_world_size(),
        comm.get_local_rank(),
        comm.get_local_size(),
        comm.is_main_process(),
    )


def test_without_a_group_it_is_rank_0_of_1() -> None:
    """C57: nothing raises, and no group is made."""
    assert queries() == (0, 1, 0, 1, True)
    comm.synchronize()
    assert comm.cpu_group() is None
    assert not dist.is_initialized()


def test_each_process_has_its_own_rank() -> None:
    """The group's numbers, and the launcher's place on the node."""
    assert run_together(queries, 3) == [(rank, 3, rank, 3, rank == 0) for rank in range(3)]


def test_threads_as_ranks_have_their_own_numbers() -> None:
    """The same functions within an in-process world, on one node."""
    found = run_ranks_in_process(queries, 3)
    assert found == [(rank, 3, rank, 3, rank == 0) for rank in range(3)]
    assert queries() == (0, 1, 0, 1, True)


def test_threads_as_ranks_synchronize() -> None:
    """Nobody leaves before the last has come."""
    came: list[int] = []

    def rank() -> int:
        came.append(comm.get_rank())
        comm.synchronize()
        return len(came)

    assert run_ranks_in_process(rank, 4) == [4] * 4


def test_threads_as_ranks_need_no_set_up() -> None:
    """A training function that sets up and cleans up runs on them as it is."""

    def run() -> tuple[str, int, int, int]:
        env = comm.setup_distributed()
        comm.cleanup_distributed()
        with pytest.raises(NotInitialized, match="threads"):
            comm.CommContext().init_distributed_env()
        return env.launcher, env.rank, env.local_rank, comm.get_world_size()

    assert run_ranks_in_process(run, 2) == [("in-process", rank, rank, 2) for rank in range(2)]


def test_ranks_within_a_group_are_its_own() -> None:
    """And -1 outside it, as in PyTorch."""

    def run() -> tuple[int, int]:
        group = dist.new_group([1, 2])
        return comm.get_rank(group), comm.get_world_size(group)

    assert run_together(run, 3) == [(-1, -1), (0, 2), (1, 2)]


def test_the_cpu_side_of_a_gloo_group_is_the_group() -> None:
    """No group is made where the default one takes CPU tensors."""

    def run() -> bool:
        return comm.cpu_group() is dist.group.WORLD

    assert run_together(run, 2) == [True, True]


def test_a_group_without_cpu_backend_gets_a_gloo_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """C48: made once, with the same ranks; also for a part of the ranks, by its members alone."""
    monkeypatch.setattr("distmetrics.comm.cpu.has_cpu_backend", lambda _: False)

    def run() -> list[Any]:
        everyone, pair = dist.group.WORLD, dist.new_group([0, 2])
        found: list[Any] = [comm.all_gather(comm.get_rank())]
        twin = comm.cpu_group()
        assert twin is comm.cpu_group() is not everyone
        found.append(comm.all_gather(comm.get_rank(), pair))
        total = torch.ones(1)
        if comm.get_rank() != 1:
            dist.broadcast(total.fill_(comm.get_rank()), src=2, group=comm.cpu_group(pair))
        return [*found, total.item()]

    assert run_together(run, 3) == [
        [[0, 1, 2], [0, 2], 2.0],
        [[0, 1, 2], [], 1.0],
        [[0, 1, 2], [0, 2], 2.0],
    ]


def test_a_barrier_on_nccl_names_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """C98: it guesses none, so it does not warn; the interface of torch's own barrier is kept."""
    given: list[Any] = []

    def barrier(
        group: Any = None, async_op: bool = False, device_ids: list[int] | None = None
    ) -> None:
        given.append(device_ids)

    def run() -> list[Any]:
        monkeypatch.setattr(dist, "get_backend_config", lambda _: "cuda:nccl")
        monkeypatch.setattr(dist, "barrier", barrier)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
        comm.synchronize()
        return given

    assert run_together(run, 2) == [[[5]], [[5]]]


def test_a_lone_rank_of_a_group_waits_for_nobody() -> None:
    """World size 1 with a group: the barrier returns at once and warns of nothing."""

    def run() -> int:
        dist.init_process_group("gloo")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            comm.synchronize()
        return len(caught)

    assert fork(run, by_hand(1)) == [0]
