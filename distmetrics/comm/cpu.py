"""The CPU side of process groups: objects and metrics travel over Gloo, whatever the backend."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from distmetrics.comm.assembly import assemble
from distmetrics.comm.world import default_group

_twins: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


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
        twin = _twins[group] = assemble(
            PrefixStore("distmetrics/cpu", store_of(group)),
            f"{group.group_name}/cpu",
            group.rank(),
            group.size(),
            ranks=dist.get_process_group_ranks(group),
        )
    return twin


def has_cpu_backend(group: dist.ProcessGroup) -> bool:
    """True if collectives on `group` take CPU tensors."""
    config = dist.get_backend_config(group)
    return any(part.split(":")[0] == "cpu" for part in config.split(","))


def store_of(group: dist.ProcessGroup) -> Store:
    """The store of a group: a prefix of its own, where its members can leave keys."""
    store: Store = dist.distributed_c10d._get_process_group_store(group)  # noqa: SLF001
    return store
