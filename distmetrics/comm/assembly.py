"""Making a process group from a store, beside the default group and without its ranks.

`torch.distributed.new_group` needs every rank of the default group, names groups by counters that
members may not share, and has non-members of a Gloo group take part in a split of NCCL's
communicators. None of that suits a group whose members alone make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

from distmetrics.comm.roll_call import meeting
from distmetrics.comm.world import default_group

GROUP_TIMEOUT = timedelta(minutes=30)
"""PyTorch's default for Gloo groups."""


def assemble(
    store: Store,
    name: str,
    rank: int,
    size: int,
    *,
    backend: str = "gloo",
    timeout: timedelta = GROUP_TIMEOUT,
    ranks: Sequence[int] | None = None,
    options: Any = None,
) -> dist.ProcessGroup:
    """A process group of the processes that share `store`, known to `torch.distributed`.

    Args:
        store: a prefix that is used for this group only.
        name: the same on all members, and unlike that of any other group of this process.
        rank: this process's rank in the group.
        size: the number of members.
        backend: as `torch.distributed.new_group` takes it.
        timeout: of the group's collectives.
        ranks: the members' ranks in the default group, in order of group rank; without them
            functions of `torch.distributed` take this group's own ranks.
        options: the backend's options.

    Ranks: all members.
    Collective: connects them.
    """
    options_argument = "backend_options" if release(torch.__version__) >= (2, 6) else "pg_options"
    make: Any = _new_process_group_helper
    with _unbound_default():
        group, _ = make(
            size,
            rank,
            [],  # as for a default group: no membership in another one is looked up
            dist.Backend(backend),
            store,
            group_name=name,
            timeout=timeout,
            **{options_argument: options},
        )
    members = range(size) if ranks is None else ranks
    _world.pg_group_ranks[group] = {member: index for index, member in enumerate(members)}
    made: dist.ProcessGroup = group
    return made


def assemble_among(
    store: Store, ranks: Sequence[int], rank: int, timeout: timedelta, label: str
) -> dist.ProcessGroup:
    """A Gloo group of some ranks of the default group, which alone call this.

    Ranks: those in `ranks`.
    Collective: connects them.
    """
    members = "-".join(str(member) for member in ranks)
    name = f"distmetrics/{label}/{members}"
    store, attempt = meeting(store, name, rank)
    return assemble(
        store,
        f"{name}/{attempt}",
        list(ranks).index(rank),
        len(ranks),
        timeout=timeout,
        ranks=ranks,
    )


def release(version: str) -> tuple[int, int]:
    """Major and minor number of a version, for comparisons (as texts, "2.10" is before "2.6").

    Example:
        >>> release("2.13.0+cpu") >= (2, 6), release("2.4.1") >= (2, 6)
        (True, False)
    """
    match = re.match(r"(\d+)\.(\d+)", str(version))
    if match is None:
        raise ValueError(f"{version!r} is no version")
    return int(match[1]), int(match[2])


@contextmanager
def _unbound_default() -> Iterator[None]:
    """Hide the default group's device.

    A default group that is bound to a device makes PyTorch split new NCCL communicators from its
    own, in which ranks outside the new group would have to take part.
    """
    default = default_group()
    bound = None if default is None else default.bound_device_id
    if default is None or bound is None:
        yield
        return
    default.bound_device_id = None
    try:
        yield
    finally:
        default.bound_device_id = bound
