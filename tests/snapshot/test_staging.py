"""Values on a device: gathered there, copied together, and their weights looked at afterwards.

Tensors of the CPU stand for those of a device: they take the same way, but for the streams.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot import staging as module
from distmetrics.snapshot.staging import InFlight, Staging, arrived, land
from tests.snapshot.taking import Taker


def weighted() -> Taker:
    """A loss with a weight, and a count."""
    registry = dm.Registry()
    registry.average("loss", weight="w")
    registry.count("n")
    return Taker(registry)


def on_device(taker: Taker, outputs: dict[str, Any], wrong: float = 77.0) -> Snapshot:
    """The snapshot as it would be if its float values lived on a device, 77 being `wrong`."""
    snapshot = taker.take(outputs)
    assert snapshot is not None
    snapshot.arrays = [
        torch.from_numpy(np.where(array == 77.0, array.dtype.type(wrong), array))
        if array.dtype.kind == "f"
        else array
        for array in snapshot.arrays
    ]
    snapshot.staged = False
    return snapshot


def call(loss: float, w: float, n: int = 1) -> dict[str, Any]:
    """One call with its loss and weight on the device."""
    return {"loss": torch.tensor(loss), "w": torch.tensor(w), "n": n}


def test_what_is_staged_arrives_as_it_was_taken() -> None:
    """Many snapshots share a transfer; each gets its own part back."""
    taker, staging = weighted(), Staging()
    snapshots = [on_device(taker, call(float(i), 2.0, i)) for i in range(5)]
    for snapshot in snapshots:
        staging.add(snapshot)
    assert staging
    staging.copy()
    assert not staging
    assert all(snapshot.staged and arrived(snapshot) for snapshot in snapshots)
    flying = [array for s in snapshots for array in s.arrays if isinstance(array, InFlight)]
    assert len({id(part.buffer) for part in flying}) == 1
    assert [land(snapshot) for snapshot in snapshots] == [[]] * 5
    state = taker.state(*snapshots)
    assert [row >> 1088 for row in state["loss"][0]] == [20, 10]
    assert state["n"][0][0] >> 1088 == 10


def test_dtypes_have_transfers_of_their_own_and_hosts_none() -> None:
    """Each dtype is joined by itself; arrays that are on the host stay there."""
    taker, staging = Taker(), Staging()
    snapshot = on_device(taker, {"a": torch.tensor(1.0), "b": torch.tensor(2.0).double(), "c": 3})
    host = [array for array in snapshot.arrays if isinstance(array, np.ndarray)]
    staging.add(snapshot)
    staging.copy()
    kinds = [type(array) for array in snapshot.arrays]
    assert sorted(kind.__name__ for kind in kinds) == ["InFlight", "InFlight", "ndarray"]
    land(snapshot)
    assert all(isinstance(array, np.ndarray) for array in snapshot.arrays)
    assert any(array is host[0] for array in snapshot.arrays)


def test_much_is_copied_before_its_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory on the device stays bounded."""
    monkeypatch.setattr(module, "BYTES", 64)
    taker, staging = weighted(), Staging()
    snapshots = [on_device(taker, call(1.0, 1.0)) for _ in range(20)]
    for snapshot in snapshots:
        staging.add(snapshot)
    assert sum(snapshot.staged for snapshot in snapshots) >= 16


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_wrong_weight_is_found_on_arrival_and_left_out(wrong: float) -> None:
    """It could not be looked at before without waiting for the device."""
    taker, staging = weighted(), Staging()
    good, bad = on_device(taker, call(1.0, 2.0)), on_device(taker, call(100.0, 77.0), wrong)
    for snapshot in (good, bad):
        staging.add(snapshot)
    staging.copy()
    assert land(good) == []
    (error,) = land(bad)
    assert "key 'loss': a weight is" in str(error)
    assert [row >> 1088 for row in taker.state(good, bad)["loss"][0]] == [2, 2]


def test_wrong_weights_among_several_of_a_call_are_found_by_key() -> None:
    """Arrays of weights and scalars alike; denominators may be negative."""
    registry = dm.Registry()
    registry.average("a", weight="wa")
    registry.std("b", weight="wb")
    taker, staging = Taker(registry, "val/"), Staging()
    snapshot = on_device(
        taker,
        {
            "a": torch.ones(3),
            "wa": torch.tensor([1.0, 77.0, 1.0]),
            "b": torch.ones(2),
            "wb": torch.ones(2),
            "r": dm.Ratio(torch.tensor(1.0), torch.tensor(77.0)),
        },
        wrong=-1.0,
    )
    staging.add(snapshot)
    staging.copy()
    assert [str(error).split(":")[0] for error in land(snapshot)] == ["key 'val/a'"]


def test_landing_twice_changes_nothing() -> None:
    """What is on the host stays as it is."""
    taker, staging = weighted(), Staging()
    snapshot = on_device(taker, call(3.0, 2.0))
    staging.add(snapshot)
    staging.copy()
    land(snapshot)
    before = [array.copy() for array in snapshot.arrays]
    assert land(snapshot) == []
    assert all(np.array_equal(a, b) for a, b in zip(before, snapshot.arrays, strict=True))
