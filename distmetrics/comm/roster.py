"""Who the ranks are: what each tells of itself when they first meet, and the nodes that follow."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from distmetrics.comm import address
from distmetrics.comm.communicator import name_ranks
from distmetrics.comm.device import visible_devices
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.placement import ONE_NODE


@dataclass(frozen=True)
class Member:
    """What one rank tells the others.

    Attributes:
        rank: its rank.
        node: a text that its node's ranks share.
        node_rank: the node's index, if the launcher told it.
        local_rank: its rank on the node, if the launcher told it.
        host: the host name.
        network: a text that the ranks with a common loopback share.
        loopback: its Gloo would listen on the loopback only.
        interface: the network interface on the way to where the ranks meet.
        devices: a text for each CUDA device that it may use, empty for CPU.
        backend: the backend it was asked to use.
        share: whether ranks may share a device.
        device: the device it was asked to use.
    """

    rank: int
    node: str
    node_rank: int | None = None
    local_rank: int | None = None
    host: str = ""
    network: str = ""
    loopback: bool = False
    interface: str | None = None
    devices: tuple[str, ...] = ()
    backend: str | None = None
    share: bool = False
    device: str | None = None

    @classmethod
    def here(cls, env: LaunchEnv, backend: str | None, device: str | None, share: bool) -> Member:
        """This process."""
        node_told = "node_rank" in env.sources
        return cls(
            rank=env.rank,
            node=f"node {env.node_rank}" if node_told else address.node_id(),
            node_rank=env.node_rank if node_told else None,
            local_rank=None if env.sources.get("local_rank") == ONE_NODE else env.local_rank,
            host=socket.gethostname(),
            network=address.network_id(),
            loopback=address.gloo_uses_loopback(),
            interface=address.interface_towards(env.master_addr),
            devices=() if device == "cpu" else visible_devices(),
            backend=backend,
            share=share,
            device=device,
        )

    def to_json(self) -> str:
        """JSON: what comes from other hosts is data, so nothing is unpickled."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, data: str) -> Member:
        """The inverse of `to_json`."""
        fields = json.loads(data)
        return cls(**{**fields, "devices": tuple(fields["devices"])})


@dataclass(frozen=True)
class Nodes:
    """Which ranks live on which node: by node, and within a node by local rank.

    Example:
        >>> nodes = Nodes(((0, 3, 4), (1,), (2,)))
        >>> nodes.node_rank(4), nodes.local_rank(4), nodes.sizes
        (0, 2, (3, 1, 1))
    """

    ranks: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of ranks on each node."""
        return tuple(len(node) for node in self.ranks)

    def node_rank(self, rank: int) -> int:
        """The index of the rank's node."""
        return next(index for index, node in enumerate(self.ranks) if rank in node)

    def of(self, rank: int) -> tuple[int, ...]:
        """The ranks on the rank's node."""
        return self.ranks[self.node_rank(rank)]

    def local_rank(self, rank: int) -> int:
        """The rank's index on its node."""
        return self.of(rank).index(rank)

    def across(self) -> tuple[tuple[int, ...], ...]:
        """The ranks with the same local rank, one set each; the first has a rank of every node."""
        return tuple(
            tuple(node[index] for node in self.ranks if index < len(node))
            for index in range(max(self.sizes))
        )


def find_nodes(members: Sequence[Member]) -> tuple[Nodes, tuple[str, ...]]:
    """The nodes of the members (in rank order), and what is odd about them.

    The nodes come in the launcher's order if it told one, else by their lowest rank; the ranks of
    a node by the launcher's local ranks if they are 0, 1, ... there, else by rank.
    """
    nodes: dict[str, list[Member]] = {}
    for member in members:
        nodes.setdefault(member.node, []).append(member)
    ordered = list(nodes.values())
    if all(member.node_rank is not None for member in members):
        ordered.sort(key=lambda node: node[0].node_rank or 0)
    notes: list[str] = []
    ranks: list[tuple[int, ...]] = []
    for node in ordered:
        told = [member.local_rank for member in node]
        places = {place: member.rank for place, member in zip(told, node, strict=True)}
        if None in places or sorted(places, key=lambda place: place or 0) != [*range(len(node))]:
            if None not in told:
                named = name_ranks([member.rank for member in node])
                notes.append(
                    f"{named} are on one node ({node[0].host}), but their local ranks are {told}: "
                    f"0 .. {len(node) - 1} in order of rank are used; set NODE_RANK to tell nodes "
                    "apart"
                )
            places = dict(enumerate(member.rank for member in node))
        ranks.append(tuple(places[place] for place in range(len(node))))
    return Nodes(tuple(ranks)), tuple(notes)
