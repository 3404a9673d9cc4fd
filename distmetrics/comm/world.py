"""What the set-up found, kept for the process: the launch, the nodes, the device, the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.roster import Nodes


@dataclass
class World:
    """The world of one `setup_distributed`.

    Attributes:
        env: the launch, completed by what the ranks told each other.
        nodes: which ranks live where.
        device: this rank's device.
        group: the default group at the time; None for a single process.
        node_group: the group of this node's ranks; None for a single process.
    """

    env: LaunchEnv
    nodes: Nodes
    device: torch.device
    group: Any = None
    node_group: Any = None


_world: World | None = None


def current_world() -> World | None:
    """What `setup_distributed` left, as long as the group it made or found is alive."""
    if _world is None or _world.group is not default_group():
        return None
    return _world


def set_world(world: World | None) -> None:
    """Keep `world` for this process."""
    global _world  # noqa: PLW0603 (one default process group a process, hence one world)
    _world = world


def default_group() -> dist.ProcessGroup | None:
    """The default process group, None if there is none."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.group.WORLD
