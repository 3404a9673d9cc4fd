"""One declaration for each key."""

import pytest

from distmetrics.errors import DeclarationConflict
from distmetrics.registry import Registry


def test_a_name_declared_in_two_ways_is_an_error_with_both() -> None:
    """At the call; the first declaration stays."""
    registry = Registry()
    registry.average("loss", weight="n")
    with pytest.raises(DeclarationConflict, match=r"'loss'.*average\(weight='n'\).*count\(\)"):
        registry.count("loss")
    assert registry["loss"].reduction.kind == "average"


@pytest.mark.parametrize(
    "change",
    [
        lambda registry: registry.std("x", ddof=1),
        lambda registry: registry.std("x", weight="n"),
        lambda registry: registry.std("x", nonfinite="skip"),
        lambda registry: registry.std("x", replicated_over=("tensor",)),
        lambda registry: registry.ratio("x", "a", "b"),
    ],
)
def test_every_option_that_changes_values_makes_a_conflict(change: object) -> None:
    """Weight, ddof, treatment of NaN and replicas are part of what a key means."""
    registry = Registry()
    registry.std("x")
    with pytest.raises(DeclarationConflict):
        change(registry)


def test_the_same_declaration_again_is_fine() -> None:
    """Also with a number in another type, and dimensions in another order."""
    registry = Registry()
    prints = []
    for ddof, dimensions in ((1, ("a", "b")), (1.0, ("b", "a"))):
        registry.std("x", ddof=ddof, replicated_over=dimensions)
        prints.append(registry.fingerprint())
    assert len(registry) == 1
    assert prints[0] == prints[1]


def test_the_later_description_of_a_name_holds() -> None:
    """Unit, help text, group and scaling class change no value."""
    registry = Registry()
    registry.count("n", unit="samples")
    registry.count("n", unit="images", group="data", help="images seen", scaling="extensive")
    metric = registry["n"]
    assert (metric.unit, metric.group, metric.scaling) == ("images", "data", "extensive")


def test_a_name_can_be_switched_off_and_on() -> None:
    """`ignore` gives a key no second meaning."""
    registry = Registry()
    registry.average("loss")
    registry.ignore("loss")
    assert registry["loss"].ignored
    registry.average("loss")
    assert not registry["loss"].ignored


def test_names_with_and_without_prefix_are_different_keys() -> None:
    """`val/loss` may mean something else than `loss`."""
    registry = Registry()
    registry.average("loss")
    registry.maximum("val/loss")
    assert len(registry) == 2


def test_a_call_with_several_keys_declares_all_or_none() -> None:
    """A conflict of the last key leaves the first undeclared."""
    registry = Registry()
    registry.average("c")
    with pytest.raises(DeclarationConflict):
        registry.count("a", "b*", "c")
    with pytest.raises(TypeError):
        registry.count("a", "b*", 3)
    assert [metric.pattern for metric in registry] == ["c"]


def test_a_ratio_and_a_pattern_of_the_same_text_are_a_conflict() -> None:
    """The text `acc[0]` names one key in both."""
    registry = Registry()
    registry.ratio("acc[0]", "correct", "n")
    with pytest.raises(DeclarationConflict):
        registry.average("acc[0]")
