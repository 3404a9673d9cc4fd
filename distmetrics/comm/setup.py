"""Making the default process group, by whatever launcher, and taking it down again."""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from distmetrics.comm import communicator
from distmetrics.comm.communicator import name_ranks
from distmetrics.comm.cpu import cpu_group
from distmetrics.comm.device import Plan, plan_devices
from distmetrics.comm.groups import make_groups
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.rendezvous import open_store
from distmetrics.comm.roll_call import call_roll, linger, meeting, payloads
from distmetrics.comm.roster import Member, Nodes, find_nodes
from distmetrics.comm.world import World, current_world, default_group, set_world
from distmetrics.errors import DistmetricsWarning, InvalidValue, LaunchError, PeerLostError

_log = logging.getLogger("distmetrics")

_MEETING_TIMEOUT = 600.0  # seconds to wait for all ranks where no timeout is given
_NOTICE_AFTER = 30.0  # seconds after which absent ranks are named
_CLEANUP_TIMEOUT = 10.0  # seconds that taking down the groups may last


def setup_distributed(
    backend: str | None = None,
    timeout: float | timedelta | None = None,
    device: str | int | torch.device | None = None,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    share_devices: bool = False,
) -> LaunchEnv:
    """What was found, after making the default process group and setting this rank's device.

    Works under torchrun, under Slurm's ``srun``, with RANK and WORLD_SIZE set by hand, with
    explicit arguments, and in a single process, which gets no group (see `LaunchEnv.detect` for
    the precedence). The ranks first tell each other where they are, so that nodes of different
    size and any placement of ranks are right, and absent ranks are named. A second call returns
    the same; a group that was made elsewhere is taken over.

    Args:
        backend: as `torch.distributed.init_process_group` takes it; NCCL where every rank has a
            CUDA device, else Gloo. NCCL without devices becomes Gloo, with a warning.
        timeout: seconds (or a timedelta) to wait for the ranks, and of the group's collectives;
            600 s and PyTorch's defaults if it is not given.
        device: this rank's device; by default that of its local rank among the visible ones,
            or the only visible one. ``"cpu"`` makes it use none.
        rank: this rank, if no launcher tells it; needs `world_size`.
        world_size: the number of ranks; needs `rank`.
        master_addr: the host of the serving rank, beats MASTER_ADDR.
        master_port: its port, beats MASTER_PORT.
        share_devices: let the ranks of a node share devices if there are fewer (over Gloo).

    Ranks: all.
    Collective: makes the default group and one group for each node.

    Raises:
        LaunchError: variables or arguments are missing, malformed or contradict each other.
        PeerTimeoutError: some ranks did not come in time; it names them.

    Example:
        >>> env = setup_distributed()
        >>> env.world_size, torch.distributed.is_initialized()
        (1, False)
    """
    seconds = _seconds(timeout)
    thread = communicator.current()
    if thread is not None:
        return _in_process(thread)
    existing = current_world()
    if existing is not None and existing.group is not None:
        return _same(existing.env, rank, world_size)
    env = LaunchEnv.detect(
        rank=rank, world_size=world_size, master_addr=master_addr, master_port=master_port
    )
    if existing is not None and env.world_size == 1:
        return existing.env
    asked = _device_text(device)
    if default_group() is not None:
        return _adopt(env, backend, asked, share_devices)
    me = Member.here(env, backend, asked, share_devices)
    if env.world_size == 1:
        return _alone(env, me)
    store, members = _meet(env, me, seconds or _MEETING_TIMEOUT)
    nodes, odd = find_nodes(members)
    try:
        plan = plan_devices(members, nodes)
        odd += plan.notes + _make_gloo_reachable(members, env.rank)
    except LaunchError:
        linger(store, env.world_size)
        raise
    if plan.devices[env.rank].type == "cuda":
        torch.cuda.set_device(plan.devices[env.rank])
    _connect(PrefixStore("default", store), env, group_options(plan, env.rank, seconds))
    done = _finish(env, nodes, plan, odd)
    ready = PrefixStore("ready", store)
    call_roll(
        ready,
        env.rank,
        env.world_size,
        timeout=seconds or _MEETING_TIMEOUT,
        purpose="setup_distributed (all ranks have met, and connect to each other)",
    )
    linger(ready, env.world_size)
    return done


