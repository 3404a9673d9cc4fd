"""Unregistered keys of a strict registry."""

import pytest

from distmetrics.errors import UnknownKey
from distmetrics.registry import Registry


def strict() -> Registry:
    """A strict registry with a few keys."""
    registry = Registry(strict=True)
    registry.average("loss", "val/accuracy", weight="num_tokens")
    registry.ignore("debug/*")
    return registry


@pytest.mark.parametrize(
    ("key", "near"), [("los", "'loss'"), ("num_token", "'num_tokens'"), ("accurcy", "accuracy")]
)
def test_an_unregistered_key_is_an_error_with_the_nearest_names(key: str, near: str) -> None:
    """A KeyError whose text, not its repr, names the key, what is alike, and the remedy."""
    with pytest.raises(KeyError) as caught:
        strict()[key]
    text = str(caught.value)
    assert isinstance(caught.value, UnknownKey)
    assert text.startswith(f"key {key!r} is not registered")
    assert near in text
    assert f"registry.ignore({key!r})" in text


def test_a_key_of_a_child_is_named_in_full() -> None:
    """The nearest names are sought for the prefixed key, then for the bare one."""
    with pytest.raises(UnknownKey, match=r"'val/acuracy'.*'val/accuracy'"):
        strict().resolve("acuracy", "val/")
    with pytest.raises(UnknownKey, match=r"'a_long_prefix/los'.*'loss'"):
        strict().resolve("los", "a_long_prefix/")


def test_where_nothing_is_alike_some_registered_names_are_shown() -> None:
    """At most five of them, or that there are none."""
    with pytest.raises(UnknownKey, match=r"registered are 'loss', 'val/accuracy'"):
        strict()["zzz"]
    with pytest.raises(UnknownKey, match="nothing is registered"):
        Registry(strict=True)["zzz"]
    many = Registry(strict=True)
    many.count(*(f"count{i}" for i in range(9)))
    with pytest.raises(UnknownKey, match="'count4' and others"):
        many["zzz"]


def test_registered_referred_and_ignored_keys_are_known() -> None:
    """Names, patterns, weights and what is ignored raise nothing."""
    registry = strict()
    for key in ("loss", "num_tokens", "debug/x"):
        assert registry[key].registered
    assert "zzz" not in registry


def test_a_key_registered_after_its_error_is_known() -> None:
    """A failed look-up is not kept."""
    registry = strict()
    with pytest.raises(UnknownKey):
        registry["acc"]
    registry.average("acc")
    assert registry["acc"].registered
