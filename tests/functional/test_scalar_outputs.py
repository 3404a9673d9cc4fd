"""`reduce_scalar_outputs_for_logging`: a model's outputs, reduced in place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.testing import run_ranks_in_process

reduce_outputs = dm.reduce_scalar_outputs_for_logging


def reduced(*inputs: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    """The outputs of each rank after the call, where rank k has the k-th input."""

    def call() -> dict[str, Any]:
        outputs = inputs[dm.get_rank()]
        assert reduce_outputs(outputs, **options) is outputs
        return outputs

    return run_ranks_in_process(call, len(inputs))


def plain(outputs: dict[str, Any]) -> dict[str, Any]:
    """Tensors as Python numbers or lists."""
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in outputs.items()}


def scalar(value: float, **options: Any) -> torch.Tensor:
    """A 0-dim tensor."""
    return torch.tensor(value, **options)


def test_scalars_are_averaged_in_place_on_every_rank() -> None:
    """The dict itself holds the averages afterwards."""
    for outputs in reduced({"acc": scalar(0.25)}, {"acc": scalar(0.75)}):
        assert plain(outputs) == {"acc": 0.5}
        assert outputs["acc"].dtype is torch.float32


@pytest.mark.parametrize("suffix", dm.presets.MATCHING_COUNT_SUFFIXES)
def test_count_suffixes_are_summed(suffix: str) -> None:
    """Without a registry, keys that end in a count's suffix are summed, as integers."""
    inputs = [{suffix: scalar(k), f"head0_{suffix}": scalar(float(k))} for k in (2, 5, 0)]
    for outputs in reduced(*inputs):
        assert plain(outputs) == {suffix: 7, f"head0_{suffix}": 7.0}
        assert outputs[suffix].dtype is torch.int64
        assert outputs[f"head0_{suffix}"].dtype is torch.float32


def test_counts_of_the_registry_are_summed() -> None:
    """What the registry declares as counts is summed; its other keys are averaged."""
    registry = dm.Registry()
    registry.count("n", "*_seen")
    inputs = [{"n": scalar(k), "imgs_seen": scalar(2 * k), "err": scalar(k)} for k in (1, 2)]
    for outputs in reduced(*inputs, registry=registry):
        assert plain(outputs) == {"n": 3, "imgs_seen": 6, "err": 1.5}


def test_count_suffixes_hold_beside_a_registry() -> None:
    """A suffix makes a count of what the registry does not name, a catch-all apart."""
    registry = dm.Registry()
    registry.average("*")
    registry.average("mean_num_pairs")
    inputs = [{"num_pairs": scalar(k), "mean_num_pairs": scalar(k)} for k in (1, 3)]
    for outputs in reduced(*inputs, registry=registry):
        assert plain(outputs) == {"num_pairs": 4, "mean_num_pairs": 2.0}


def test_other_reductions_of_the_registry_hold() -> None:
    """A key that is declared as a maximum, a norm or a weighted average is reduced so."""
    registry = dm.Registry()
    registry.maximum("longest")
    registry.minimum("shortest")
    registry.l2_norm("grad_norm")
    registry.average("nll", weight="tokens")
    registry.same("lr")
    registry.total("seen")
    inputs = [
        {
            "longest": scalar(3 + k),
            "shortest": scalar(3.0 + k),
            "grad_norm": scalar(3.0 + k),
            "nll": scalar(1.0 + k),
            "tokens": scalar(3 - 2 * k),
            "lr": scalar(0.1, dtype=torch.float64),
            "seen": scalar(2),
        }
        for k in (0, 1)
    ]
    for outputs in reduced(*inputs, registry=registry):
        assert plain(outputs) == {
            "longest": 4,
            "shortest": 3.0,
            "grad_norm": 5.0,
            "nll": 1.25,
            "tokens": 4,
            "lr": 0.1,
            "seen": 4,
        }


def test_a_total_starts_anew_with_every_call() -> None:
    """Calls do not remember each other: outputs hold what this step gave."""
    registry = dm.Registry()
    registry.total("seen")
    for _ in range(3):
        outputs = {"seen": scalar(2)}
        assert reduce_outputs(outputs, registry=registry)["seen"].item() == 2


def test_weights_may_be_numbers_or_skipped_and_stay_as_they_are() -> None:
    """A weight that is no 0-dim tensor weighs, and is left alone."""
    registry = dm.Registry()
    registry.average("nll", weight="tokens")
    inputs = [{"nll": scalar(1.0), "tokens": 3}, {"nll": scalar(3.0), "tokens": 1}]
    for outputs, tokens in zip(reduced(*inputs, registry=registry), (3, 1), strict=True):
        assert plain(outputs) == {"nll": 1.5, "tokens": tokens}
    inputs = [{"nll": scalar(1.0), "tokens": scalar(3)}, {"nll": scalar(3.0), "tokens": scalar(1)}]
    found = reduced(*inputs, registry=registry, skip_keys=("tokens",))
    assert [plain(outputs) for outputs in found] == [
        {"nll": 1.5, "tokens": 3},
        {"nll": 1.5, "tokens": 1},
    ]


