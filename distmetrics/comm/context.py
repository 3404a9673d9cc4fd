"""Named process groups of a training: the world, data parallel, within and across nodes."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import torch.distributed as dist

from distmetrics.comm.groups import make_groups
from distmetrics.comm.objects import all_gather
from distmetrics.comm.ranks import is_member, synchronize
from distmetrics.comm.roster import Nodes
from distmetrics.comm.setup import cleanup_distributed, setup_distributed
from distmetrics.comm.world import current_world, default_group
from distmetrics.errors import InvalidType, InvalidValue, NotInitialized

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Ranks = Sequence[int] | Sequence[Sequence[int]]


class CommMode(str, Enum):
    """What a group is for; each says what the `ranks` of `CommContext.init_group` mean for it."""

    GLOBAL = "GLOBAL"
    """All ranks. `ranks`: all of them, or None."""
    TRAIN_DATA_PARALLEL = "TRAIN_DATA_PARALLEL"
    """Ranks that train on different samples. `ranks`: the members of one group, or a list of
    groups that share no rank."""
    INTRA_NODE = "INTRA_NODE"
    """The ranks of one node. `ranks`: who takes part (None: all); split into nodes by where the
    ranks really are."""
    INTER_NODE = "INTER_NODE"
    """Ranks of different nodes with the same place on their node. `ranks`: who takes part (None:
    all); the first group has a rank of every node, later ones lack the nodes with fewer ranks."""
    WEIGHT_TRANSFER = "WEIGHT_TRANSFER"
    """Ranks that pass weights to each other. `ranks`: as for TRAIN_DATA_PARALLEL; a group with
    other jobs comes from `init_process_group` by `CommContext.add_group`."""


ParallelMode = CommMode


@dataclass(frozen=True)
class _Entry:
    """One mode's group; None is the world of a single process."""

    group: dist.ProcessGroup | None
    ranks: tuple[int, ...]
    rank: int
    ours: bool