def cleanup_distributed(timeout: float = _CLEANUP_TIMEOUT) -> None:
    """Take down all process groups; nothing is done if there are none.

    Safe to call twice, after an error, and when peers are gone: it waits for no other rank and
    returns after `timeout` seconds even if the backend hangs, with a warning.

    Ranks: local.
    Collective: none.
    """
    if communicator.current() is not None:
        return
    set_world(None)
    if default_group() is None:
        return
    failures: list[BaseException] = []

    def destroy() -> None:
        try:
            dist.destroy_process_group()
        except Exception as error:  # noqa: BLE001 (reported below, in the caller's thread)
            failures.append(error)

    thread = threading.Thread(target=destroy, name="distmetrics-cleanup", daemon=True)
    thread.start()
    thread.join(timeout)
    if thread.is_alive():
        text = f"the process groups were not taken down within {timeout:g} s; they are left behind"
        warnings.warn(text, DistmetricsWarning, stacklevel=2)
    for error in failures:
        text = f"taking down the process groups failed: {error}"
        warnings.warn(text, DistmetricsWarning, stacklevel=2)


def group_options(plan: Plan, rank: int, seconds: float | None) -> dict[str, Any]:
    """The arguments of `init_process_group` that the plan gives for this rank.

    NCCL is told the device, so that barriers need not guess it and communicators connect early.
    """
    options: dict[str, Any] = {"backend": plan.backend}
    if seconds is not None:
        options["timeout"] = timedelta(seconds=seconds)
    if "nccl" in plan.backend:
        options["device_id"] = plan.devices[rank]
    return options


def _meet(env: LaunchEnv, me: Member, timeout: float) -> tuple[Store, list[Member]]:
    """The store of this set-up, and all members, in rank order."""

    def notice(absent: Sequence[int]) -> None:
        if env.rank == min(set(range(env.world_size)) - set(absent)):
            text = f"setup_distributed waits for {name_ranks(absent)} of {env.world_size}"
            warnings.warn(text, DistmetricsWarning, stacklevel=2)

    deadline = time.monotonic() + timeout
    while True:
        left = max(1.0, deadline - time.monotonic())
        try:
            store, _ = meeting(open_store(env, left), "distmetrics/setup", env.rank)
            call_roll(
                store,
                env.rank,
                env.world_size,
                timeout=left,
                purpose="setup_distributed",
                payload=me.to_json(),
                notice_after=_NOTICE_AFTER,
                notice=notice,
            )
            return store, [Member.from_json(data) for data in payloads(store, env.world_size)]
        except (PeerLostError, dist.DistNetworkError) as error:
            # the serving rank was still taking down an earlier set-up on this port
            if time.monotonic() >= deadline:
                reason = str(error).splitlines()[0]
                raise PeerLostError(f"setup_distributed: the store is gone ({reason})") from error


def _connect(store: Store, env: LaunchEnv, options: dict[str, Any]) -> None:
    """Make the default group."""
    try:
        dist.init_process_group(store=store, rank=env.rank, world_size=env.world_size, **options)
    except RuntimeError as error:
        raise PeerLostError(
            f"all {env.world_size} ranks met at {env.master_addr}:{env.master_port}, but could not "
            "connect to each other: is a firewall between the hosts, or has one several networks "
            "(GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME name the interface)? "
            f"({str(error).splitlines()[0]})"
        ) from error


def _in_process(thread: communicator.Endpoint) -> LaunchEnv:
    """A thread that acts as a rank: there is nothing to set up."""
    return LaunchEnv(
        launcher="in-process",
        rank=thread.rank,
        world_size=thread.world_size,
        local_rank=thread.rank,
        local_world_size=thread.world_size,
        ranks_per_node=(thread.world_size,),
    )


def _alone(env: LaunchEnv, me: Member) -> LaunchEnv:
    """A single process: a device, and no group."""
    nodes = Nodes(((0,),))
    plan = plan_devices([me], nodes)
    if plan.devices[0].type == "cuda":
        torch.cuda.set_device(plan.devices[0])
    return _finish(env, nodes, plan, plan.notes)


