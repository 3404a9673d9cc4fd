"""What keys are that others need: weights, numerators, denominators, what a rate counts."""

import pytest

from distmetrics.errors import InvalidValue
from distmetrics.registry import Registry


def test_a_referred_key_is_a_count() -> None:
    """Weights, numerators, denominators and `of` are counts without being declared."""
    registry = Registry(strict=True)
    registry.average("loss", weight="num_tokens")
    registry.std("spread", weight="mass")
    registry.ratio("acc", "num_correct", "num_samples")
    registry.rate("speed", of="num_images")
    for key in ("num_tokens", "mass", "num_correct", "num_samples", "num_images"):
        assert registry[key].reduction.kind == "count"
        assert registry[key].source == "referred"
        assert registry[key].registered
        assert key in registry


def test_a_referred_key_is_a_count_in_every_child_under_the_name_in_the_call() -> None:
    """Also where only a child's key refers to it."""
    registry = Registry(strict=True)
    registry.average("val/loss", weight="n")
    for prefix in ("", "val/", "test/"):
        assert registry.resolve("n", prefix).reduction.kind == "count"


@pytest.mark.parametrize("key", ["num_tokens", "num_*", "*"])
def test_a_referred_key_is_what_it_is_registered_as(key: str) -> None:
    """By name or by pattern, before or after the key that needs it."""
    before, after = Registry(), Registry()
    before.total(key)
    for registry in (before, after):
        registry.average("loss", weight="num_tokens")
    after.total(key)
    assert before["num_tokens"].reduction.kind == "total"
    assert after["num_tokens"].reduction.kind == "total"


def test_a_pattern_leaves_out_the_keys_that_it_refers_to_itself() -> None:
    """`average("*", weight="n")` does not weigh `n` with itself, in a child neither."""
    registry = Registry()
    registry.average("*", weight="n")
    registry.average("val/*", weight="m")
    assert registry["n"].reduction.kind == "count"
    assert registry.resolve("n", "test/").reduction.kind == "count"
    assert registry.resolve("m", "val/").reduction.kind == "average"  # by "*", weighted with n
    assert registry.resolve("m", "val/").reduction.params["weight"] == "n"


def test_the_seconds_of_a_rate_are_what_an_unregistered_key_is() -> None:
    """They are no count, and known to a strict registry."""
    registry = Registry(strict=True)
    registry.rate("speed", of="n", seconds="step_time")
    assert registry["step_time"].reduction.kind == "average"
    assert registry["step_time"].registered
    lazy = Registry(default="ignore")
    lazy.rate("speed", of="n", seconds="step_time")
    assert lazy["step_time"].ignored


def test_a_referred_key_is_replicated_over_what_its_referrers_are() -> None:
    """Ranks that saw the same samples hold the same weights, which must count once as well."""
    registry = Registry()
    registry.average("loss", weight="n", replicated_over=("tensor",))
    registry.rate("speed", of="n", replicated_over=("tensor", "replicate"))
    assert registry["n"].replicated_over == ("tensor", "replicate")


def test_an_ignored_key_still_serves_as_weight() -> None:
    """Ignoring `n` leaves it out of records; the declaration of `loss` stands."""
    registry = Registry()
    registry.average("loss", weight="n")
    registry.ignore("n")
    assert registry["n"].ignored
    assert registry["loss"].refers == ("n",)


def test_a_key_that_weighs_itself_is_an_error() -> None:
    """Directly or around a corner; the message shows the way."""
    registry = Registry()
    with pytest.raises(InvalidValue, match="refers to itself: 'loss' needs 'loss'"):
        registry.average("loss", weight="loss")
    registry.average("a", weight="b")
    registry.average("b", weight="c")
    with pytest.raises(InvalidValue, match="'c' needs 'a' needs 'b' needs 'c'"):
        registry.average("c", weight="a")
    assert registry["c"].reduction.kind == "count"


@pytest.mark.parametrize("first", ["ratio", "average"])
def test_a_key_made_from_others_serves_nobody(first: str) -> None:
    """Nobody logs a ratio, so that it can be neither weight nor part of a ratio, in any order."""
    registry = Registry()
    declare = [
        lambda: registry.ratio("acc", "num_correct", "n"),
        lambda: registry.average("loss", weight="acc"),
    ]
    if first == "average":
        declare.reverse()
    declare[0]()
    with pytest.raises(InvalidValue, match=r"needs 'acc' in the call.*made from other keys"):
        declare[1]()