class CommContext:
    """The process groups of this process, by mode.

    `CommContext.default()` is the one that a program shares; further instances are independent.
    A getter of a mode whose group was not made raises `NotInitialized` and names those that were.

    Example:
        >>> context = CommContext()
        >>> context.init_distributed_env()
        >>> context.get_world_size(CommMode.GLOBAL), context.is_main_rank()
        (1, True)
        >>> context.destroy()
    """

    _default: ClassVar[CommContext | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._entries: dict[CommMode, _Entry] = {}
        self._made_world = False

    @classmethod
    def default(cls) -> CommContext:
        """The process-wide instance, made at the first call."""
        with cls._lock:
            if cls._default is None:
                cls._default = cls()
            return cls._default

    def init_distributed_env(
        self,
        world_size: int | None = None,
        rank: int | None = None,
        backend: str | None = None,
        dist_url: str = "env://",
        timeout: float = 1800,
    ) -> None:
        """Set up the default process group (see `setup_distributed`) as the mode GLOBAL.

        Args:
            world_size: the number of ranks; by default what the launcher says.
            rank: this rank; by default what the launcher says.
            backend: NCCL where CUDA is, else Gloo, by default.
            dist_url: ``env://`` or ``tcp://host:port``, where the ranks meet.
            timeout: seconds.

        Ranks: all.
        Collective: see `setup_distributed`.

        Raises:
            InvalidValue: `dist_url` is of another form.
        """
        url = urlsplit(dist_url)
        if url.scheme not in ("env", "tcp") or (url.scheme == "tcp" and not url.port):
            raise InvalidValue(f"dist_url={dist_url!r}: env:// or tcp://host:port is expected")
        existed = current_world() is not None or default_group() is not None
        setup_distributed(
            backend,
            timeout,
            rank=rank,
            world_size=world_size,
            master_addr=url.hostname,
            master_port=url.port,
        )
        self._made_world |= not existed
        self._enter_world()

    def init_group(
        self,
        ranks: Ranks | None = None,
        mode: CommMode | str = CommMode.TRAIN_DATA_PARALLEL,
        backend: str | None = None,
        use_cpu: bool = False,
    ) -> None:
        """Make the groups of a mode; the context keeps the one that holds this rank.

        Args:
            ranks: global ranks; each mode says what they mean (see `CommMode`). Ranks may give
                different lists: the union of their groups is made.
            mode: what the group is for. A mode made before is replaced.
            backend: by default that of the default group.
            use_cpu: use Gloo.

        Ranks: all, those outside the groups included (they keep no group).
        Collective: tells each other `ranks` (two on the CPU side), connects each group, a barrier.

        Raises:
            InvalidValue: a rank is out of range, or in two of the groups; the same on all ranks.
        """
        self._world_entry()
        default, chosen = default_group(), CommMode(mode)
        rank = self.get_global_rank()
        size = 1 if default is None else default.size()
        groups = _disjoint(_union(all_gather(_sets(ranks, size))), size, chosen)
        if chosen in (CommMode.INTRA_NODE, CommMode.INTER_NODE):
            members = {each for group in groups for each in group}
            groups = _by_node(_nodes(), members, across=chosen is CommMode.INTER_NODE)
        self._drop(chosen)
        mine = next((group for group in groups if rank in group), None)
        group = None
        if default is not None:
            group = make_groups(groups, rank, "gloo" if use_cpu else backend)
        if mine is not None:
            self._entries[chosen] = _Entry(group, mine, mine.index(rank), group is not None)
        synchronize()

    def add_group(self, mode: CommMode | str, group: dist.ProcessGroup) -> None:
        """Keep a group that was made elsewhere as the one of `mode`; the context won't destroy it.

        Ranks: local.
        Collective: none.
        """
        if not is_member(group):
            raise InvalidType(f"a process group with this rank as a member is expected: {group!r}")
        self._drop(CommMode(mode))
        ranks = tuple(dist.get_process_group_ranks(group))
        self._entries[CommMode(mode)] = _Entry(group, ranks, group.rank(), ours=False)

    def add_mesh(self, mesh: DeviceMesh, dims: Mapping[CommMode | str, str]) -> None:
        """Take groups from a `DeviceMesh`: for each mode the mesh dimension of this name.

        Ranks: local.
        Collective: none; the mesh has made the groups.

        Raises:
            InvalidValue: the mesh has no dimension of that name.
        """
        names = mesh.mesh_dim_names or ()
        for mode, dim in dims.items():
            if dim not in names:
                raise InvalidValue(f"{CommMode(mode).name}: the mesh has {names}, no {dim!r}")
            self.add_group(mode, mesh.get_group(dim))

    def get_group(self, mode: CommMode | str) -> dist.ProcessGroup | None:
        """The process group of `mode`; None stands for a single process without groups."""
        return self._entry(mode).group

    def get_world_size(self, mode: CommMode | str = CommMode.GLOBAL) -> int:
        """The number of ranks in the group of `mode`."""
        return len(self._entry(mode).ranks)

    def get_global_rank(self, mode: CommMode | str = CommMode.GLOBAL) -> int:
        """This process's rank among all, as a member of the group of `mode`."""
        self._entry(mode)
        return self._world_entry().rank

    def get_local_rank(self, mode: CommMode | str = CommMode.GLOBAL) -> int:
        """This process's rank within the group of `mode`."""
        return self._entry(mode).rank

    def get_ranks_in_group(self, mode: CommMode | str = CommMode.GLOBAL) -> list[int]:
        """The global ranks of the group of `mode`, by rank within it."""
        return list(self._entry(mode).ranks)

    def get_in_node_rank(self, mode: CommMode | str = CommMode.GLOBAL) -> int:
        """This process's place among the ranks of `mode` on its node."""
        return self._on_node(mode).index(self.get_global_rank())

    def get_local_world_size(self, mode: CommMode | str = CommMode.GLOBAL) -> int:
        """The number of ranks of `mode` on this node."""
        return len(self._on_node(mode))

    def get_intra_node_process_group(self) -> dist.ProcessGroup | None:
        """The process group of the mode INTRA_NODE."""
        return self.get_group(CommMode.INTRA_NODE)

    def get_inter_node_process_group(self) -> dist.ProcessGroup | None:
        """The process group of the mode INTER_NODE."""
        return self.get_group(CommMode.INTER_NODE)

    def is_main_rank(self, mode: CommMode | str = CommMode.GLOBAL) -> bool:
        """True on rank 0 of the group of `mode`."""
        return self.get_local_rank(mode) == 0

    def is_initialized(self, mode: CommMode | str = CommMode.GLOBAL) -> bool:
        """True if the context holds a group of `mode`."""
        return CommMode(mode) in self._entries

    def destroy(self) -> None:
        """Take down the groups that this context made, the default group included if it did.

        Safe to call twice, and when peers are gone.

        Ranks: local.
        Collective: none.
        """
        if self._made_world:
            # takes every group down
            cleanup_distributed()
        else:
            for mode in list(self._entries):
                self._drop(mode)
        self._entries.clear()
        self._made_world = False

    def _enter_world(self) -> None:
        world, group = current_world(), default_group()
        if world is None:
            raise NotInitialized("threads that act as ranks have no process groups")
        ranks = tuple(range(world.env.world_size))
        self._entries[CommMode.GLOBAL] = _Entry(group, ranks, world.env.rank, ours=False)

    def _entry(self, mode: CommMode | str) -> _Entry:
        chosen = CommMode(mode)
        if chosen not in self._entries:
            made = ", ".join(each.name for each in self._entries) or "none"
            how = (
                "init_distributed_env()"
                if chosen is CommMode.GLOBAL
                else f"init_group(ranks, mode=CommMode.{chosen.name})"
            )
            raise NotInitialized(
                f"no group of mode {chosen.name} was made for this rank (there are: {made}): "
                f"call {how} on all ranks"
            )
        return self._entries[chosen]

    def _on_node(self, mode: CommMode | str) -> list[int]:
        """The global ranks of `mode` on this node, by their place on it."""
        members = self._entry(mode).ranks
        return [rank for rank in _nodes().of(self.get_global_rank()) if rank in members]

    def _world_entry(self) -> _Entry:
        return self._entry(CommMode.GLOBAL)

    def _drop(self, mode: CommMode) -> None:
        entry = self._entries.pop(mode, None)
        if entry is not None and entry.ours and entry.group is not None:
            dist.destroy_process_group(entry.group)


def _nodes() -> Nodes:
    world = current_world()
    if world is None:
        raise NotInitialized("the nodes are not known: call init_distributed_env() on all ranks")
    return world.nodes


def _sets(ranks: Ranks | None, size: int) -> list[tuple[int, ...]] | str:
    """`ranks` as a list of groups; a text on what is wrong with it, which all ranks will raise."""
    if ranks is None:
        return [tuple(range(size))]
    try:
        flat = all(isinstance(each, int) for each in ranks)
        groups: list[Any] = [ranks] if flat else list(ranks)
        sets = [tuple(sorted(operator.index(rank) for rank in group)) for group in groups]
    except TypeError:
        return f"ranks={ranks!r}: a list of ranks, or of such lists, is expected"
    if any(len(set(group)) != len(group) for group in sets):
        return f"ranks={ranks!r}: a rank is named twice in a group"
    return [group for group in sets if group]


def _union(asked: Sequence[list[tuple[int, ...]] | str]) -> list[tuple[int, ...]]:
    """What all ranks asked for, in rank order."""
    for rank, sets in enumerate(asked):
        if isinstance(sets, str):
            raise InvalidValue(f"rank {rank}: {sets}")
    return [group for sets in asked for group in sets if not isinstance(group, str)]


def _disjoint(asked: Sequence[tuple[int, ...]], size: int, mode: CommMode) -> list[tuple[int, ...]]:
    """The distinct groups, checked to share no rank (within nodes and across they may)."""
    groups = list(dict.fromkeys(asked))
    seen: dict[int, tuple[int, ...]] = {}
    for group in groups:
        for rank in group:
            if not 0 <= rank < size:
                raise InvalidValue(f"{mode.name}: rank {rank} is not within 0 .. {size - 1}")
            other = seen.setdefault(rank, group)
            if other != group and mode not in (CommMode.INTRA_NODE, CommMode.INTER_NODE):
                raise InvalidValue(
                    f"{mode.name}: rank {rank} is in two groups, {list(other)} and {list(group)}"
                )
    if mode is CommMode.GLOBAL and groups != [tuple(range(size))]:
        raise InvalidValue(f"GLOBAL: ranks are all of 0 .. {size - 1}, or None")
    return groups


def _by_node(nodes: Nodes, members: set[int], *, across: bool) -> list[tuple[int, ...]]:
    """The members of each node, or those with the same place among the members of their node."""
    within = [tuple(sorted(members.intersection(node))) for node in nodes.ranks]
    chosen = Nodes(tuple(node for node in within if node))
    groups = chosen.across() if across else chosen.ranks
    return [tuple(sorted(group)) for group in groups]