def _adopt(env: LaunchEnv, backend: str | None, device: str | None, share: bool) -> LaunchEnv:
    """Take over a default group that was made elsewhere: find the nodes, leave the device."""
    group, helper = default_group(), cpu_group()
    assert group is not None
    rank, world_size = group.rank(), group.size()
    if (env.rank, env.world_size) != (rank, world_size):
        place = {"rank": "process group", "world_size": "process group"}
        env = LaunchEnv.detect({}, rank=rank, world_size=world_size)
        env = replace(env, sources={**env.sources, **place})
    me = Member.here(env, backend, device, share)
    gathered: list[Any] = [None] * world_size
    dist.all_gather_object(gathered, me.to_json(), group=helper)
    members = [Member.from_json(data) for data in gathered]
    nodes, odd = find_nodes(members)
    here = torch.device("cpu")
    if "nccl" in dist.get_backend_config(group):
        here = torch.device("cuda", torch.cuda.current_device())
    plan = Plan(dist.get_backend(group), (here,) * world_size)
    return _finish(env, nodes, plan, odd)


def _finish(env: LaunchEnv, nodes: Nodes, plan: Plan, odd: Sequence[str]) -> LaunchEnv:
    """Make the group of this node, keep what was found, and say it in one line."""
    env = replace(
        env,
        local_rank=nodes.local_rank(env.rank),
        local_world_size=len(nodes.of(env.rank)),
        node_rank=nodes.node_rank(env.rank),
        ranks_per_node=nodes.sizes,
    )
    group = default_group()
    world = World(env, nodes, plan.devices[env.rank], group)
    if group is not None:
        world.node_group = group if len(nodes.ranks) == 1 else make_groups(nodes.ranks, env.rank)
    set_world(world)
    if env.rank == 0:
        for note in odd:
            warnings.warn(note, DistmetricsWarning, stacklevel=3)
        _log.info("%s", describe(world, plan.backend))
    return env


def describe(world: World, backend: str) -> str:
    """One line on what was found and from where."""
    env = world.env
    if env.world_size == 1:
        return f"a single process ({env.launcher}) on {world.device}, no process group"
    sizes = "+".join(str(size) for size in env.ranks_per_node)
    nodes = len(env.ranks_per_node)
    where = f"{nodes} node{'s' if nodes > 1 else ''} ({sizes})"
    job = f", job {env.job_id}" if env.job_id else ""
    meeting = f", met at {env.master_addr}:{env.master_port}" if env.master_addr else ""
    return (
        f"{env.world_size} ranks on {where} by {env.launcher}{job}{meeting}; {backend}, rank 0 on "
        f"{world.device}; rank from {env.sources['rank']}, world size from "
        f"{env.sources['world_size']}"
    )


def _make_gloo_reachable(members: Sequence[Member], rank: int) -> tuple[str, ...]:
    """Name the network interface for Gloo where host names resolve to the loopback.

    Gloo listens at the address of the host's name. Where /etc/hosts maps that to 127.0.0.1 and
    ranks live on several machines, they would fail to connect, with a message that does not say
    why.
    """
    lost = [member for member in members if member.loopback]
    if not lost or len({member.network for member in members}) == 1:
        return ()
    for member in lost:
        if member.interface is None:
            raise LaunchError(
                f"the name of rank {member.rank}'s host ({member.host}) resolves to the loopback, "
                "where other hosts cannot reach Gloo: set GLOO_SOCKET_IFNAME to the interface that "
                "leads to them, or correct /etc/hosts"
            )
    if members[rank].loopback:
        os.environ["GLOO_SOCKET_IFNAME"] = str(members[rank].interface)
    ranks = name_ranks([member.rank for member in lost])
    note = (
        f"the host names of {ranks} resolve to the loopback: GLOO_SOCKET_IFNAME is set "
        "there to the interface that leads to MASTER_ADDR; correct /etc/hosts to do without"
    )
    return (note,)


def _same(env: LaunchEnv, rank: int | None, world_size: int | None) -> LaunchEnv:
    """The launch of the first call, if a later one does not contradict it."""
    for name, given in (("rank", rank), ("world_size", world_size)):
        if given is not None and given != getattr(env, name):
            raise LaunchError(
                f"{name}={given} was given, but the process group exists with {name} "
                f"{getattr(env, name)}: call cleanup_distributed() first"
            )
    return env


def _seconds(timeout: float | timedelta | None) -> float | None:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if seconds is not None and not seconds > 0:
        raise InvalidValue(f"timeout={timeout!r}: seconds above 0 are expected")
    return seconds


def _device_text(device: str | int | torch.device | None) -> str | None:
    if device is None:
        return None
    return f"cuda:{device}" if isinstance(device, int) else str(torch.device(device))
