"""What `distmetrics doctor` looks at: the launch, the machine, the connections of the ranks."""

from __future__ import annotations

import os
import platform
import socket
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from distmetrics.comm import address
from distmetrics.comm.cpu import cpu_group
from distmetrics.comm.device import device_index, visible_devices
from distmetrics.comm.groups import try_group
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.objects import all_gather
from distmetrics.comm.rendezvous import reachable_address, uses_agent_store
from distmetrics.comm.setup import cleanup_distributed, setup_distributed
from distmetrics.comm.world import World, current_world
from distmetrics.errors import DistmetricsError, LaunchError

_ROUNDS, _WARM_UP = 30, 5


@dataclass
class Diagnosis:
    """What was seen and what is wrong with it.

    Attributes:
        rank: this process's rank, as far as it is known.
        world_size: the number of ranks.
        sections: title to rows; a row is a name and what there is to say.
        notes: worth knowing, and no fault.
        problems: what keeps the ranks from working together, each with its remedy.
    """

    rank: int = 0
    world_size: int = 1
    sections: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def diagnose(environ: Mapping[str, str] | None = None) -> Diagnosis:
    """What this process can see by itself.

    Ranks: local.
    Collective: none.
    """
    variables = os.environ if environ is None else environ
    found = Diagnosis()
    env = _launch(found, variables)
    _versions(found)
    _devices(found, env, variables)
    _addresses(found, env, variables)
    return found


def _launch(found: Diagnosis, environ: Mapping[str, str]) -> LaunchEnv | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the notes are told below
            env = LaunchEnv.detect(environ)
    except LaunchError as error:
        found.problems.append(str(error))
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "SLURM_", "TORCHELASTIC_")
        rows = [(name, value) for name, value in environ.items() if name.startswith(names)]
        found.sections["variables of the launcher"] = sorted(rows)
        return None
    found.rank, found.world_size = env.rank, env.world_size
    found.notes.extend(env.notes)
    sizes = "+".join(str(size) for size in env.ranks_per_node) or "told when the ranks meet"
    shown = {
        "launcher": env.launcher,
        "rank": env.rank,
        "world_size": env.world_size,
        "local_rank": env.local_rank,
        "local_world_size": env.local_world_size,
        "node_rank": env.node_rank,
        "ranks_per_node": sizes,
        "master_addr": env.master_addr,
        "master_port": env.master_port,
        "job_id": env.job_id,
    }
    found.sections["launch"] = [
        (name, f"{value}{f'  ({env.sources[name]})' if name in env.sources else ''}")
        for name, value in shown.items()
    ]
    return env


def _versions(found: Diagnosis) -> None:
    available = dist.is_available()
    gloo, nccl = available and dist.is_gloo_available(), available and dist.is_nccl_available()
    nccl_version = "not in this build"
    if nccl:
        nccl_version = ".".join(str(part) for part in torch.cuda.nccl.version())
    found.sections["versions"] = [
        ("python", platform.python_version()),
        ("torch", str(torch.__version__)),
        ("CUDA", str(torch.version.cuda or "not in this build")),
        ("NCCL", nccl_version),
        ("Gloo", "available" if gloo else "not in this build"),
    ]
    if not gloo:
        found.problems.append(
            "this build of torch has no Gloo, over which metrics and objects travel: install "
            "another build of torch"
        )


def _devices(found: Diagnosis, env: LaunchEnv | None, environ: Mapping[str, str]) -> None:
    identities = visible_devices()
    rows = [
        (f"cuda:{index}", f"{torch.cuda.get_device_name(index)} {identity}")
        for index, identity in enumerate(identities)
    ]
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    rows.append(("CUDA_VISIBLE_DEVICES", "not set" if visible is None else repr(visible)))
    rows.append(("CPUs", str(os.cpu_count())))
    if env is not None:
        try:
            index = device_index(env.local_rank, len(identities), env.local_world_size)
        except LaunchError as error:
            found.problems.append(str(error))
        else:
            rows.append(("this rank's", "cpu" if index is None else f"cuda:{index}"))
    found.sections["devices"] = rows
    if torch.version.cuda and not identities:
        found.notes.append(
            "torch was built with CUDA but sees no device (driver, or CUDA_VISIBLE_DEVICES): the "
            "ranks use Gloo on the CPU"
        )


