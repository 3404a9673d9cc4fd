"""The fast path gives what the way key by key gives, whatever the calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.errors import DistmetricsError
from tests.snapshot.taking import Taker

FLOATS = st.floats(-100, 100, width=16)
SCALARS: list[Any] = [
    lambda x: x,
    int,
    lambda x: x > 0,
    lambda x: int(x) + 2**63,
    np.float32,
    np.array,
    torch.tensor,
    lambda x: torch.tensor([x]),
    lambda x: torch.tensor([[x]], dtype=torch.float64),
    lambda x: torch.tensor(x).bfloat16(),
    lambda x: torch.tensor(int(x)),
    lambda x: torch.tensor(x > 0),
    lambda x: torch.tensor(x, requires_grad=True) * 1,
    lambda x: torch.nn.Parameter(torch.tensor(x)),
    lambda x: torch.tensor([x, x]),
    lambda x: torch.tensor([]),
    lambda x: None,
    lambda x: "text",
    lambda x: [x, 1],
    lambda x: {"in": x},
    lambda x: {"in": x, "out": torch.tensor(x)},
    dm.Count,
]
KEYS = ("a", "n", "loss", "w", "hi", "gone", "speed", "s", "p/q")


def make_registry() -> dm.Registry:
    """Keys of many kinds; `a`, `s` and others are not registered."""
    registry = dm.Registry()
    registry.count("n")
    registry.average("loss", weight="w")
    registry.maximum("hi")
    registry.ignore("gone")
    registry.rate("tokens_per_second", of="n", seconds="speed")
    registry.ratio("share", "n", "w")
    return registry


def attempt(taker: Taker, outputs: Any, weight: Any) -> Any:
    """The snapshot, or the text of the error."""
    try:
        return taker.take(outputs, weight)
    except DistmetricsError as error:
        return f"{type(error).__name__}: {error}"


@settings(max_examples=150, deadline=None)
@given(data=st.data(), lenient=st.booleans())
def test_the_fast_path_gives_what_key_by_key_gives(data: st.DataObject, lenient: bool) -> None:
    """Calls of changing forms add the same, and fail with the same words, on both ways."""
    quick = Taker(make_registry(), lenient=lenient)
    slow = Taker(make_registry(), lenient=lenient, fast=False)
    forms = st.sampled_from(range(len(SCALARS)))
    shapes = data.draw(
        st.lists(st.dictionaries(st.sampled_from(KEYS), forms, max_size=4), min_size=1, max_size=2)
    )
    weights = [None, 0.5, 2, torch.tensor(3.0), -1.0]
    for shape in data.draw(st.lists(st.sampled_from(shapes), min_size=2, max_size=5)):
        outputs = {key: SCALARS[form](data.draw(FLOATS)) for key, form in shape.items()}
        if "w" in outputs and isinstance(outputs["w"], float):
            outputs["w"] = data.draw(st.sampled_from([outputs["w"], 0.0, 2.0, float("nan")]))
        weight = data.draw(st.sampled_from(weights))
        one, two = attempt(quick, outputs, weight), attempt(slow, outputs, weight)
        if isinstance(one, str) or isinstance(two, str):
            assert one == two
        else:
            assert quick.state(one) == slow.state(two)
    assert quick.notes == slow.notes
    assert [(k, str(e)) for k, e in quick.reports] == [(k, str(e)) for k, e in slow.reports]


@pytest.mark.parametrize(
    "outputs",
    [
        {"a": 0.5, "n": 3},
        {"a": torch.ones(()), "n": torch.tensor(3), "hi": torch.ones(1)},
        {"loss": torch.ones(()), "w": 2, "logits": torch.ones(2, 3), "text": "x", "gone": 1},
        {"a": torch.ones((), requires_grad=True), "n": True},
        {"n": 3, "speed": 0.5},
    ],
    ids=["numbers", "tensors", "with ignored values", "with a graph", "made from others"],
)
def test_the_usual_calls_are_learned(outputs: dict[str, Any]) -> None:
    """Flat calls of scalars take the fast path from the second time on."""
    taker = Taker(make_registry())
    taker.take(outputs)
    assert taker.learned == 1


def test_nested_values_are_not_lost_where_the_number_of_keys_is_the_same() -> None:
    """A nested dict of one value beside another key has as many keys flat as nested."""
    taker = Taker()
    calls = [{"a": {"b": i}, "c": 2 * i} for i in (1, 2, 3)]
    state = taker.state(*[taker.take(call) for call in calls])
    assert {key: rows[0] >> 1088 for key, (rows, _, _) in state.items()} == {"a/b": 6, "c": 12}


def test_a_tensor_that_was_ignored_is_logged_once_it_is_a_scalar() -> None:
    """The last, smaller batch of an unregistered tensor may have one element."""
    taker = Taker()
    for _ in range(2):
        taker.take({"a": 1.0, "per_sample": torch.ones(3)})
    last = taker.take({"a": 1.0, "per_sample": torch.ones(1)})
    assert taker.state(last)["per_sample"][1][0] == 1


def test_a_tensor_of_another_layout_is_refused_by_its_key() -> None:
    """Also after calls with plain tensors of the same dtype."""
    registry = dm.Registry()
    registry.count("c*")
    taker = Taker(registry)
    for _ in range(2):
        taker.take({"c0": torch.ones(()), "c1": torch.ones(())})
    for value in (torch.ones(()).to_sparse(), torch.ones((), device="meta")):
        with pytest.raises(dm.errors.InvalidType, match="key 'c1'"):
            taker.take({"c0": torch.ones(()), "c1": value})
        with pytest.raises(dm.errors.InvalidType, match="key 'c0'"):
            taker.take({"c0": value, "c1": value})


def test_forms_of_calls_are_forgotten_where_they_never_recur() -> None:
    """Keys that change with every call do not fill the memory."""
    taker = Taker()
    for i in range(3000):
        taker.take({"a": 1.0, f"layer{i % 1500}": 1.0})
    assert taker.learned <= 1024
    assert len(taker.snapshotter._plans) <= 1024


def test_a_declaration_made_later_conflicts_as_it_would_key_by_key() -> None:
    """A key that was logged by default cannot be declared otherwise afterwards."""
    registry = dm.Registry()
    taker = Taker(registry)
    taker.take({"a": 1.0})
    registry.count("a")
    with pytest.raises(dm.DeclarationConflict, match=r"'a'.*average\(\).*count\(\)"):
        taker.take({"a": 1.0})
