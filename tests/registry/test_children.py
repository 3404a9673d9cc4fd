"""How the keys of a child are looked up."""

import fnmatch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmetrics.registry import Registry
from distmetrics.registry.keys import is_pattern


def kinds(registry: Registry, key: str, *prefixes: str) -> list[str]:
    """The kinds of a key in the logger and in children."""
    return [registry.resolve(key, prefix).reduction.kind for prefix in prefixes]


def test_the_prefixed_name_comes_first_then_the_bare_one() -> None:
    """`val/loss` is a maximum, `loss` everywhere else an average."""
    registry = Registry()
    registry.average("loss")
    registry.maximum("val/loss")
    assert kinds(registry, "loss", "", "val/", "test/") == ["average", "maximum", "average"]


@pytest.mark.parametrize("pattern", ["val/*", "*/loss", "val*", "?al/loss", "[tv]al/*"])
def test_a_pattern_that_names_the_child_comes_before_the_bare_name(pattern: str) -> None:
    """A pattern with a slash or the child's name is about the child."""
    registry = Registry()
    registry.maximum(pattern)
    registry.average("loss")
    assert kinds(registry, "loss", "", "val/") == ["average", "maximum"]


@pytest.mark.parametrize("pattern", ["*", "*loss", "l*", "*l*s*", "*oss"])
def test_a_pattern_that_matches_the_bare_key_does_not_hide_its_name(pattern: str) -> None:
    """A catch-all matches `val/loss` as well, and says nothing about the child."""
    registry = Registry()
    registry.average("loss")
    registry.maximum(pattern)
    assert kinds(registry, "loss", "", "val/") == ["average", "average"]


def test_a_piece_that_stands_in_the_name_of_a_child_does_not_hide_the_bare_name() -> None:
    """`*num*` and `num*` are meant for counts, not for all that child `num_eval` logs."""
    registry = Registry()
    registry.average("loss")
    registry.count("*num*", "num*")
    assert kinds(registry, "loss", "num_eval/") == ["average"]
    assert kinds(registry, "num_pairs", "", "num_eval/") == ["count", "count"]


def test_without_a_bare_name_any_pattern_that_matches_either_form_applies() -> None:
    """The prefixed key is looked up as it would be in a flat logger."""
    registry = Registry()
    registry.count("*num_pairs")
    registry.maximum("v*")
    assert kinds(registry, "num_pairs", "", "val/", "test/") == ["count", "count", "count"]
    assert kinds(registry, "loss", "", "val/", "test/") == ["average", "maximum", "average"]


def test_a_child_is_ignored_as_a_whole() -> None:
    """`ignore("val/*")` hides keys that are declared bare, but not those named with the child."""
    registry = Registry()
    registry.average("loss", "acc", "val/acc")
    registry.ignore("val/*")
    assert registry.resolve("loss", "val/").ignored
    assert not registry.resolve("acc", "val/").ignored
    assert not registry.resolve("loss").ignored


def test_a_child_within_a_child_is_looked_up_by_its_whole_prefix() -> None:
    """`val/coco/loss`, then `loss`."""
    registry = Registry()
    registry.average("loss")
    registry.maximum("val/coco/loss")
    assert kinds(registry, "loss", "val/", "val/coco/") == ["average", "maximum"]


PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
TEXTS = st.lists(
    st.text("ab*/", min_size=1, max_size=4).filter(lambda text: not text.endswith("/")),
    unique=True,
    max_size=6,
)


@PATIENT
@given(TEXTS, st.sampled_from(["a", "b", "ab", "b/a"]), st.sampled_from(["a", "ab"]))
def test_the_steps_of_a_child_look_up(texts: list[str], key: str, child: str) -> None:
    """Prefixed name, pattern that names the child, bare name, any other pattern: as documented."""
    registry = Registry()
    for text in texts:
        registry.count(text, unit=text)
    full = f"{child}/{key}"
    patterns = sorted(
        (text for text in texts if is_pattern(text)),
        key=lambda text: (len(text), texts.index(text)),
        reverse=True,
    )
    bare = [text for text in patterns if fnmatch.fnmatchcase(key, text)]
    prefixed = [text for text in patterns if fnmatch.fnmatchcase(full, text)]
    either = [text for text in patterns if text in bare or text in prefixed]
    naming = [
        text for text in prefixed if text not in bare and ("/" in text or text.startswith(child))
    ]
    order = [*(t for t in [full] if t in texts), *naming, *(t for t in [key] if t in texts)]
    assert registry.resolve(key, f"{child}/").unit == [*order, *either, ""][0]


def test_a_ratio_serves_the_logger_and_its_children() -> None:
    """The keys that a ratio needs bring it up, under its name in the child."""
    registry = Registry()
    registry.ratio("acc", "num_correct", "n")
    for prefix in ("", "val/"):
        for key in ("num_correct", "n"):
            (found,) = registry.virtual(key, prefix)
            assert found[0] == "acc"
            assert found[1].reduction.kind == "ratio"
    assert registry.virtual("loss") == ()


def test_a_ratio_named_with_a_child_belongs_to_that_child_alone() -> None:
    """`val/acc` is made in `val`, neither in its parent nor in `test`."""
    registry = Registry()
    registry.ratio("val/acc", "num_correct", "n")
    children = ["val/", "test/"]
    assert registry.virtual("n", "", children) == ()
    assert registry.virtual("n", "test/", children) == ()
    assert [name for name, _ in registry.virtual("n", "val/", children)] == ["acc"]


def test_a_grouped_name_without_a_child_of_that_name_is_made_in_the_logger() -> None:
    """`train/acc` is a plain key where no child is called `train`."""
    registry = Registry()
    registry.ratio("train/acc", "num_correct", "n")
    assert [name for name, _ in registry.virtual("n", "", ["val/"])] == ["train/acc"]


def test_a_child_that_declares_a_ratio_in_its_own_way_has_only_that_one() -> None:
    """The prefixed ratio replaces the bare one of that name, `ignore` removes it."""
    registry = Registry()
    registry.ratio("acc", "num_correct", "n")
    registry.ratio("val/acc", "num_correct", "num_valid")
    registry.ignore("test/*")
    (valid,) = registry.virtual("num_correct", "val/", ["val/", "test/"])
    assert valid[1].reduction.params["denominator"] == "num_valid"
    assert registry.virtual("n", "val/", ["val/", "test/"]) == ()
    assert registry.virtual("n", "test/", ["val/", "test/"]) == ()
    assert len(registry.virtual("n", "", ["val/", "test/"])) == 1


def test_referred_keys_may_be_named_with_the_child_and_are_found_under_their_names_there() -> None:
    """`val/n` is key `n` of the call that child `val` gets."""
    registry = Registry()
    registry.ratio("val/acc", "val/num_correct", "val/n")
    registry.average("val/loss", weight="val/n")
    assert dict(registry.resolve("loss", "val/").reduction.params) == {"weight": "n"}
    assert registry.resolve("n", "val/").reduction.kind == "count"
    ((name, metric),) = registry.virtual("n", "val/")
    assert (name, metric.refers) == ("acc", ("num_correct", "n"))
    assert registry.resolve("loss", "val/") is registry.resolve("loss", "val/")
    assert dict(registry["val/loss"].reduction.params) == {"weight": "val/n"}
