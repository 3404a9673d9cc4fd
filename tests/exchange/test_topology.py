"""Which ranks are replicas of each other, from the dimensions of a mesh."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.errors import InvalidValue
from distmetrics.exchange.topology import RecordedMesh, Topology

NAMES = ("data", "tensor", "context")


@st.composite
def meshes(draw: st.DrawFn) -> tuple[RecordedMesh, int, tuple[str, ...]]:
    """A mesh of some ranks in any order, a world that may have more, and some dimensions."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    world_size = prod(shape) + draw(st.integers(0, 2))
    ranks = draw(st.permutations(range(world_size)))[: prod(shape)]
    names = NAMES[: len(shape)]
    over = draw(st.lists(st.sampled_from(names), unique=True))
    return RecordedMesh(np.reshape(ranks, shape), names), world_size, tuple(over)


@given(meshes())
def test_replicas_differ_in_the_replicated_dimensions_alone(
    case: tuple[RecordedMesh, int, tuple[str, ...]],
) -> None:
    """Every rank is in one set, beside those whose other coordinates are the same."""
    mesh, world_size, over = case
    topology = Topology(0, world_size, mesh)
    groups = topology.replicas(over)
    assert sorted(rank for group in groups for rank in group) == list(range(world_size))
    place = {int(mesh.mesh[at]): at for at in np.ndindex(mesh.mesh.shape)}
    fixed = [axis for axis, name in enumerate(mesh.mesh_dim_names) if name not in over]
    for group in groups:
        inside = [place[rank] for rank in group if rank in place]
        assert len(inside) in (0, len(group))
        assert len({tuple(at[axis] for axis in fixed) for at in inside}) <= 1
        for rank in group:
            assert Topology(rank, world_size, mesh).group_of(over) == group
    assert topology.holders(over) == len(groups)


def test_the_first_of_a_set_is_the_first_in_the_mesh() -> None:
    """Its part counts; the order is the mesh's, whatever the ranks are called."""
    mesh = RecordedMesh(np.array([[3, 1], [0, 2]]), ("data", "tensor"))
    assert Topology(0, 4, mesh).replicas(("tensor",)) == [[3, 1], [0, 2]]
    assert Topology(0, 4, mesh).replicas(("data",)) == [[3, 0], [1, 2]]
    assert Topology(0, 4, mesh).replicas(("tensor", "data")) == [[3, 1, 0, 2]]


def test_without_a_mesh_every_rank_counts() -> None:
    """No dimension is replicated."""
    assert Topology(1, 3).replicas(()) == [[0], [1], [2]]
    with pytest.raises(InvalidValue, match="'loss' is replicated over 'tensor', but there is no"):
        Topology(1, 3).check(("tensor",), "loss")
    Topology(0, 1).check(("tensor",), "loss")


def test_a_mesh_without_names_is_refused() -> None:
    """A key names the dimensions it is replicated over."""
    with pytest.raises(InvalidValue, match="mesh_dim_names="):
        Topology(0, 2, RecordedMesh(np.arange(2), ()))
