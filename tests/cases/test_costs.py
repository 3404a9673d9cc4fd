"""What a call and a flush cost, in calls that are counted rather than timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.testing import run_ranks_in_process


def test_a_call_reads_its_tensors_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 keys of one dtype are read by one conversion a call, none by itself."""
    counts: dict[str, int] = {}
    for name in ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__"):
        inner = getattr(torch.Tensor, name)

        def call(*args: Any, _inner: Any = inner, _name: str = name, **kwargs: Any) -> Any:
            counts[_name] = counts.get(_name, 0) + 1
            return _inner(*args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, call)
    outputs = {f"key{i}": torch.tensor(float(i)) for i in range(50)}
    with dm.Logger(every=10) as logger:
        logger.log(outputs, step=0)
        counts.clear()
        for step in range(1, 101):
            logger.log(outputs, step=step)
        assert counts == {"numpy": 100}


def collectives(keys: int, world_size: int = 2) -> dict[str, int]:
    """The collectives that reduce some windows of so many keys, once these are known."""
    found: list[dict[str, int]] = []

    def rank() -> None:
        outputs = {f"{kind}{i}": tag(1.0) for kind, tag in TAGS.items() for i in range(keys)}
        with dm.Logger() as logger:
            logger.log(outputs, step=0)
            logger.flush(wait=True)
            worker = logger._core._parts.worker
            counts = {"all_reduce": 0, "all_gather": 0}
            for name in counts:
                inner = getattr(worker._communicator, name)

                def call(*args: Any, _inner: Any = inner, _name: str = name) -> Any:
                    counts[_name] += 1
                    return _inner(*args)

                setattr(worker._communicator, name, call)
            before = worker.rounds
            for step in range(1, 6):
                logger.log(outputs, step=step)
        counts["rounds"] = worker.rounds - before
        found.append(counts)

    run_ranks_in_process(rank, world_size)
    return found[0]


TAGS: dict[str, Any] = {"count": dm.Count, "mean": dm.Average, "top": dm.Maximum, "lr": dm.Same}


@pytest.mark.parametrize("keys", [1, 10, 150])
def test_the_number_of_collectives_does_not_depend_on_the_number_of_keys(keys: int) -> None:
    """Once the keys are known a round takes at most three, for 4 keys and for 600."""
    counts = collectives(keys)
    assert counts["all_gather"] == 0
    assert counts["all_reduce"] <= 3 * (counts["rounds"] + 1)
