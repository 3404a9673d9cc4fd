"""What a call adds, what it refuses, and that it leaves what it was given alone."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue, UnknownKey
from tests.snapshot.taking import Taker, sums

# --- a call is taken whole or not at all --------------------------------------------------------


def test_a_wrong_value_leaves_nothing_of_its_call() -> None:
    """Not even the declarations that the call's tags made."""
    registry = dm.Registry()
    registry.count("n")
    taker = Taker(registry)
    with pytest.raises(InvalidType, match="'n'"):
        taker.take({"a": dm.Count(3), "n": "many"})
    assert [key.name for key in taker.snapshotter.table] == []
    assert sums(taker, {"a": dm.Average(0.5), "n": 1}) == {"a": 0.5, "n": 1}


def test_a_wrong_value_is_left_out_where_errors_are_warned_of() -> None:
    """The rest of the call is logged, by the fast path as well, and each error is reported."""
    registry = dm.Registry()
    registry.average("loss", weight="w")
    taker = Taker(registry, "val/", lenient=True)
    calls = [
        {"loss": 1.0, "w": 2.0, "a": 1.0},
        {"loss": 1.0, "w": -2.0, "a": 1.0},
        {"loss": "x", "w": 2.0, "a": 1.0},
        {"loss": torch.ones(2), "w": 2.0, "a": 1.0},
        {"loss": 3.0, "w": 2.0, "a": 1.0},
    ]
    assert sums(taker, *calls) == {"loss": 8.0, "w": 6.0, "a": 5.0}
    assert [key for key, _ in taker.reports] == ["val/loss"] * 3


def test_wrong_keys_are_left_out_where_errors_are_warned_of() -> None:
    """Keys that collide or are no keys are reported by name, calls that are no dict too."""
    taker = Taker(lenient=True)
    state = sums(taker, {"a/b": 1.0, "a": {"b": 2.0}, 3: 4.0, "c": 5.0}, [1])  # type: ignore[dict-item, arg-type]
    assert state == {"a/b": 1.0, "c": 5.0}
    assert [key for key, _ in taker.reports] == ["a/b", "3", "outputs"]


# --- weights ------------------------------------------------------------------------------------


def weighted() -> dm.Registry:
    """An average whose weight is a key of the call."""
    registry = dm.Registry()
    registry.average("loss", weight="n")
    registry.std("spread", weight="n")
    return registry


@pytest.mark.parametrize(
    "outputs",
    [
        {"loss": 2.0, "n": 3},
        {"loss": torch.tensor(2.0), "n": torch.tensor([3])},
        {"loss": torch.tensor([[2.0]]), "n": np.int32(3)},
        {"loss": [2.0, 4.0], "n": [1, 1]},
        {"loss": torch.tensor([[1.0], [5.0]]), "n": np.array([[1], [1]])},
        {"loss": dm.Average(2.0), "n": 3},
        {"loss": dm.Average(6.0, weight=1), "n": 5},
        {"loss": 2.0, "n": dm.Count(3)},
    ],
    ids=repr,
)
def test_a_weight_comes_from_its_tag_or_from_its_key(outputs: dict[str, Any]) -> None:
    """A weight has the shape of its value, or both are one number; a tag's own comes first."""
    taker = Taker(weighted())
    assert sums(taker, outputs)["loss"] == 6.0


def test_the_weight_of_the_call_serves_averages_that_name_none() -> None:
    """It stands in for a missing key too, and does nothing to counts."""
    taker = Taker(weighted())
    snapshot = taker.take({"loss": 2.0, "other": 3.0, "count": dm.Count(1)}, 10)
    state = taker.state(snapshot)
    assert [state[key][0][0] >> 1088 for key in ("loss", "other", "count")] == [20, 30, 1]


@pytest.mark.parametrize(
    ("outputs", "weight", "said"),
    [
        ({"loss": 2.0}, None, "key 'loss' .*its weight 'n' is not in the call.*never guessed"),
        ({"loss": 2.0, "n": None}, None, "its weight 'n' is not in the call"),
        ({"loss": [1.0, 2.0], "n": 3}, None, r"its weight has shape \(\) and its value \(2,\)"),
        ({"loss": [1.0, 2.0], "n": [1, 2, 3]}, None, r"shape \(3,\) and its value \(2,\)"),
        ({"loss": torch.ones(2, 1), "n": [1, 2]}, None, r"shape \(2,\) and its value \(2, 1\)"),
        ({"loss": 2.0, "n": -1}, None, "key 'loss': a weight is -1; weights are finite and not"),
        ({"loss": 2.0, "n": float("nan")}, None, "a weight is nan"),
        ({"loss": 2.0, "n": float("inf")}, None, "a weight is inf"),
        ({"loss": [1.0, 2.0], "n": [1.0, -0.5]}, None, "a weight is -0.5"),
        ({"loss": dm.Average(1.0, weight=-1)}, None, "a weight is -1"),
        ({"spread": 2.0}, None, "key 'spread' .*its weight 'n'"),
        ({"other": [1.0, 2.0]}, 3, "scalar"),
        ({"other": 1.0}, [1, 2], r"its weight has shape \(2,\) and its value \(\)"),
        ({"r": dm.Ratio([1, 2], 3)}, None, "its denominator has shape"),
    ],
    ids=repr,
)
def test_a_wrong_weight_is_an_error(outputs: dict[str, Any], weight: Any, said: str) -> None:
    """A weight that is missing, of another shape, negative or not finite is named with its key."""
    if said == "scalar":
        taker = Taker(weighted())
        assert taker.take(outputs, weight) is None  # unregistered and no scalar: ignored
        return
    with pytest.raises(InvalidValue, match=said):
        Taker(weighted()).take(outputs, weight)


