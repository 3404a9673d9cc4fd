"""Making the default process group and taking it down, in forked processes."""

from __future__ import annotations

import logging
import os
import signal
import time
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import comm
from distmetrics.comm import setup
from distmetrics.comm.world import current_world
from distmetrics.errors import DistmetricsWarning, InvalidValue, LaunchError
from tests.comm.forks import by_hand, fork, free_port


def place() -> tuple[Any, ...]:
    """Set up, and this rank's place as the queries tell it."""
    env = comm.setup_distributed(timeout=30)
    total = torch.ones(1)
    dist.all_reduce(total)
    group = comm.get_local_group()
    assert group is not None
    peers = comm.all_gather(comm.get_rank(), group)
    comm.synchronize()
    found = (
        env.ranks_per_node,
        env.node_rank,
        comm.get_local_rank(),
        comm.get_local_size(),
        peers,
        int(total.item()),
    )
    comm.cleanup_distributed()
    return found


def test_ranks_by_hand_find_each_other_and_their_node() -> None:
    """RANK, WORLD_SIZE and MASTER_* alone: the node comes from the host."""
    assert fork(place, by_hand(3)) == [((3,), 0, rank, 3, [0, 1, 2], 3) for rank in range(3)]


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        ([0, 0, 0, 1], (3, 1)),
        ([0, 1, 2, 0, 0], (3, 1, 1)),
        ([1, 0, 0, 1], (2, 2)),
    ],
    ids=["uneven", "cyclic", "arbitrary"],
)
def test_node_groups_are_right_for_any_placement(nodes: list[int], sizes: tuple[int, ...]) -> None:
    """Groups of nodes come from gathered node ids."""
    environs = by_hand(len(nodes))
    for rank, node in enumerate(nodes):
        environs[rank] |= {"NODE_RANK": str(node), "LOCAL_RANK": str(nodes[:rank].count(node))}
    for rank, found in enumerate(fork(place, environs)):
        peers = [peer for peer, node in enumerate(nodes) if node == nodes[rank]]
        local = peers.index(rank)
        assert found == (sizes, nodes[rank], local, len(peers), peers, len(nodes))


def test_explicit_arguments_need_no_variable() -> None:
    """Rank, world size and the place to meet as arguments."""
    port = free_port()

    def run() -> tuple[str, int]:
        rank = int(os.environ["MY_RANK"])
        env = comm.setup_distributed(
            "gloo", 30, rank=rank, world_size=2, master_addr="127.0.0.1", master_port=port
        )
        return env.launcher, comm.get_world_size()

    assert fork(run, [{"MY_RANK": "0"}, {"MY_RANK": "1"}]) == [("explicit", 2)] * 2


def test_a_second_call_returns_the_same_and_refuses_another_world() -> None:
    """Idempotent, but not blind."""

    def run() -> tuple[bool, str]:
        env = comm.setup_distributed(timeout=30)
        group = dist.group.WORLD
        same = comm.setup_distributed() is env and dist.group.WORLD is group
        with pytest.raises(LaunchError, match="cleanup_distributed") as caught:
            comm.setup_distributed(rank=0, world_size=7)
        return same, str(caught.value)

    for same, text in fork(run, by_hand(2)):
        assert same
        assert "world_size=7" in text or "rank=0" in text


def test_set_up_again_after_cleanup() -> None:
    """On the same port, as often as wanted."""

    def run() -> list[int]:
        sums = []
        for _ in range(3):
            comm.setup_distributed(timeout=30)
            sums.append(sum(comm.all_gather(comm.get_rank())))
            comm.cleanup_distributed()
            comm.cleanup_distributed()
            sums.append(comm.get_world_size())
        return sums

    assert fork(run, by_hand(3)) == [[3, 1] * 3] * 3


def test_a_single_process_gets_no_group(caplog: pytest.LogCaptureFixture) -> None:
    """C57: nothing is made behind the user's back; one line says what was found."""
    with caplog.at_level(logging.INFO, "distmetrics"):
        env = comm.setup_distributed()
        assert comm.setup_distributed() is env
    assert (env.world_size, env.ranks_per_node) == (1, (1,))
    assert not dist.is_initialized()
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (0, 1, 0)
    assert comm.all_gather("a") == ["a"]
    assert comm.get_local_group() is None
    assert len(caplog.records) == 1
    comm.synchronize()
    comm.cleanup_distributed()
    assert current_world() is None


def test_one_line_on_rank_0_tells_what_was_found() -> None:
    """World size, nodes, backend, and the variables they came from."""

    def run() -> list[str]:
        lines: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                lines.append(record.getMessage())

        logger = logging.getLogger("distmetrics")
        logger.addHandler(Keep())
        logger.setLevel(logging.INFO)
        comm.setup_distributed(timeout=30)
        return lines

    first, second = fork(run, by_hand(2))
    assert second == []
    assert len(first) == 1
    for part in ("2 ranks on 1 node (2)", "gloo", "RANK", "WORLD_SIZE", "127.0.0.1"):
        assert part in first[0]


def test_absent_ranks_are_named() -> None:
    """The rendezvous ends in bounded time and says who is missing."""
    environs = by_hand(4)
    began = time.monotonic()
    results = fork(lambda: comm.setup_distributed(timeout=2).rank, [environs[0], environs[2]])
    assert time.monotonic() - began < 20
    for result in results:
        assert result.startswith("PeerTimeoutError: setup_distributed: ranks 1 and 3 of 4")


