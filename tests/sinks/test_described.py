from __future__ import annotations

import pytest

from distmetrics.registry import Registry
from distmetrics.sinks.described import Description, describe, describe_foreign


@pytest.fixture
def registry() -> Registry:
    """Some declarations."""
    made = Registry()
    made.average("loss", unit="nats", help="cross entropy", group="quality")
    made.maximum("val/loss", unit="bits")
    made.minimum("best")
    made.count("*num_pairs", unit="pairs")
    made.total("tokens_seen")
    return made


def test_a_childs_key_is_described_by_its_own_declaration_first(registry: Registry) -> None:
    """As the logger looks it up: ``val/loss`` before ``loss``."""
    assert describe(registry, "val/loss", "val").unit == "bits"
    assert describe(registry, "test/loss", "test").unit == "nats"
    assert describe(registry, "test/head0_num_pairs", "test").unit == "pairs"


def test_a_key_of_an_unknown_logger_is_described_alike(registry: Registry) -> None:
    """A file does not say which part of a key is a child's name."""
    assert describe_foreign(registry, "test/loss").help == "cross entropy"
    assert describe_foreign(registry, "val/loss").unit == "bits"
    assert not describe_foreign(registry, "a/b/c").registered


def test_counts_of_non_finite_values_say_of_which_key(registry: Registry) -> None:
    """They are counts, in the group of their key, also of a child's."""
    found = describe(registry, "test/loss/nonfinite", "test")
    assert (found.kind, found.unit, found.group) == ("count", "", "quality")
    assert found.help == "non-finite values of test/loss"


def test_a_strict_registry_describes_what_it_does_not_hold() -> None:
    """Keys that the logger itself makes are no errors."""
    registry = Registry(strict=True)
    registry.average("loss")
    assert describe(registry, "loss/nonfinite").kind == "count"
    assert describe(registry, "unknown") == Description()


def test_nothing_is_known_without_a_registry() -> None:
    """A sink may be used alone."""
    assert describe(None, "loss") == Description()


def test_the_rules_of_summaries_follow_from_the_reductions(registry: Registry) -> None:
    """A minimum has no largest value, a running total only the last."""
    rules = {key: describe(registry, key).rules for key in ("loss", "best", "tokens_seen")}
    assert rules["loss"] == ("min", "max", "last")
    assert rules["best"] == ("min", "last")
    assert rules["tokens_seen"] == ("last",)
