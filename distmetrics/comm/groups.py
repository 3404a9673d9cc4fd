"""Groups beside the default one: parts of it, and independent ones with worlds of their own."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, Store

from distmetrics.comm.assembly import GROUP_TIMEOUT, assemble, assemble_among
from distmetrics.comm.cpu import has_cpu_backend, store_of
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.ranks import get_world_size, synchronize
from distmetrics.comm.rendezvous import (
    is_served,
    open_store,
    reachable_address,
    serve_or_join,
    uses_agent_store,
)
from distmetrics.comm.roll_call import call_roll, linger, meeting, payloads
from distmetrics.comm.world import default_group
from distmetrics.errors import InvalidValue, LaunchError, PeerLostError

_log = logging.getLogger("distmetrics")


def make_groups(
    groups: Sequence[Sequence[int]],
    rank: int,
    backend: str | None = None,
    timeout: timedelta = GROUP_TIMEOUT,
) -> dist.ProcessGroup | None:
    """The group among `groups` that holds `rank`, None if there is none.

    Args:
        groups: ranks of the default group; a rank is in one of them at most.
        rank: this rank.
        backend: by default that of the default group.
        timeout: of the groups' collectives.

    Ranks: all of the default group, with the same `groups`.
    Collective: connects the ranks of each group.
    """
    default = default_group()
    assert default is not None
    backend = backend or dist.get_backend_config(default)
    if "nccl" not in backend:
        mine = next((sorted(ranks) for ranks in groups if rank in ranks), None)
        if mine is None:
            return None
        return assemble_among(store_of(default), mine, rank, timeout, "group")
    found: dist.ProcessGroup | None = None
    for ranks in groups:
        made = dist.new_group(sorted(ranks), backend=backend, timeout=timeout)
        if rank in ranks:
            found = made
    return found


def create_sub_group(
    group_size: int, backend: str | None = None
) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """The caller's regular and orthogonal group, tried out with an all-reduce each.

    Of the world size's ranks 0 .. W-1, regular groups hold `group_size` consecutive ranks
    ([0, 1], [2, 3] for 2 of 4), orthogonal ones every `group_size`-th ([0, 2], [1, 3]).

    Args:
        group_size: the number of ranks of a regular group; divides the world size.
        backend: of both groups; by default that of the default group.

    Returns:
        Two process groups. Both None, which every function here takes for all ranks, in a single
        process without a default group.

    Ranks: all.
    Collective: makes the groups; one all-reduce on each of the two.

    Raises:
        InvalidValue: the world size is not a multiple of `group_size`.
        PeerLostError: the groups do not add up.

    Example:
        >>> create_sub_group(1)
        (None, None)
    """
    world_size = get_world_size()
    group_size = operator.index(group_size)
    if group_size < 1:
        raise InvalidValue(f"group_size={group_size!r}: a whole number of 1 or more is expected")
    if world_size % group_size:
        raise InvalidValue(f"group_size={group_size} does not divide the world size {world_size}")
    default = default_group()
    if default is None:
        return None, None
    everyone = range(world_size)
    regular = [everyone[start : start + group_size] for start in everyone[::group_size]]
    orthogonal = [everyone[start::group_size] for start in range(group_size)]
    made: list[dist.ProcessGroup] = []
    for ranks in (regular, orthogonal):
        group = make_groups(ranks, default.rank(), backend)
        assert group is not None
        try_group(group, next(each for each in ranks if default.rank() in each), default.rank())
        made.append(group)
    synchronize()
    if default.rank() == 0:
        _log.info("made and tried sub-groups of %d and %d ranks", *(g.size() for g in made))
    return made[0], made[1]


def try_group(group: dist.ProcessGroup, ranks: Sequence[int], me: int) -> None:
    """Check that an all-reduce on `group` adds up over the ranks that it should hold.

    Args:
        group: the group to try.
        ranks: the ranks of the default group that it should hold.
        me: this process's rank in the default group.

    Ranks: all of the group.
    Collective: one all-reduce on it.

    Raises:
        PeerLostError: it does not.
    """
    on_cpu = has_cpu_backend(group)
    device = torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())
    total = torch.tensor([1.0, float(me), float(me) ** 2], dtype=torch.float64, device=device)
    group.allreduce([total]).wait()
    expected = [float(len(ranks)), float(sum(ranks)), float(sum(rank**2 for rank in ranks))]
    if total.tolist() != expected:
        raise PeerLostError(
            f"the group of ranks {list(ranks)} does not add up: its all-reduce of (1, rank, rank "
            f"squared) gave {total.tolist()}, not {expected}"
        )


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: float | timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Store | None = None,
    group_name: str | None = None,
    pg_options: Any = None,
) -> dist.ProcessGroup:
    """A further main group: own rank, own world size, independent of the default group.

    For processes of several jobs that meet, such as trainers and inference engines: the default
    group, if there is any, need not hold the others. Collectives of `torch.distributed` on it take
    its own ranks as `src` and `dst`; this process's is `group.rank()`.

    Args:
        backend: NCCL where CUDA is, else Gloo, by default.
        init_method: ``tcp://host:port``, where rank 0 serves; also under torchrun, where PyTorch's
            own rendezvous would wait for ever. ``env://`` (the default): MASTER_ADDR and
            MASTER_PORT. ``file:///path``: a file that all processes see.
        timeout: seconds (or a timedelta) to wait for the members, and of the group's collectives;
            30 minutes by default.
        world_size: the number of members; by default from `init_method` or the launcher.
        rank: this process's rank among them; by default from `init_method` or the launcher.
        store: meets there instead of at `init_method`; needs `rank` and `world_size`.
        group_name: tells apart groups that meet at one place; the same on all members.
        pg_options: the backend's options.

    Ranks: all members, and no others.
    Collective: connects them.

    Raises:
        InvalidValue: arguments are missing or exclude each other.
        PeerTimeoutError: some members did not come in time; it names them.
    """
    if store is not None and init_method is not None:
        raise InvalidValue("init_method and store exclude each other: give one")
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    seconds = GROUP_TIMEOUT.total_seconds() if timeout is None else timeout
    if not seconds > 0:
        raise InvalidValue(f"timeout={timeout!r}: seconds above 0 are expected")
    if store is None:
        store, rank, world_size = _meeting_store(init_method or "env://", rank, world_size, seconds)
    _check_place(rank, world_size)
    own, _ = meeting(store, f"distmetrics/independent/{group_name or ''}", rank)
    call_roll(
        own,
        rank,
        world_size,
        timeout=seconds,
        purpose=f"init_process_group{f' {group_name!r}' if group_name else ''}",
        payload=uuid4().hex,
    )
    # a name that all members know and that no other group of theirs has
    name = f"distmetrics/independent/{payloads(own, world_size)[0]}"
    if backend is None:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    group = assemble(
        own,
        name,
        rank,
        world_size,
        backend=backend,
        timeout=timedelta(seconds=seconds),
        options=pg_options,
    )
    linger(own, world_size)
    return group


def _check_place(rank: int, world_size: int) -> None:
    if world_size < 1 or rank < 0:
        missing = "world_size" if world_size < 1 else "rank"
        raise InvalidValue(f"{missing} is missing: rank={rank}, world_size={world_size}")
    if rank >= world_size:
        raise InvalidValue(f"rank={rank} is not within 0 .. world_size - 1 = {world_size - 1}")


def _meeting_store(
    init_method: str, rank: int, world_size: int, timeout: float
) -> tuple[Store, int, int]:
    """The store, the rank and the world size of a URL."""
    url = urlsplit(init_method)
    query = {key: values[0] for key, values in parse_qs(url.query).items()}
    rank = _asked(query, "rank", rank)
    world_size = _asked(query, "world_size", world_size)
    if url.scheme == "env":
        env = LaunchEnv.detect()
        rank = env.rank if rank < 0 else rank
        world_size = env.world_size if world_size < 0 else world_size
        _check_place(rank, world_size)
        return _environment_store(env, rank, timeout), rank, world_size
    _check_place(rank, world_size)
    if url.scheme == "file":
        return FileStore(url.path, world_size), rank, world_size
    if url.scheme == "tcp" and url.hostname and url.port:
        host = reachable_address(url.hostname)
        return _serve_or_share(host, url.port, rank, timeout), rank, world_size
    raise InvalidValue(
        f"init_method={init_method!r}: tcp://host:port, file:///path or env:// is expected"
    )


def _serve_or_share(host: str, port: int, rank: int, timeout: float) -> Store:
    """The store at this address; rank 0 serves it, unless a group of other processes does."""
    try:
        return serve_or_join(host, port, rank == 0, timeout)
    except LaunchError:
        if not is_served(host, port):
            raise
        return serve_or_join(host, port, False, timeout)


def _asked(query: Mapping[str, str], name: str, given: int) -> int:
    """The argument, else what the URL's query says."""
    if given >= 0 or name not in query:
        return given
    if not query[name].isdigit():
        raise InvalidValue(f"init_method: {name}={query[name]!r} is not a whole number")
    return int(query[name])


def _environment_store(env: LaunchEnv, rank: int, timeout: float) -> Store:
    """The store at MASTER_ADDR, which the launcher or the default group may serve already."""
    if uses_agent_store(os.environ):
        return open_store(env, timeout)
    if env.master_addr is None or env.master_port is None:
        raise LaunchError("init_method env://: MASTER_ADDR and MASTER_PORT are not set")
    host = reachable_address(env.master_addr)
    serves = rank == 0 and not is_served(host, env.master_port)
    return serve_or_join(host, env.master_port, serves, timeout)