def test_an_absent_server_is_named() -> None:
    """Without rank 0 nobody serves the store: the address is in the message."""
    (result,) = fork(lambda: comm.setup_distributed(timeout=1).rank, [by_hand(2)[1]])
    assert result.startswith("PeerTimeoutError: nobody answered at 127.0.0.1:")
    assert "MASTER_ADDR" in result


def test_ranks_that_are_waited_for_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, on one rank, while the others still may come."""
    monkeypatch.setattr(setup, "_NOTICE_AFTER", 0.2)

    def run() -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with pytest.raises(TimeoutError):
                comm.setup_distributed(timeout=1.5)
        return [str(each.message) for each in caught]

    first, second = fork(run, by_hand(3)[:2])
    assert first == ["setup_distributed waits for rank 2 of 3"]
    assert second == []


def test_a_taken_port_is_named() -> None:
    """Rank 0 says which port, and how to choose another."""
    taken = free_port()

    def run() -> str:
        import socket

        with socket.socket() as blocker:
            blocker.bind(("0.0.0.0", taken))
            blocker.listen()
            return str(comm.setup_distributed(timeout=5))

    (result,) = fork(run, by_hand(2, port=taken)[:1])
    assert result.startswith(f"LaunchError: port {taken} cannot be served")
    assert "MASTER_PORT" in result


def test_no_place_to_meet_names_what_to_set() -> None:
    """World size 2 without MASTER_ADDR."""
    (result,) = fork(comm.setup_distributed, [{"RANK": "0", "WORLD_SIZE": "2"}])
    assert result.startswith("LaunchError")
    assert "MASTER_ADDR is not set" in result


def test_a_backend_that_differs_between_ranks_is_the_same_error_on_all() -> None:
    """Instead of two ranks that wait for different handshakes."""
    environs = by_hand(2)
    environs[1]["MY_BACKEND"] = "gloo"
    results = fork(lambda: comm.setup_distributed(os.environ.get("MY_BACKEND"), 20), environs)
    assert results[0] == results[1]
    assert results[0].startswith("LaunchError: the ranks were asked for different backends")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_nccl_on_cpu_machines_is_gloo_with_a_warning() -> None:
    """The lack of a GPU is never an error."""

    def run() -> tuple[str, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            comm.setup_distributed("nccl", 30)
        return dist.get_backend(), [str(each.message) for each in caught]

    first, second = fork(run, by_hand(2))
    assert first[0] == second[0] == "gloo"
    assert "no CUDA device: Gloo is used" in first[1][0]
    assert second[1] == []


def test_a_group_made_elsewhere_is_taken_over() -> None:
    """Nodes are found over the group; the group stays the same."""

    def run() -> tuple[Any, ...]:
        dist.init_process_group("gloo", timeout=timedelta(seconds=30))
        group = dist.group.WORLD
        with pytest.raises(RuntimeError, match="setup_distributed"):
            comm.get_local_rank()
        with pytest.raises(RuntimeError, match="setup_distributed"):
            comm.get_local_group()
        env = comm.setup_distributed()
        assert dist.group.WORLD is group
        return env.ranks_per_node, comm.get_local_rank(), comm.get_local_size()

    assert fork(run, by_hand(2)) == [((2,), 0, 2), ((2,), 1, 2)]


def test_a_barrier_prints_no_warning() -> None:
    """C98: nothing on Gloo."""

    def run() -> int:
        comm.setup_distributed(timeout=30)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            comm.synchronize()
        return len(caught)

    assert fork(run, by_hand(2)) == [0, 0]


def test_cleanup_is_quick_when_a_peer_was_killed() -> None:
    """No rank waits for one that is gone."""

    def reduce_until_it_fails() -> None:
        while True:
            dist.all_reduce(torch.ones(1))

    def run() -> float:
        comm.setup_distributed(timeout=30)
        comm.synchronize()
        if comm.get_rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        with pytest.raises(RuntimeError):
            reduce_until_it_fails()
        began = time.monotonic()
        comm.cleanup_distributed()
        comm.cleanup_distributed()
        assert comm.get_world_size() == 1
        return time.monotonic() - began

    first, second, killed = fork(run, by_hand(3))
    assert (first < 5, second < 5) == (True, True)
    assert killed == "EOFError"


def test_cleanup_that_hangs_is_left_behind_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A backend that never returns costs the time-out and no more."""

    def run() -> tuple[float, list[str]]:
        comm.setup_distributed(timeout=30)
        monkeypatch.setattr(dist, "destroy_process_group", lambda: time.sleep(60))
        began = time.monotonic()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            comm.cleanup_distributed(timeout=0.2)
        return time.monotonic() - began, [str(each.message) for each in caught]

    for seconds, messages in fork(run, by_hand(2)):
        assert seconds < 5
        assert "not taken down within 0.2 s" in messages[0]


def test_cleanup_that_fails_is_told() -> None:
    """The backend's error becomes a warning."""

    def run() -> str:
        comm.setup_distributed(timeout=30)

        def fail() -> None:
            raise RuntimeError("no more")

        dist.destroy_process_group = fail
        with pytest.warns(DistmetricsWarning, match="no more"):
            comm.cleanup_distributed()
        return "ok"

    assert fork(run, by_hand(2)) == ["ok", "ok"]


def test_cleanup_without_a_group_does_nothing() -> None:
    """Also before any set-up."""
    comm.cleanup_distributed()


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), timedelta(0)])
def test_a_timeout_is_seconds_above_0(timeout: Any) -> None:
    """Before anything is made."""
    with pytest.raises(InvalidValue, match="timeout="):
        comm.setup_distributed(timeout=timeout)
