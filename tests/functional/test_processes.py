"""The functions over real process groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics.testing import run_ranks


def plain(outputs: Any) -> dict[str, Any]:
    """The values as Python numbers."""
    return {key: value.item() for key, value in outputs.items()}


def test_ranks_as_processes_reduce_what_they_have() -> None:
    """Different keys, dtypes and calls of both functions on three Gloo processes."""

    def rank_main() -> list[dict[str, Any]]:
        rank = dist.get_rank()
        values = [torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(0.25), torch.tensor(0)]
        outputs = {
            "loss": torch.tensor(9.0),
            "num_pairs": torch.tensor(rank),
            f"only{rank}": values[1],
        }
        return [
            plain(dm.reduce_dict({"x": values[rank], "n": True}, average=True)),
            plain(dm.reduce_dict({"n": torch.tensor(True), f"k{rank}": rank}, average=False)),
            plain(dm.reduce_dict({} if rank else {"zero": 1.5})),
            plain(dm.reduce_scalar_outputs_for_logging(outputs)),
        ]

    for results in run_ranks(rank_main, 3):
        assert results == [
            {"x": 0.25, "n": 1.0},
            {"n": 3, "k0": 0, "k1": 1, "k2": 2},
            {"zero": 1.5},
            {"loss": 9.0, "num_pairs": 3, "only0": 0.25, "only1": 0.25, "only2": 0.25},
        ]


def test_the_training_groups_own_collectives_are_left_alone() -> None:
    """The functions use a group of their own, between and beside collectives of the training."""

    def rank_main() -> list[float]:
        found = []
        for i in range(5):
            work = dist.all_reduce(flying := torch.ones(1000), async_op=True)
            found.append(dm.reduce_dict({"x": float(i + dist.get_rank())})["x"].item())
            work.wait()
            found.append(flying[0].item())
        return found

    for found in run_ranks(rank_main, 2):
        assert found == [value for i in range(5) for value in (i + 0.5, 2.0)]


def test_the_groups_life_ends_with_the_default_groups() -> None:
    """The functions work over the default group of now, and without one refuse to work alone."""

    def rank_main() -> list[dict[str, Any]]:
        rank = dist.get_rank()
        first = plain(dm.reduce_dict({"x": float(rank)}))
        store = dist.TCPStore("127.0.0.1", 0, None, True) if rank == 0 else None
        port = [0 if store is None else store.port]
        dist.broadcast_object_list(port, 0)
        if store is None:
            store = dist.TCPStore("127.0.0.1", port[0], None, False)
        dist.destroy_process_group()
        with pytest.raises(dm.errors.NotInitialized, match="setup_distributed"):
            dm.reduce_dict({"x": float(rank)})
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        again = plain(dm.reduce_dict({"x": float(rank)}))
        dist.barrier()
        return [first, again]

    for results in run_ranks(rank_main, 2):
        assert results == [{"x": 0.5}, {"x": 0.5}]


def test_an_error_on_one_process_is_an_error_on_all_and_not_the_end() -> None:
    """A bad value makes every process raise at once; the next call works."""

    def rank_main() -> tuple[str, dict[str, Any]]:
        bad: Any = "text" if dist.get_rank() == 1 else 1.0
        try:
            dm.reduce_dict({"x": bad})
        except dm.DistmetricsError as error:
            return str(error), plain(dm.reduce_dict({"x": 1.0}))
        raise AssertionError("nothing was raised")

    first, second = run_ranks(rank_main, 2)
    assert "rank 1" in first[0]
    assert "'x'" in second[0]
    assert first[1] == second[1] == {"x": 1.0}


def test_loggers_and_functions_live_side_by_side() -> None:
    """A logger's rounds and the functions' do not mix."""

    def rank_main() -> tuple[float, dict[str, Any]]:
        with dm.Logger(every=2) as logger:
            for step in range(6):
                logger.log({"x": float(step)}, step=step)
                reduced = dm.reduce_dict({"x": float(step + dist.get_rank())})["x"].item()
                assert reduced == step + 0.5
            values = logger.flush(wait=True)
        assert values is not None
        return reduced, values

    for reduced, values in run_ranks(rank_main, 2):
        assert reduced == 5.5
        assert values == {"x": 4.5}
