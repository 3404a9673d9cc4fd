"""Which ranks are replicas of each other, from a device mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distmetrics.errors import InvalidValue


class Mesh(Protocol):
    """What is used of `torch.distributed.device_mesh.DeviceMesh`."""

    @property
    def mesh(self) -> Any:
        """The ranks, as a tensor or array with one dimension for each name."""

    @property
    def mesh_dim_names(self) -> tuple[str, ...] | None:
        """The names of the dimensions."""


@dataclass(frozen=True)
class RecordedMesh:
    """A mesh as a run's description holds it: names and nested lists of ranks."""

    mesh: Any
    mesh_dim_names: tuple[str, ...]


class Topology:
    """The ranks of a logger and the mesh they form.

    Args:
        rank: this rank.
        world_size: the number of ranks.
        mesh: names the dimensions; None where no key is replicated.
    """

    def __init__(self, rank: int, world_size: int, mesh: Mesh | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self._mesh = mesh
        if mesh is not None and not mesh.mesh_dim_names:
            raise InvalidValue(
                "mesh= has no names for its dimensions; make it with "
                'init_device_mesh(..., mesh_dim_names=("data", "tensor"))'
            )
        if mesh is not None:
            self._check_ranks()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the mesh's dimensions."""
        return () if self._mesh is None else tuple(self._mesh.mesh_dim_names or ())

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        assert self._mesh is not None
        return np.asarray(self._mesh.mesh, dtype=np.int64)

    def _check_ranks(self) -> None:
        ranks = self._ranks.reshape(-1).tolist()
        if self._ranks.ndim != len(self.names):
            raise InvalidValue(
                f"mesh= has {self._ranks.ndim} dimensions and the names {self.names}; "
                "give each dimension a name"
            )
        if len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(self.world_size)):
            raise InvalidValue(
                f"mesh= holds the ranks {ranks[:16]}; each is one of the {self.world_size} ranks "
                "of the process group, once"
            )

    def recorded(self) -> dict[str, Any] | None:
        """The mesh as JSON-able values, of which `RecordedMesh` makes it again; None: no mesh."""
        if self._mesh is None:
            return None
        return {"mesh": self._ranks.tolist(), "mesh_dim_names": list(self.names)}

    def check(self, dimensions: Sequence[str], key: str) -> None:
        """Raise `InvalidValue` where a key is replicated over a dimension that does not exist."""
        missing = [name for name in dimensions if name not in self.names]
        if missing and self.world_size > 1:
            have = f"the mesh has {', '.join(self.names)}" if self.names else "there is no mesh"
            raise InvalidValue(
                f"key {key!r} is replicated over {missing[0]!r}, but {have}; "
                "pass Logger(mesh=...) with a dimension of that name"
            )

    def replicas(self, dimensions: Sequence[str]) -> list[list[int]]:
        """The sets of ranks that hold the same value, the one that counts first."""
        inside = [name for name in self.names if name in dimensions]
        if not inside:
            return [[rank] for rank in range(self.world_size)]
        axes = [self.names.index(name) for name in inside]
        moved = np.moveaxis(self._ranks, axes, list(range(-len(axes), 0)))
        size = int(np.prod(moved.shape[-len(axes) :]))
        groups: list[list[int]] = moved.reshape(-1, size).tolist()
        meshed = {rank for group in groups for rank in group}
        return groups + [[rank] for rank in range(self.world_size) if rank not in meshed]

    def group_of(self, dimensions: Sequence[str]) -> list[int]:
        """This rank's set of replicas, the one that counts first."""
        return next(group for group in self.replicas(dimensions) if self.rank in group)

    def holders(self, dimensions: Sequence[str]) -> int:
        """How many ranks hold data of their own."""
        return len(self.replicas(dimensions))