def test_the_skipped_loss_keeps_its_graph() -> None:
    """`loss` is left alone by default: the same tensor, ready for backward."""
    weight = torch.ones((), requires_grad=True)
    loss = weight * 3
    outputs = {"loss": loss, "aux": weight * 2}
    reduced(outputs, {"loss": torch.zeros(()), "aux": torch.zeros(())})
    assert outputs["loss"] is loss
    assert outputs["aux"].item() == 1.0
    assert not outputs["aux"].requires_grad
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.item() == 3.0


def test_skip_keys_are_left_alone() -> None:
    """`skip_keys` replaces the default, so that `loss` is then reduced."""
    own = scalar(5.0)
    outputs = {"loss": scalar(1.0), "own": own}
    reduced(outputs, {"loss": scalar(3.0), "own": scalar(9.0)}, skip_keys=["own"])
    assert outputs["loss"].item() == 2.0
    assert outputs["own"] is own


def test_what_is_no_0_dim_tensor_is_left_alone() -> None:
    """Tensors of other shapes, numbers, texts, lists and None are the same objects afterwards."""
    others = {
        "logits": torch.ones(2, 3),
        "one": torch.ones(1),
        "number": 1.5,
        "name": "x",
        "list": [torch.tensor(1.0)],
        "none": None,
        "nested": {"a": torch.tensor(1.0)},
    }
    outputs = {**others, "x": scalar(1.0)}
    reduced(outputs, {**others, "x": scalar(2.0)})
    assert all(outputs[key] is value for key, value in others.items())
    assert outputs["x"].item() == 1.5


def test_keys_may_differ_between_ranks() -> None:
    """Each key is reduced over the ranks that have it, and added where it was missing."""
    first, second = reduced(
        {"a": scalar(1.0), "num_pairs": scalar(2)}, {"b": scalar(3.0), "num_pairs": scalar(5)}
    )
    assert plain(first) == plain(second) == {"a": 1.0, "b": 3.0, "num_pairs": 7}


def test_a_key_of_other_ranks_replaces_nothing_else() -> None:
    """Where a rank has something else under a key, or skips it, it keeps that."""
    logits = torch.ones(2)
    first, second = reduced(
        {"x": scalar(1.0), "loss": scalar(1.0), "y": scalar(4.0)},
        {"x": logits},
        skip_keys=("loss",),
    )
    assert first["x"].item() == 1.0
    assert second["x"] is logits
    assert "loss" not in second
    assert second["y"].item() == 4.0


def test_tensors_are_not_changed_in_place() -> None:
    """Who holds the tensors from before the call still sees this rank's own values."""
    own = scalar(1.0)
    outputs = {"x": own}
    reduced(outputs, {"x": scalar(2.0)})
    assert own.item() == 1.0
    assert outputs["x"].item() == 1.5


def test_registry_may_ignore_keys() -> None:
    """An ignored key is left alone."""
    registry = dm.Registry()
    registry.ignore("debug*")
    own = scalar(1.0)
    outputs = {"debug": own, "x": scalar(1.0)}
    reduced(outputs, {"debug": scalar(9.0), "x": scalar(3.0)}, registry=registry)
    assert outputs["debug"] is own
    assert outputs["x"].item() == 2.0


def test_a_key_without_a_single_value_is_left_alone() -> None:
    """Histograms, quantiles and values by rank are no scalars that outputs could hold."""
    registry = dm.Registry()
    registry.histogram("length", edges=[0, 1, 2])
    registry.quantiles("latency", qs=[0.5])
    registry.per_rank("memory")
    own = {"length": scalar(1.0), "latency": scalar(2.0), "memory": scalar(3.0)}
    outputs = {**own, "x": scalar(1.0)}
    reduced(outputs, {**own, "x": scalar(3.0)}, registry=registry)
    assert all(outputs[key] is value for key, value in own.items())
    assert outputs["x"].item() == 2.0
    assert len(outputs) == 4


def test_a_strict_registry_names_an_unknown_key_and_nothing_is_changed() -> None:
    """The rank that has the key raises, the other learns it; both dicts are as before."""
    registry = dm.Registry(strict=True)
    registry.average("accuracy")
    inputs: list[dict[str, Any]] = [
        {"accuracy": scalar(1.0), "num_pairs": scalar(3)},
        {"accuracy": scalar(0.0), "acuracy": scalar(0.0)},
    ]

    def call() -> str:
        outputs = inputs[dm.get_rank()]
        before = dict(outputs)
        with pytest.raises(dm.DistmetricsError) as raised:
            reduce_outputs(outputs, registry=registry)
        assert outputs == before
        return f"{type(raised.value).__name__}: {raised.value}"

    other, own = run_ranks_in_process(call, 2)
    assert own.startswith("UnknownKey")
    assert "accuracy" in own
    assert "rank 1" in other


