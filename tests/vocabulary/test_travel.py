"""Kinds with many numbers on their way: processes, late keys, replicas, spools, checkpoints."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.comm.communicator import Op
from distmetrics.sinks import JsonlSink
from distmetrics.spool.merge import merge
from distmetrics.testing import MemorySink, run_ranks, run_ranks_in_process
from distmetrics.worker import worker
from tests.laws.reference import all_bits


def registry(**described: Any) -> dm.Registry:
    """One key of each kind that has many numbers, and one that has a single one."""
    made = dm.Registry()
    made.histogram("h", edges=[-1.0, 0.0, 1.0], **described)
    made.quantiles("q", qs=[0.1, 0.5, 0.9], **described)
    made.per_rank("r", **described)
    made.average("a", **described)
    return made


def outputs(step: int, rank: int, world_size: int) -> dict[str, Any]:
    """A rank's part of 300 samples of a step."""
    mine = np.random.default_rng(step).normal(size=300)[rank::world_size]
    return {"h": mine, "q": mine, "a": mine, "r": rank + 10 * step}


def expected(steps: int, world_size: int = 1) -> list[dict[str, Any]]:
    """What a run's rows hold but for the per-rank key."""
    memory = MemorySink()
    with dm.Logger(registry(), sinks=[memory], every=2) as logger:
        for step in range(steps):
            logger.log(outputs(step, 0, 1), step=step)
    return [without_ranks(record.values) for record in memory.records]


def without_ranks(values: Any) -> dict[str, Any]:
    """The values of keys that do not depend on the world size."""
    return {key: value for key, value in values.items() if not key.startswith("r/")}


def test_processes_write_what_one_process_does(tmp_path: Path) -> None:
    """Two and three real ranks: the file holds the same bits as that of a single one."""
    rows = expected(6)
    for world_size in (2, 3):
        run = tmp_path / str(world_size)

        def train(run: Path = run, world_size: int = world_size) -> None:
            with dm.Logger(registry(), run, every=2) as logger:
                for step in range(6):
                    logger.log(outputs(step, dm.get_rank(), world_size), step=step)

        run_ranks(train, world_size)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        found = [without_ranks(line["values"]) for line in lines]
        assert list(map(all_bits, found)) == list(map(all_bits, rows))
        assert lines[-1]["values"][f"r/rank{world_size - 1}"] == world_size - 1 + 50


def test_a_key_may_come_late_and_on_one_rank_only() -> None:
    """New tallies are agreed in the round that first holds them, beside those that are known."""
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry(), sinks=[memory] if rank == 0 else []) as logger:
            for step in range(4):
                values: dict[str, Any] = {"a": 1.0}
                if rank == 1 and step >= 1:
                    values["q"] = [1e-300, -1e300]
                if step >= 2:
                    values["h"] = [0.5] * (rank + 1)
                if rank == 2 and step == 3:
                    values["r"] = 7
                logger.log(values, step=step)
                logger.flush(wait=True)

    run_ranks_in_process(train, 3)
    last = memory.records[3].values
    assert [list(record.values) for record in memory.records[:2]] == [
        ["a"],
        ["a", "q/p10", "q/p50", "q/p90"],
    ]
    assert last["h"]["counts"] == [0, 6]
    assert last["q/p50"] == -1e300
    assert (last["r/rank2"], last["r/argmax"]) == (7, 2)


