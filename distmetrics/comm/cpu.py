"""The CPU side of process groups: objects and metrics travel over Gloo, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch.distributed as dist

from distmetrics.comm.world import default_group

Maker = Callable[[], dist.ProcessGroup]
_twins: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()
_makers: WeakKeyDictionary[dist.ProcessGroup, Maker] = WeakKeyDictionary()


def cpu_group(group: dist.ProcessGroup | None = None) -> dist.ProcessGroup | None:
    """A process group with the same ranks that takes CPU tensors; None without a process group.

    That is `group` (default: the default group) itself if it has a CPU backend, else a Gloo group
    that is made at the first call and kept.

    Ranks: all of the group, at the first call.
    Collective: none if the group has a CPU backend; else it connects the ranks at the first call.
    """
    group = default_group() if group is None else group
    if group is None or has_cpu_backend(group):
        return group
    twin = _twins.get(group)
    if twin is None:
        twin = _twins[group] = _makers.get(group, lambda: _gloo_twin(group))()
    return twin


def has_cpu_backend(group: dist.ProcessGroup) -> bool:
    """True if collectives on `group` take CPU tensors."""
    config = dist.get_backend_config(group)
    return any(part.split(":")[0] == "cpu" for part in config.split(","))


def set_twin_maker(group: dist.ProcessGroup, maker: Maker) -> None:
    """Say how to make the CPU side of a group whose ranks PyTorch's registry does not know."""
    _makers[group] = maker


def _gloo_twin(group: dist.ProcessGroup) -> dist.ProcessGroup:
    made: dist.ProcessGroup
    if group is default_group():
        made = dist.new_group(backend="gloo")
    else:
        # only the members call this, hence the local synchronization
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return made