@pytest.mark.parametrize(
    ("declare", "outputs", "match"),
    [
        (
            lambda registry: registry.average("nll", weight="tokens"),
            {"nll": scalar(1.0)},
            "'tokens'",
        ),
        (
            lambda registry: registry.average("nll", weight="tokens"),
            {"nll": scalar(1.0), "tokens": scalar(-1)},
            "'nll'.*-1",
        ),
        (
            lambda registry: registry.ratio("acc", "correct", "seen"),
            {"acc": scalar(0.5), "correct": scalar(1), "seen": scalar(2)},
            "'acc'",
        ),
    ],
)
def test_what_breaks_a_declaration_is_an_error(
    declare: Callable[[dm.Registry], None], outputs: dict[str, Any], match: str
) -> None:
    """A weight that is missing or negative, and a value under a made-up key, name the key."""
    registry = dm.Registry()
    declare(registry)
    with pytest.raises(ValueError, match=match):
        reduce_outputs(outputs, registry=registry)


def test_ranks_with_different_registries_are_told() -> None:
    """A count on one rank and an average on the other is an error on both, not a mix."""

    def call() -> str:
        registry = dm.Registry()
        (registry.count if dm.get_rank() else registry.average)("n")
        with pytest.raises(dm.DistmetricsError) as raised:
            reduce_outputs({"n": scalar(1)}, registry=registry)
        return str(raised.value)

    first, second = run_ranks_in_process(call, 2)
    assert first == second
    assert "registry" in first


def test_a_registry_may_grow_between_calls() -> None:
    """Later declarations hold from the next call on."""

    def call() -> list[float]:
        registry = dm.Registry()
        first = reduce_outputs({"n": scalar(2)}, registry=registry)["n"].item()
        registry.count("n")
        return [first, reduce_outputs({"n": scalar(2)}, registry=registry)["n"].item()]

    assert run_ranks_in_process(call, 2) == [[2.0, 4], [2.0, 4]]


def test_equal_registries_are_one() -> None:
    """A registry made anew for every call costs no new exchange of keys."""
    from distmetrics.functional.channel import _ALONE, _channels

    for _ in range(5):
        registry = dm.Registry()
        registry.count("fresh")
        reduce_outputs({"fresh": scalar(1)}, registry=registry)
        streams = len(_channels[_ALONE]._streams)
    assert streams == len(_channels[_ALONE]._streams)


def test_a_replicated_key_needs_the_logger() -> None:
    """Here no mesh is known, so that a key which needs one is an error, not counted twice."""
    registry = dm.Registry()
    registry.count("tokens", replicated_over=("tensor",))

    def call() -> str:
        with pytest.raises(dm.errors.InvalidValue) as raised:
            reduce_outputs({"tokens": scalar(5)}, registry=registry)
        return str(raised.value)

    for text in run_ranks_in_process(call, 2):
        assert "'tokens'" in text
        assert "'tensor'" in text


def test_values_that_should_be_the_same_and_differ_are_warned_of() -> None:
    """The lowest rank's value is taken on every rank, with a warning that names key and ranks."""
    registry = dm.Registry()
    registry.same("lr")

    def call() -> float:
        outputs = {"lr": scalar(0.5 + dm.get_rank())}
        return float(reduce_outputs(outputs, registry=registry)["lr"])

    with pytest.warns(dm.DistmetricsWarning, match="'lr'.*rank 1"):
        assert run_ranks_in_process(call, 2) == [0.5, 0.5]


def test_non_finite_values_reach_the_outputs_unless_the_registry_skips_them() -> None:
    """NaN is not hidden; `nonfinite="skip"` leaves it out."""
    registry = dm.Registry()
    registry.average("skipped", nonfinite="skip")
    inputs = [{"a": scalar(k), "skipped": scalar(k)} for k in (math.nan, 2.0)]
    for outputs in reduced(*inputs, registry=registry):
        assert math.isnan(outputs["a"].item())
        assert outputs["skipped"].item() == 2.0
        assert set(outputs) == {"a", "skipped"}


def test_a_registry_of_another_type_is_refused() -> None:
    """`registry=` takes a Registry."""
    with pytest.raises(TypeError, match="Registry"):
        reduce_outputs({}, registry={"n": "count"})  # type: ignore[arg-type]


def test_outputs_that_are_no_dict_are_refused() -> None:
    """The error names the function and what came."""
    with pytest.raises(TypeError, match="for_logging takes a dict of outputs, not NoneType"):
        reduce_outputs(None)  # type: ignore[arg-type]