def _addresses(found: Diagnosis, env: LaunchEnv | None, environ: Mapping[str, str]) -> None:
    host = socket.gethostname()
    rows = [("this host", f"{host} -> {address.resolve_address(host)}")]
    interface = environ.get("GLOO_SOCKET_IFNAME")
    if interface:
        rows.append(("GLOO_SOCKET_IFNAME", interface))
        known = [name for _, name in socket.if_nameindex()]
        missing = [name for name in interface.split(",") if name not in known]
        if missing:
            found.problems.append(
                f"GLOO_SOCKET_IFNAME names {', '.join(missing)}, but this host has "
                f"{', '.join(known)}: correct it or unset it"
            )
    elif address.is_loopback(host):
        rows[0] = ("this host", f"{host} -> the loopback")
        found.notes.append(
            f"the name of this host ({host}) resolves to the loopback: with several hosts, correct "
            "/etc/hosts or set GLOO_SOCKET_IFNAME (setup_distributed sets it if it can)"
        )
    if env is not None and env.world_size > 1:
        rows.append(_master(found, env, environ))
    found.sections["addresses"] = rows


def _master(found: Diagnosis, env: LaunchEnv, environ: Mapping[str, str]) -> tuple[str, str]:
    if env.master_addr is None or env.master_port is None:
        if not uses_agent_store(environ):
            found.problems.append(
                f"{env.world_size} ranks do not know where to meet: set MASTER_ADDR to the host of "
                "rank 0 and MASTER_PORT to a free port there"
            )
        return ("ranks meet at", "not known")
    reachable = reachable_address(env.master_addr)
    if not address.resolves(reachable):
        found.problems.append(
            f"the name {env.master_addr!r} ({env.sources['master_addr']}) does not resolve on this "
            "host: set MASTER_ADDR to an address, or correct the name service"
        )
    return ("ranks meet at", f"{env.master_addr}:{env.master_port} -> {reachable}")


@dataclass(frozen=True)
class RankReport:
    """What one rank saw of the connections.

    Times are in microseconds, of an all-reduce of one number.
    """

    rank: int
    host: str
    node: int
    device: str
    median: float
    slowest: float
    cpu_median: float
    problems: tuple[str, ...]


def try_connections(found: Diagnosis, timeout: float) -> list[RankReport]:
    """Set up, all-reduce on every group, and report each rank to all; problems go to `found`.

    Ranks: all.
    Collective: `setup_distributed`, some forty all-reduces on each of the default, CPU and node
        groups, an all-gather; everything is taken down again.
    """
    try:
        env = setup_distributed(timeout=timeout)
    except (DistmetricsError, RuntimeError) as error:
        found.problems.append(f"the ranks could not connect: {error}")
        return []
    try:
        if env.world_size == 1:
            found.notes.append("a single process has nobody to talk to: use torchrun or srun")
            return []
        world = current_world()
        assert world is not None
        reports = all_gather(_try_groups(world), timeout=timeout)
    except (DistmetricsError, RuntimeError) as error:
        found.problems.append(f"the ranks met, but their collectives fail: {error}")
        return []
    finally:
        cleanup_distributed()
    for report in reports:
        found.problems.extend(f"rank {report.rank}: {problem}" for problem in report.problems)
    return reports


def _try_groups(world: World) -> RankReport:
    """Each group's sums, and the time of a small all-reduce."""
    rank, everyone = world.env.rank, range(world.env.world_size)
    helper = cpu_group()
    assert helper is not None
    problems: list[str] = []
    for group, ranks in (
        (world.group, everyone),
        (helper, everyone),
        (world.node_group, sorted(world.nodes.of(rank))),
    ):
        try:
            try_group(group, ranks, rank)
        except DistmetricsError as error:
            problems.append(str(error))
    times = _timed(lambda tensor: world.group.allreduce([tensor]).wait(), world.device)
    cpu_times = _timed(lambda tensor: helper.allreduce([tensor]).wait(), torch.device("cpu"))
    return RankReport(
        rank=rank,
        host=socket.gethostname(),
        node=world.env.node_rank,
        device=str(world.device),
        median=statistics.median(times),
        slowest=max(times),
        cpu_median=statistics.median(cpu_times),
        problems=tuple(problems),
    )


def _timed(reduce: Callable[[torch.Tensor], object], device: torch.device) -> list[float]:
    """Microseconds of each of some all-reduces of one number."""
    times = []
    for index in range(_WARM_UP + _ROUNDS):
        tensor = torch.ones(1, dtype=torch.float64, device=device)
        began = time.perf_counter()
        reduce(tensor)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if index >= _WARM_UP:
            times.append((time.perf_counter() - began) * 1e6)
    return times
