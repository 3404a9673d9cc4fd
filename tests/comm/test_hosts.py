"""Across several hosts, which are network namespaces of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.comm import launchers
from tests.comm.hosts import Hosts, hosts, missing

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(180),
    pytest.mark.skipif(bool(missing()), reason=missing() or "namespaces are there"),
]
QUIET = {"GLOO_SOCKET_IFNAME": "", "TP_SOCKET_IFNAME": ""}  # the tests' loopback does not lead out


def run_on(
    where: Hosts, commands: Sequence[tuple[str, Sequence[str], dict[str, str]]]
) -> list[dict[str, Any]]:
    """The reports of commands that run at the same time, each on a host."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                launchers.started(
                    where.command(host, command), launchers.environment(**QUIET, **more)
                )
            )
            for host, command, more in commands
        ]
        outputs = [process.communicate(timeout=90) for process in processes]
    found = launchers.reports(*(out for out, _ in outputs))
    assert found, [err for _, err in outputs]
    return found


def test_torchrun_on_two_hosts_with_the_master_as_a_host_name(tmp_path: Path) -> None:
    """Two nodes of different size over a virtual link."""
    with hosts(tmp_path, ["dm1", "dm2"]) as where:
        common = [*launchers.TORCHRUN, "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=j"]
        common += ["--rdzv-endpoint=dm1:29400"]
        found = run_on(
            where,
            [
                ("dm1", [*common, "--nproc-per-node=2", launchers.REPORT], {}),
                ("dm2", [*common, "--nproc-per-node=1", launchers.REPORT], {}),
            ],
        )
    sizes = found[0]["per_node"]
    assert sorted(sizes) == [1, 2]
    launchers.check(found, [list(range(sizes[0])), list(range(sizes[0], 3))])


@pytest.mark.parametrize("names_on_loopback", [False, True], ids=["names", "loopback names"])
def test_ranks_by_hand_on_two_hosts(tmp_path: Path, names_on_loopback: bool) -> None:
    """Nodes are told apart by host; also where each host's own name leads nowhere but to itself."""
    with hosts(tmp_path, ["dm1", "dm2"], names_on_loopback=names_on_loopback) as where:
        # the name that both hosts resolve alike is not dm1's own there
        address = where.addresses["dm1"] if names_on_loopback else "dm1"
        base = {"WORLD_SIZE": "3", "MASTER_ADDR": address, "MASTER_PORT": "29500"}
        python = [launchers.TORCHRUN[0], launchers.REPORT]
        found = run_on(
            where,
            [
                (host, python, {**base, "RANK": str(rank)})
                for rank, host in enumerate(["dm1", "dm2", "dm1"])
            ],
        )
    launchers.check(found, [[0, 2], [1]])
