"""The link between two hosts is cut: each side names the other, and all catch up once it heals."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from distmetrics.spool.merge import merge
from tests.comm.hosts import Hosts, hosts, missing
from tests.faults import work
from tests.faults.ranks import Rank, ranks
from tests.faults.train import Lost, until_told

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(120),
    pytest.mark.skipif(bool(missing()), reason=missing() or "namespaces are there"),
]
HOSTS = ("dm1", "dm2")
PEER_TIMEOUT = 2.0
_NETWORK = 0x40000000  # CLONE_NEWNET


@contextlib.contextmanager
def _on_two_hosts(folder: Path, run_dir: Path, world_size: int) -> Iterator[tuple[Hosts, Any]]:
    """Ranks that train: the first half on one host, the second half on another."""
    half = world_size // 2
    with hosts(folder, HOSTS) as where:

        def enter(rank: int) -> None:
            libc = ctypes.CDLL(None, use_errno=True)
            name = HOSTS[rank >= half]
            with Path(f"/run/netns/{where.prefix}{name}").open("rb") as namespace:
                assert libc.setns(namespace.fileno(), _NETWORK) == 0
            os.environ["GLOO_SOCKET_IFNAME"] = "eth0"

        options = {"peer_timeout": PEER_TIMEOUT}
        master = where.addresses[HOSTS[0]]
        with ranks(
            world_size, until_told, run_dir, 0.01, None, options, prepare=enter, master=master
        ) as started:
            for rank in started:
                rank.expect("trained")
            yield where, started


def _link(where: Hosts, state: str) -> float:
    """Plug the cable of the second host in or out, at the switch; when."""
    subprocess.run(
        ["ip", "-n", f"{where.prefix}sw", "link", "set", "v1", state], check=True, timeout=20
    )
    return time.monotonic()


def _all_know(started: Sequence[Rank], at: float) -> None:
    """Every rank names ranks of the other side, soon after the time-out."""
    half = len(started) // 2
    for rank in started:
        said = rank.expect("lost")
        lost: Lost = said.data
        assert lost.rank in (range(half, 2 * half) if rank.rank < half else range(half))
        assert lost.step is not None
        assert lost.key == "loss"
        assert PEER_TIMEOUT * 0.5 < said.at - at < PEER_TIMEOUT + 10


def _end(started: Sequence[Rank]) -> int:
    last = 100 + max(rank.last("trained") for rank in started)
    for rank in started:
        rank.tell("enough", last)
    for rank in started:
        rank.result()
    return last


def test_a_cut_that_heals_leaves_no_trace(tmp_path: Path) -> None:
    """Both sides train on into their spools, connect again and catch up: all records, once."""
    run_dir = tmp_path / "run"
    with _on_two_hosts(tmp_path, run_dir, 4) as (where, started):
        at = _link(where, "down")
        _all_know(started, at)
        _link(where, "up")
        for rank in started:
            while "can be reached again" not in rank.expect("warned").data:
                pass
        last = _end(started)
    work.check_rows(work.rows_of(run_dir), work.labels(last), 4)
    assert not (run_dir / "spool").exists()


def test_a_cut_that_lasts_is_merged(tmp_path: Path) -> None:
    """Training ends on both sides without the other; nothing blocks, and the spools have all."""
    run_dir = tmp_path / "run"
    with _on_two_hosts(tmp_path, run_dir, 4) as (where, started):
        at = _link(where, "down")
        _all_know(started, at)
        last = _end(started)
    merge(run_dir)
    work.check_rows(work.rows_of(run_dir), work.labels(last), 4)


def test_a_short_cut_is_not_even_noticed(tmp_path: Path) -> None:
    """What heals before the time-out costs a pause of the records, and no word."""
    run_dir = tmp_path / "run"
    with _on_two_hosts(tmp_path, run_dir, 2) as (where, started):
        _link(where, "down")
        time.sleep(0.5)
        _link(where, "up")
        for rank in started:
            rank.expect("trained")
        last = _end(started)
        assert not any(said.what == "lost" for rank in started for said in rank.heard)
    work.check_rows(work.rows_of(run_dir), work.labels(last), 2)
