"""Where the ranks meet: the store, opened by the launcher's rules or by ours."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from distmetrics.comm.address import bare_host, resolve_address
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.slurm import expand_nodelist
from distmetrics.comm.slurm_task import SlurmTask
from distmetrics.errors import LaunchError, PeerTimeoutError


def open_store(env: LaunchEnv, timeout: float, environ: Mapping[str, str] | None = None) -> Store:
    """The store of all ranks: torchrun's own where it has one, else one that a rank serves.

    Ranks: all.
    Collective: none; the serving rank returns at once, the others when it is there.

    Raises:
        LaunchError: no address is known, or the port is taken.
        PeerTimeoutError: the serving rank did not come in time.
    """
    variables = os.environ if environ is None else environ
    if uses_agent_store(variables) and env.sources.get("master_addr") == "MASTER_ADDR":
        # the agent serves the store: a rank that served its own would leave the others waiting
        found = rendezvous("env://", env.rank, env.world_size, timeout=timedelta(seconds=timeout))
        store: Store = next(found)[0]
        return store
    if env.master_addr is None or env.master_port is None:
        missing = "MASTER_ADDR" if env.master_addr is None else "MASTER_PORT"
        raise LaunchError(
            f"{env.world_size} ranks ({env.launcher}) do not know where to meet: {missing} is not "
            "set; set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, or "
            "give master_addr and master_port"
        )
    host = reachable_address(env.master_addr)
    return serve_or_join(host, env.master_port, serves_store(env, variables), timeout)


def uses_agent_store(environ: Mapping[str, str]) -> bool:
    """True under torchrun, whose agent serves the store at MASTER_ADDR."""
    return environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def serves_store(env: LaunchEnv, environ: Mapping[str, str]) -> bool:
    """Whether this rank serves the store: rank 0, or under Slurm the first rank of the host.

    With arbitrary placement rank 0 may live on any node, but only the name of the first node is
    known to all ranks.
    """
    if env.launcher == "slurm" and env.master_addr is not None:
        nodelist = SlurmTask.read(environ).nodelist
        names = expand_nodelist(nodelist.text) if nodelist else []
        short = [name.split(".")[0] for name in names]
        host = env.master_addr if env.master_addr in names else env.master_addr.split(".")[0]
        if host in names or host in short:
            node = names.index(host) if host in names else short.index(host)
            return env.node_rank == node and env.local_rank == 0
    return env.rank == 0


def serve_or_join(host: str, port: int, serves: bool, timeout: float) -> Store:
    """A TCP store at this address, served by one process and joined by the others.

    Raises:
        LaunchError: the port is taken.
        PeerTimeoutError: nobody served it in time.
    """
    if not serves:
        timeout = _await_server(bare_host(host), port, timeout)
    try:
        return TCPStore(
            bare_host(host),
            port,
            None,
            serves,
            timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except dist.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        if serves:
            raise LaunchError(
                f"port {port} cannot be served on {socket.gethostname()}: set MASTER_PORT to a "
                f"free port ({reason})"
            ) from error
        raise PeerTimeoutError(f"the store at {host}:{port} did not answer ({reason})") from error


def is_served(host: str, port: int) -> bool:
    """True if something listens there."""
    try:
        socket.create_connection((bare_host(host), port), timeout=10.0).close()
    except OSError:
        return False
    return True


def _await_server(host: str, port: int, timeout: float) -> float:
    """Wait until something listens there; the seconds that are left.

    Trying with a plain socket gives a short message: the store's own attempts print stack traces.
    """
    deadline = time.monotonic() + timeout
    pause = 0.02
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((host, port), timeout=max(0.1, min(left, 10.0))).close()
        except OSError as error:
            if left <= 0:
                raise PeerTimeoutError(
                    f"nobody answered at {host}:{port} within {timeout:g} s ({error}): is rank 0 "
                    "running, is MASTER_ADDR its host, and is the port open between the hosts?",
                    [0],
                ) from error
        else:
            return max(1.0, left)
        time.sleep(min(pause, max(0.0, left)))
        pause = min(pause * 1.5, 1.0)


def reachable_address(host: str) -> str:
    """The address of a host name; one that only Slurm knows is looked up there."""
    address = resolve_address(host)
    if address != host or address.replace(".", "").isdigit():
        return address
    known = _slurm_address(host)
    return resolve_address(known) if known else host


def _slurm_address(node: str) -> str | None:
    """The address that Slurm has for a node of this name."""
    scontrol = shutil.which("scontrol")
    if scontrol is None or "SLURM_JOB_ID" not in os.environ:
        return None
    command = [scontrol, "--oneliner", "show", "node", node]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None  # the name stands as it is, and what fails then names it
    fields = dict(field.split("=", 1) for field in shown.stdout.split() if "=" in field)
    return fields.get("NodeAddr") or None