def test_a_weight_of_a_wrong_type_is_an_error() -> None:
    """The message says that it is the weight."""
    with pytest.raises(InvalidType, match="key 'loss': the weight is str '3'"):
        Taker(weighted()).take({"loss": 1.0, "n": "3"})


def test_a_ratio_takes_two_numbers() -> None:
    """One that lacks its denominator is an error that says so."""
    with pytest.raises(InvalidType, match="key 'acc': the denominator of its Ratio is None"):
        Taker().take({"acc": dm.Ratio(3, None)})


# --- keys that are not registered ---------------------------------------------------------------


def test_an_unregistered_scalar_is_noted_once() -> None:
    """The note names the key, what it is taken as, and how to say so."""
    taker = Taker()
    for _ in range(3):
        taker.take({"a": 1.0, "image": torch.ones(3, 4), "text": "x"})
    a, image, text = taker.notes
    assert "'a' is not registered: taken as average()" in a
    assert "registry.average('a')" in a
    assert "registry.ignore('a')" in a
    assert "'image' is not registered and its value is no scalar: ignored" in image
    assert "'text'" in text


def test_the_default_of_the_registry_is_taken() -> None:
    """A registry may count what it does not know, or leave it out."""
    taker = Taker(dm.Registry(default="count"))
    taker.take({"a": 1.0})
    assert "taken as count()" in taker.notes[0]
    silent = Taker(dm.Registry(default="ignore"))
    assert silent.take({"a": 1.0}) is None
    assert silent.notes == []


def test_a_strict_registry_refuses_what_it_does_not_know() -> None:
    """The error names the key with its child and the nearest registered names."""
    registry = dm.Registry(strict=True)
    registry.average("val/loss")
    with pytest.raises(UnknownKey, match=r"key 'val/los' is not registered.*'val/loss'"):
        Taker(registry, "val/").take({"los": 1.0})
    for value in (torch.ones(3), "text", dm.Count(1)):
        with pytest.raises(KeyError, match="'other'"):
            Taker(registry).take({"other": value})


# --- one declaration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (dm.Count(1), dm.Average(1), r"declared as count\(\) and now comes as average\(\)"),
        (dm.Count(1), 1, r"came as count\(\) before and now comes without a tag, as average\(\)"),
        (1, dm.Count(1), r"declared as average\(\) and now comes as count\(\)"),
        (dm.Std(1), dm.Std(1, ddof=1), r"std\(\) and now comes as std\(ddof=1\)"),
    ],
)
def test_a_key_has_one_declaration(first: Any, second: Any, said: str) -> None:
    """Two tags, or a tag and none, that differ are an error that shows both."""
    taker = Taker()
    taker.take({"k": first})
    with pytest.raises(dm.DeclarationConflict, match=f"key 'k' .*{said}"):
        taker.take({"k": second})


def test_a_tag_may_not_contradict_the_registry() -> None:
    """The error shows the declaration and the tag; a tag that agrees is fine."""
    registry = weighted()
    registry.count("c")
    taker = Taker(registry)
    with pytest.raises(dm.DeclarationConflict, match=r"registered as count\(\).*comes as total"):
        taker.take({"c": dm.Total(1)})
    with pytest.raises(dm.DeclarationConflict, match=r"registered as std\(weight='n'\)"):
        taker.take({"spread": dm.Std(1.0, weight=1, ddof=1)})
    assert sums(taker, {"c": dm.Count(2), "loss": dm.Average(1.0, weight=2)})["c"] == 2


def test_a_scalar_reduction_takes_one_number() -> None:
    """A learning rate is one number of any shape, and never several or none."""
    registry = dm.Registry()
    registry.same("lr")
    taker = Taker(registry)
    taker.take({"lr": torch.tensor([[0.1]])})
    for wrong in (torch.ones(2), [], [1.0, 1.0]):
        with pytest.raises(InvalidValue, match="key 'lr': same takes one number"):
            taker.take({"lr": wrong})


# --- keys that are made from others -------------------------------------------------------------


def rates() -> dm.Registry:
    """A ratio and a rate."""
    registry = dm.Registry()
    registry.ratio("accuracy", "correct", "n")
    registry.rate("n_per_second", of="n", seconds="took")
    return registry


