"""Where the ranks meet."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distmetrics.comm import LaunchEnv, rendezvous, setup
from distmetrics.comm.rendezvous import is_served, open_store, reachable_address, serves_store
from distmetrics.comm.roster import Member
from distmetrics.errors import LaunchError, PeerTimeoutError
from tests.comm.forks import free_port

STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1,2",
    "SLURM_STEP_NODELIST": "n[1,3]",
}


def task(rank: int, node: int, local: int, **more: str) -> dict[str, str]:
    """The variables of a task."""
    place = {"SLURM_PROCID": rank, "SLURM_NODEID": node, "SLURM_LOCALID": local}
    return STEP | {name: str(value) for name, value in place.items()} | more


@pytest.mark.parametrize(
    ("address", "servers"),
    [("", [1]), ("n3", [0]), ("n3.cluster.local", [0]), ("10.0.0.1", [0]), ("n1", [1])],
)
def test_one_rank_serves_and_it_is_on_the_host(address: str, servers: list[int]) -> None:
    """Under Slurm the first rank of the named node, else rank 0; here rank 0 lives on n3."""
    tasks = [task(0, 1, 0), task(1, 0, 0), task(2, 1, 1)]
    environs = [each | ({"MASTER_ADDR": address} if address else {}) for each in tasks]
    serving = [serves_store(LaunchEnv.detect(each), each) for each in environs]
    assert [rank for rank, serves in enumerate(serving) if serves] == servers


def test_without_slurm_rank_0_serves() -> None:
    """Whatever the host is called."""
    env = LaunchEnv("env", 0, 2, master_addr="n1", master_port=1, local_world_size=2)
    assert serves_store(env, {})
    assert not serves_store(replace(env, rank=1), {})


def scontrol(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `scontrol` of the test's own on the path."""
    path = folder / "scontrol"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")


def test_a_node_that_only_slurm_knows_is_looked_up_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of nodes need not be names of hosts."""
    line = 'echo "NodeName=$4 Arch=x86_64 NodeAddr=10.9.8.7 NodeHostName=h OS=Linux 1 x"'
    scontrol(tmp_path, line, monkeypatch)
    assert reachable_address("node-without-name.invalid") == "10.9.8.7"
    monkeypatch.delenv("SLURM_JOB_ID")
    assert reachable_address("node-without-name.invalid") == "node-without-name.invalid"


@pytest.mark.parametrize("script", ["exit 1", "echo nothing of use", "echo NodeAddr="])
def test_a_name_that_nobody_knows_stands(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails then names it."""
    scontrol(tmp_path, script, monkeypatch)
    assert reachable_address("node-without-name.invalid") == "node-without-name.invalid"


def test_literal_addresses_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address is an address."""
    monkeypatch.setattr(rendezvous, "_slurm_address", lambda _: pytest.fail("looked up"))
    assert reachable_address("10.0.0.1") == "10.0.0.1"


def test_an_unreachable_store_is_named_within_the_time() -> None:
    """Address, time, and what may be wrong."""
    env = LaunchEnv("env", 1, 2, 1, 2, master_addr="127.0.0.1", master_port=free_port())
    with pytest.raises(PeerTimeoutError, match=rf"127.0.0.1:{env.master_port} within 0.2 s"):
        open_store(env, 0.2, {})


def test_what_listens_is_told_from_what_does_not() -> None:
    """A port is served or free."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        assert not is_served("127.0.0.1", port)
        server.listen()
        assert is_served("127.0.0.1", port)


def lost_hosts(interface: str | None) -> list[Member]:
    """Rank 0 on a host whose name leads outside, rank 1 on one whose name does not."""
    reachable = Member(0, "a", host="a", network="1", interface="eth0")
    lost = Member(1, "b", host="b", network="2", loopback=True, interface=interface)
    return [reachable, lost]


def test_gloo_is_led_out_of_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the rank that needs it, with a note on what to correct."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    for rank, expected in ((0, None), (1, "eth1")):
        (note,) = setup._make_gloo_reachable(lost_hosts("eth1"), rank)
        assert "rank 1" in note
        assert "/etc/hosts" in note
        assert os.environ.get("GLOO_SOCKET_IFNAME") == expected
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")


def test_no_way_out_of_the_loopback_is_the_same_error_on_all_ranks() -> None:
    """It names the host and the remedy."""
    for rank in (0, 1):
        with pytest.raises(LaunchError, match=r"rank 1's host \(b\).*GLOO_SOCKET_IFNAME"):
            setup._make_gloo_reachable(lost_hosts(None), rank)


def test_one_machine_needs_no_way_out() -> None:
    """All ranks share one loopback."""
    ranks: list[Any] = [replace(each, network="1", loopback=True) for each in lost_hosts(None)]
    assert setup._make_gloo_reachable(ranks, 0) == ()