def test_the_number_of_collectives_is_that_of_single_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tallies travel with the sums: no round has more collectives for them."""

    def collectives(keys: list[str]) -> int:
        seen: list[Op | None] = []
        drive = worker.drive

        def counting(round_: Any, communicator: Any) -> Any:
            for name in ("all_reduce", "all_gather"):
                call = getattr(type(communicator), name)
                setattr(
                    communicator,
                    name,
                    lambda *given, call=call: (seen.append(None), call(communicator, *given))[1],
                )
            return drive(round_, communicator)

        with monkeypatch.context() as patch:
            patch.setattr(worker, "drive", counting)
            with dm.Logger(registry(), every=1) as logger:
                logger.log(dict.fromkeys(keys, 1.0), step=0)
                logger.flush(wait=True)
                seen.clear()
                logger.log(dict.fromkeys(keys, 2.0), step=1)
                logger.flush(wait=True)
                return len(seen)

    assert collectives(["h", "q", "r", "a"]) == collectives(["a"])


class Mesh:
    """Four ranks: two of data times two that are replicas."""

    mesh_dim_names = ("data", "tensor")
    mesh = torch.tensor([[0, 1], [2, 3]])


def test_replicas_count_once_and_are_compared() -> None:
    """Only the first of each set of replicas adds; one that differs is warned of."""
    memory = MemorySink()

    def train(differ: bool) -> None:
        rank = dm.get_rank()
        sinks = [memory] if rank == 0 else []
        made = registry(replicated_over=("tensor",))
        with dm.Logger(made, sinks=sinks, mesh=Mesh()) as logger:  # type: ignore[arg-type]
            value = 0.5 + rank // 2
            other = value + 0.001 if differ and rank == 3 else value
            logger.log({"h": [value] * 3, "q": [other] * 3, "r": value}, step=0)

    run_ranks_in_process(train, 4, False)
    values = memory.records[0].values
    assert values["h"] == {"edges": [-1.0, 0.0, 1.0], "counts": [0, 3], "above": 3}
    assert [key for key in values if key.startswith("r/rank")] == ["r/rank0", "r/rank2"]
    with pytest.warns(dm.DistmetricsWarning, match="'q' is replicated over 'tensor'.*rank 3"):
        run_ranks_in_process(train, 4, True)


def test_a_spool_holds_them_in_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that were not written are merged from the spools to the same values."""

    def full(sink: JsonlSink, records: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def train() -> None:
        with dm.Logger(registry(), tmp_path, every=2) as logger:
            for step in range(4):
                logger.log(outputs(step, dm.get_rank(), 2), step=step)

    with monkeypatch.context() as patch:
        patch.setattr(JsonlSink, "write_many", full)
        with pytest.warns(dm.DistmetricsWarning):
            run_ranks_in_process(train, 2)
    written = merge(tmp_path).written
    found = [without_ranks(record.values) for record in written]
    assert list(map(all_bits, found)) == list(map(all_bits, expected(4)))
    assert (written[1].values["r/rank0"], written[1].values["r/rank1"]) == (30, 31)


@pytest.mark.parametrize("world_size", [1, 3])
def test_an_open_window_goes_on_at_another_world_size(world_size: int, tmp_path: Path) -> None:
    """A checkpoint in the middle of a window holds its counts; the rest is added to them."""
    states: list[Any] = []
    memory = MemorySink()

    def before() -> None:
        with dm.Logger(registry(), every=2) as logger:
            logger.log(outputs(0, dm.get_rank(), 2), step=0)
            states.append(logger.state_dict())

    def after() -> None:
        rank = dm.get_rank()
        with dm.Logger(registry(), sinks=[memory] if rank == 0 else [], every=2) as logger:
            logger.load_state_dict(state)
            logger.log(outputs(1, rank, world_size), step=1)

    run_ranks_in_process(before, 2)
    torch.save(states[0], tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    run_ranks_in_process(after, world_size)
    (row,) = memory.records
    assert all_bits(without_ranks(row.values)) == all_bits(expected(2)[0])
    assert row.values["r/max"] == world_size - 1 + 10


def test_an_open_window_with_a_per_rank_value_goes_on_without_it() -> None:
    """Ranks may be others after a restart, so that only later values count."""
    with dm.Logger(registry(), every=5) as logger:
        logger.log({"r": 3}, step=0)
        state = logger.state_dict()
    memory = MemorySink()
    with dm.Logger(registry(), sinks=[memory], every=5) as logger:
        logger.load_state_dict(state)
        logger.log({"a": 1.0}, step=1)
    assert memory.records[0].values == {"a": 1.0}