def test_keys_made_from_others_appear_with_the_first_of_those() -> None:
    """Nobody logs a ratio, so its place is made when a part of it comes."""
    taker = Taker(rates())
    taker.take({"correct": 1})
    assert [key.name for key in taker.snapshotter.table] == ["correct", "accuracy"]
    taker.take({"n": 1})
    assert {key.name for key in taker.snapshotter.table} > {"n", "n_per_second"}


def test_a_key_made_from_others_cannot_be_logged() -> None:
    """The error says what to log instead."""
    with pytest.raises(InvalidValue, match=r"'accuracy' .*made from 'correct', 'n': log those"):
        Taker(rates()).take({"accuracy": 0.5})


def test_seconds_of_a_rate_are_summed_whatever_their_key_is() -> None:
    """Neither a weight of the call nor the key's own reduction changes how long it took."""
    for declare in ("average", "maximum", "same", "count", "std", "ignore"):
        registry = rates()
        getattr(registry, declare)("took")
        taker = Taker(registry)
        state = taker.state(*[taker.take({"n": 5, "took": 0.5}, 8) for _ in range(3)])
        assert state["n_per_second"][0] == [3 << 1087]
    taker = Taker(rates())
    tagged = taker.take({"n": 1, "took": dm.Maximum(0.5)})
    assert taker.state(tagged)["n_per_second"][0] == [1 << 1087]


@pytest.mark.parametrize("kind", ["average", "maximum", "minimum", "std", "l2_norm", "same"])
def test_a_ratio_needs_sums(kind: str) -> None:
    """A part that is no sum is an error that names both keys, whichever comes first."""
    registry = rates()
    getattr(registry, kind)("correct")
    for outputs in ({"correct": 1.0, "n": 2}, {"n": 2, "correct": 1.0}, {"correct": 1.0}):
        with pytest.raises(InvalidValue, match=rf"'accuracy' .*the sum of 'correct'.*{kind}"):
            Taker(registry).take(outputs)


def test_a_ratio_needs_parts_that_are_not_ignored() -> None:
    """A part that is left out of records has no sum."""
    registry = rates()
    registry.ignore("n")
    with pytest.raises(InvalidValue, match="'n', but that is ignored; register 'n' as a count"):
        Taker(registry).take({"correct": 1, "n": 2})


def test_a_ratio_may_be_made_from_totals() -> None:
    """A running total has a sum in each window."""
    registry = rates()
    registry.total("correct", "n")
    taker = Taker(registry)
    assert sums(taker, {"correct": 1, "n": 2, "took": 1.0})["correct"] == 1


# --- what is given stays as it is ---------------------------------------------------------------


def test_a_call_changes_nothing_in_what_it_is_given() -> None:
    """Same objects, same values, same graphs, on the first call and on the fast path."""
    x = torch.ones(3, requires_grad=True)
    outputs: dict[str, Any] = {
        "loss": (x * 2).sum(),
        "n": torch.tensor(3),
        "array": np.array(1.0),
        "nested": {"a": 1, "b": [1, 2]},
        "none": None,
        "logits": torch.ones(2, 2),
    }
    before = dict(outputs)
    nested = copy.deepcopy(outputs["nested"])
    loss, version = outputs["loss"].item(), outputs["loss"]._version
    taker = Taker()
    for _ in range(3):
        taker.take(outputs)
    assert list(outputs) == list(before)
    assert all(outputs[key] is before[key] for key in before)
    assert outputs["nested"] == nested
    assert outputs["loss"].requires_grad
    assert outputs["loss"]._version == version
    outputs["loss"].backward()
    assert loss == 6.0
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_a_value_changed_later_stays_as_it_was_logged() -> None:
    """Values are copied at the call: a tensor that is reused does not change the past."""
    taker = Taker()
    value = torch.zeros(())
    snapshots = []
    for i in (1, 2, 3, 4):
        value.fill_(i)
        snapshots.append(taker.take({"a": value}))
    value.fill_(99)
    rows, counters, _ = taker.state(*snapshots)["a"]
    assert (rows[0] >> 1088, counters[0]) == (10, 4)


def test_no_graph_is_kept_alive() -> None:
    """Once the loop lets its loss go, so does the logger, even while snapshots wait."""
    taker = Taker()
    snapshots = []
    for _ in range(3):
        loss = torch.ones((), requires_grad=True) * 2
        node = weakref.ref(loss)
        snapshots.append(taker.take({"loss": loss, "per_sample": torch.ones(3) * loss}))
        del loss
        gc.collect()
        assert node() is None


def test_tensors_of_inference_mode_and_from_within_it_are_taken() -> None:
    """An evaluation under `inference_mode` logs as any other."""
    taker = Taker()
    with torch.inference_mode():
        inside = [taker.take({"a": torch.ones(())}) for _ in range(2)]
        value = torch.ones(())
    outside = [taker.take({"a": value}) for _ in range(2)]
    assert taker.state(*inside, *outside)["a"][1][0] == 4
