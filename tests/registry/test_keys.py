"""Names and patterns of keys."""

import fnmatch
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmetrics.registry import Registry
from distmetrics.registry.keys import is_pattern, nearest

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
ODD = [
    "a.b.c",
    "grad norm (L2), layer 3",
    "Verlust/Größe",
    "損失/訓練",
    "👩‍🔬/acc",
    "x" * 300,
    "layers[0].weight[1,2]",
    "p[",
    "[]",
    "[!]",
    "what?",
    "*",
    "a//b",
    "/abs",
    " ",
    "100%{}$^\\d+|.",
    "Loss",
    "__class__",
]


@pytest.mark.parametrize("key", ODD)
def test_a_key_that_equals_the_declared_text_is_meant_whatever_it_holds(key: str) -> None:
    """Dots, spaces, Unicode, 300 characters, brackets and wildcards: the text itself matches."""
    registry = Registry()
    registry.maximum("*")
    registry.count(key)
    assert registry[key].reduction.kind == "count"
    assert registry.resolve(key, "val/").reduction.kind == "count"
    assert key in registry


def test_all_odd_keys_keep_apart() -> None:
    """Declared side by side, each odd key finds its own declaration."""
    registry = Registry()
    for position, key in enumerate(ODD):
        registry.count(key, unit=str(position))
    assert [registry[key].unit for key in ODD] == [str(position) for position in range(len(ODD))]


def test_special_characters_of_regular_expressions_are_plain_text() -> None:
    """Only fnmatch's wildcards are wild."""
    registry = Registry()
    registry.count("a.b*", "c+")
    assert "a.bc" in registry
    assert "axbc" not in registry
    assert "cc" not in registry


def test_patterns_are_case_sensitive() -> None:
    """`Loss*` does not match `loss`."""
    registry = Registry()
    registry.count("Loss*")
    assert "Loss_a" in registry
    assert "loss_a" not in registry


def test_brackets_are_also_a_pattern_and_can_be_escaped() -> None:
    """`loss[0]` covers `loss[0]` by name and `loss0` as a pattern; `acc[[]0]` only `acc[0]`."""
    registry = Registry()
    registry.count("loss[0]", "acc[[]0]")
    assert [key in registry for key in ("loss[0]", "loss0", "loss1")] == [True, True, False]
    assert [key in registry for key in ("acc[0]", "acc0")] == [True, False]


def test_the_name_of_a_ratio_with_brackets_is_no_pattern() -> None:
    """A ratio's key is exact even where it could be read as a pattern."""
    registry = Registry()
    registry.ratio("acc[0]", "correct[0]", "n[0]")
    assert registry["acc[0]"].reduction.kind == "ratio"
    assert "acc0" not in registry
    assert registry["n[0]"].reduction.kind == "count"


@PATIENT
@given(st.text("ab[]!*?-^\\", min_size=1, max_size=8))
def test_any_text_can_be_declared(text: str) -> None:
    """Ranges the wrong way round and unclosed brackets included; it matches as fnmatch does."""
    registry = Registry()
    registry.count(text)
    for key in (text, text[::-1], "a", "b]", "ab"):
        assert (key in registry) == (key == text or fnmatch.fnmatchcase(key, text))


@PATIENT
@given(st.text("ab[]!*?-^", max_size=8))
def test_what_fnmatch_takes_literally_is_a_name(text: str) -> None:
    """`is_pattern` agrees with `fnmatch.translate`, unclosed and empty brackets included."""
    before, after = fnmatch.translate("x").split("x")
    assert is_pattern(text) == (fnmatch.translate(text) != before + re.escape(text) + after)


def test_the_nearest_names_come_best_first_whatever_their_case_and_length() -> None:
    """Long keys with one wrong letter are found, and so is another case."""
    long = "block/" * 60 + "weight"
    assert nearest("x" + "ab" * 150, ["loss", "ab" * 150]) == ["ab" * 150]
    assert nearest(long + "x", ["loss", long]) == [long]
    assert nearest("LOSS", ["acc", "loss"]) == ["loss"]
    assert nearest("val/los", ["loss", "val/loss", "n"])[0] == "val/loss"
    assert nearest("zzz", ["loss", "acc"]) == []
