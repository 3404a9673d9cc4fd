"""Which rank this process is, and the barrier. Without a process group: rank 0 of 1.

Threads that act as in-process ranks (`distmetrics.testing.run_ranks_in_process`) get their own
numbers from the same functions.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from distmetrics.comm import communicator
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.placement import ONE_NODE
from distmetrics.comm.world import current_world, default_group
from distmetrics.errors import NotInitialized


def get_rank(group: dist.ProcessGroup | None = None) -> int:
    """This process's rank in `group` (default: all ranks); -1 if it is no member of it.

    Ranks: local.
    Collective: none.

    Example:
        >>> get_rank()
        0
    """
    if group is not None:
        return group.rank() if is_member(group) else -1
    here = communicator.current()
    if here is not None:
        return here.rank
    default = default_group()
    return 0 if default is None else default.rank()


def get_world_size(group: dist.ProcessGroup | None = None) -> int:
    """The number of ranks in `group` (default: of all ranks); -1 if this one is no member of it.

    Ranks: local.
    Collective: none.

    Example:
        >>> get_world_size()
        1
    """
    if group is not None:
        return group.size() if is_member(group) else -1
    here = communicator.current()
    if here is not None:
        return here.world_size
    default = default_group()
    return 1 if default is None else default.size()


def is_main_process() -> bool:
    """True on rank 0, and in a process without a group.

    Ranks: local.
    Collective: none.
    """
    return get_rank() == 0


def get_local_rank() -> int:
    """This process's rank among those of its node.

    Ranks: local.
    Collective: none.

    Raises:
        NotInitialized: there is a process group that `setup_distributed` neither made nor adopted,
            and no variable tells the local rank.
    """
    return _on_node()[0]


def get_local_size() -> int:
    """The number of ranks on this node.

    Ranks: local.
    Collective: none.

    Raises:
        NotInitialized: as `get_local_rank`.
    """
    return _on_node()[1]


def get_local_group() -> dist.ProcessGroup | None:
    """The process group of this node's ranks, None for a single process.

    Ranks: local.
    Collective: none; `setup_distributed` has made the group.

    Raises:
        NotInitialized: there is a process group, but `setup_distributed` was not called.
    """
    world = current_world()
    if world is None:
        if default_group() is None:
            return None
        raise NotInitialized(
            "the groups of the nodes are not made: call setup_distributed() on every rank, it "
            "takes over the existing process group"
        )
    group: dist.ProcessGroup | None = world.node_group
    return group


def synchronize() -> None:
    """Return once every rank has called this; at once for a single process.

    Ranks: all.
    Collective: one barrier on the default group; on NCCL with the current device, so that it
    guesses none and does not warn.
    """
    here = communicator.current()
    if here is not None:
        if here.world_size > 1:
            here.connect(_BARRIER_TIMEOUT, _BARRIER_TIMEOUT)
        return
    default = default_group()
    if default is None or default.size() == 1:
        return
    if "nccl" in dist.get_backend_config(default):
        dist.barrier(device_ids=[torch.cuda.current_device()])
    else:
        dist.barrier()


_BARRIER_TIMEOUT = 1800.0  # seconds; that of PyTorch's own groups


def is_member(group: object) -> bool:
    """True if this process belongs to `group`, as `torch.distributed.new_group` returned it."""
    return isinstance(group, dist.ProcessGroup) and group.rank() >= 0


def _on_node() -> tuple[int, int]:
    """The rank and the size on this node."""
    here = communicator.current()
    if here is not None:
        return here.rank, here.world_size
    world, default = current_world(), default_group()
    if world is not None:
        return world.env.local_rank, world.env.local_world_size
    if default is None:
        return 0, 1
    env = LaunchEnv.detect()
    if (env.rank, env.world_size) != (default.rank(), default.size()) or (
        env.world_size > 1 and env.sources.get("local_world_size", ONE_NODE).startswith("assumed")
    ):
        raise NotInitialized(
            "the place on the node is not known: the process group was made elsewhere, and no "
            "LOCAL_RANK and LOCAL_WORLD_SIZE of that world are set; call setup_distributed() on "
            "every rank, it takes over the existing process group"
        )
    return env.local_rank, env.local_world_size
