"""Real device meshes and DTensors on Gloo processes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.testing import MemorySink, run_ranks

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:torch")


def test_a_device_mesh_says_which_ranks_are_replicas() -> None:
    """Of tensor-parallel peers one counts; slices of a mesh are refused on every rank."""

    def rank() -> Any:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        registry = dm.Registry()
        registry.count("tokens", replicated_over=("tensor",))
        registry.l2_norm("grad_norm", replicated_over=("data",))
        memory = MemorySink()
        with dm.Logger(registry, sinks=[memory], mesh=mesh) as logger:
            tokens = (5, 5, 7, 7)[dm.get_rank()]
            norm = (3.0, 4.0, 3.0, 4.0)[dm.get_rank()]
            logger.log({"tokens": tokens, "grad_norm": norm, "all": dm.Count(tokens)}, step=0)
        with pytest.raises(InvalidValue, match="pass the whole mesh, not a slice"):
            dm.Logger(mesh=mesh["tensor"])
        unnamed = init_device_mesh("cpu", (4,))
        with pytest.raises(InvalidValue, match="mesh= has no names"):
            dm.Logger(mesh=unnamed)
        return [dict(record.values) for record in memory.records]

    found = run_ranks(rank, 4, timeout=50)
    assert found[0] == [{"tokens": 12, "grad_norm": 5.0, "all": 24}]
    assert found[1:] == [[], [], []]


def test_a_replicated_dtensor_is_a_value_and_any_other_is_refused() -> None:
    """A shard or a partial sum is not the value; the error says what to pass instead."""

    def rank() -> Any:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("shard",))
        full = torch.tensor([1.0, 2.0, 3.0, 4.0])
        replicated = distribute_tensor(full, mesh, [Replicate()])
        sharded = distribute_tensor(full, mesh, [Shard(0)])
        partial = DTensor.from_local(torch.ones(()) * 2, mesh, [Partial()])
        gathered = sharded.redistribute(mesh, [Replicate()])
        registry = dm.Registry()
        registry.average("x", "y")
        registry.l2_norm("norm")
        memory = MemorySink()
        with dm.Logger(registry, sinks=[memory]) as logger:
            for wrong in (sharded, partial):
                with pytest.raises(InvalidType, match=r"key 'x': the value is a DTensor placed as"):
                    logger.log({"x": wrong}, step=0)
            for step in range(2):
                logger.log({"x": replicated, "y": gathered, "loss": partial.full_tensor()}, step)
                logger.log({"norm": sharded.to_local()}, step)
            loss = (replicated.detach().requires_grad_() * 2).sum()
            logger.log({"x": loss}, step=2)
            loss.backward()
        return [dict(record.values) for record in memory.records]

    found = run_ranks(rank, 2, timeout=50)[0]
    each = {"x": 2.5, "y": 2.5, "loss": 4.0, "norm": 30.0**0.5}
    assert found == [each, each, {"x": 20.0}]
