"""Which declaration applies to a key."""

import fnmatch
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmetrics.registry import Registry
from distmetrics.registry.keys import is_pattern

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
TEXTS = st.lists(
    st.text("ab*?/", min_size=1, max_size=4).filter(lambda text: not text.endswith("/")),
    unique=True,
    max_size=6,
)
KEYS = [a + b for a in ("", "a", "b", "ab", "a/", "b/a") for b in ("a", "b", "/b", "aab")]


def declared(texts: Sequence[str]) -> Registry:
    """A registry in which every text has a unit of its own: the text."""
    registry = Registry()
    for text in texts:
        registry.count(text, unit=text)
    return registry


def expected(texts: Sequence[str], key: str) -> str:
    """The rule, written down once more: the name, else the longest pattern, else the later one."""
    if key in texts:
        return key
    matching = [text for text in texts if is_pattern(text) and fnmatch.fnmatchcase(key, text)]
    return max(enumerate(matching), key=lambda pair: (len(pair[1]), pair[0]), default=(0, ""))[1]


@PATIENT
@given(TEXTS)
def test_a_name_beats_a_pattern_a_longer_one_a_shorter_and_a_later_its_equal(
    texts: list[str],
) -> None:
    """The look-up is what brute force over `fnmatch.fnmatchcase` finds."""
    registry = declared(texts)
    for key in KEYS:
        assert registry[key].unit == expected(texts, key)


@PATIENT
@given(TEXTS, st.randoms(use_true_random=False))
def test_the_order_of_declarations_counts_only_among_patterns_of_one_length(
    texts: list[str], random: object
) -> None:
    """Shuffled with equally long patterns kept in order, every key means the same."""
    shuffled = list(texts)
    random.shuffle(shuffled)
    lengths: dict[int, list[str]] = {}
    for text in texts:
        lengths.setdefault(len(text), []).append(text)
    reordered = [lengths[len(text)].pop(0) for text in shuffled]
    first, second = declared(texts), declared(reordered)
    for key in KEYS:
        for prefix in ("", "a/", "b/"):
            assert first.resolve(key, prefix).unit == second.resolve(key, prefix).unit


@PATIENT
@given(TEXTS)
def test_asking_again_and_asking_in_between_changes_nothing(texts: list[str]) -> None:
    """Kept look-ups never outlive a declaration."""
    asked, fresh = Registry(), declared(texts)
    for text in texts:
        for key in KEYS:
            asked.resolve(key)
        asked.count(text, unit=text)
    assert [asked[key] for key in KEYS] == [fresh[key] for key in KEYS]
    assert [asked[key] for key in KEYS] == [asked[key] for key in KEYS]


def test_a_look_up_is_kept() -> None:
    """Asking again gives the very same object, in a strict registry, too."""
    registry = Registry(strict=True)
    registry.average("val/*")
    assert registry["val/loss"] is registry["val/loss"]
    assert registry.resolve("loss", "val/") is registry.resolve("loss", "val/")


def test_the_same_pattern_again_replaces_the_earlier_one_and_is_the_later() -> None:
    """`a*`, `*b`, `a*`: of the two equally long patterns the last declared wins."""
    registry = Registry()
    registry.count("a*")
    registry.maximum("*b")
    assert registry["ab"].reduction.kind == "maximum"
    registry.minimum("a*")
    assert registry["ab"].reduction.kind == "minimum"
    assert [metric.pattern for metric in registry] == ["*b", "a*"]


def test_ignore_has_the_same_precedence_as_any_declaration() -> None:
    """A pattern is ignored but for a name, a name but for nothing."""
    registry = Registry()
    registry.average("debug/loss")
    registry.ignore("debug/*", "logits")
    assert not registry["debug/loss"].ignored
    assert registry["debug/acc"].ignored
    assert registry["logits"].ignored
    assert registry["logits"].reduction is None
    assert registry["logits"].registered


def test_an_unregistered_key_is_an_average_unless_the_registry_says_otherwise() -> None:
    """`default` names a reduction or "ignore"; the metric says that nobody registered it."""
    assert Registry()["x"].reduction.kind == "average"
    assert Registry(default="maximum")["x"].reduction.kind == "maximum"
    assert Registry(default="ignore")["x"].ignored
    assert not Registry()["x"].registered
    assert Registry()["x"].source == "default"
