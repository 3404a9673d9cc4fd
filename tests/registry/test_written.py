"""Declarations written down, read back and compared."""

import copy
import json
import os
import pickle
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distmetrics.errors import DeclarationConflict, InvalidType, InvalidValue
from distmetrics.registry import Registry

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine
NAMES = st.sampled_from(["a", "b", "a*", "*b", "a[0]", "c/*", "c/d", "?", "??"])
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "unit": st.sampled_from(["", "ms", "é"]),
        "help": st.sampled_from(["", "ms", "é"]),
        "group": st.sampled_from(["", "g"]),
        "replicated_over": st.sampled_from([(), ("tensor",), ("b", "a")]),
        "nonfinite": st.sampled_from(["propagate", "skip"]),
        "scaling": st.sampled_from([None, "invariant", "extensive", "per_rank"]),
    },
)
PLAIN = st.tuples(
    st.sampled_from(["count", "total", "minimum", "maximum", "l2_norm", "same", "ignore"]),
    st.just({}),
)
WEIGHTED = st.tuples(
    st.sampled_from(["average", "std"]), st.sampled_from([{}, {"weight": "n"}, {"weight": "m/n"}])
)
CALLS = st.lists(st.tuples(NAMES, st.one_of(PLAIN, WEIGHTED), OPTIONS), max_size=6)


def built(calls: list, **settings: object) -> Registry:
    """A registry from random calls; names that contradict an earlier call are left out."""
    registry = Registry(**settings)
    for pattern, (kind, params), options in calls:
        try:
            registry.declare(kind, [pattern], params, **options)
        except DeclarationConflict:
            continue
    return registry


@PATIENT
@given(CALLS)
def test_declarations_survive_json(calls: list) -> None:
    """Written, read back and written again they are the same, and so is every look-up."""
    registry = built(calls)
    text = json.dumps(registry.declarations(), allow_nan=False)
    back = Registry.from_declarations(json.loads(text))
    assert json.dumps(back.declarations()) == text
    assert list(back) == list(registry)
    assert back.fingerprint() == registry.fingerprint()
    assert registry.difference(json.loads(text)) is None


@PATIENT
@given(CALLS, CALLS)
def test_fingerprints_differ_exactly_where_a_difference_is_found(one: list, two: list) -> None:
    """`fingerprint` and `difference` judge alike, in both directions."""
    first, second = built(one), built(two)
    equal = first.fingerprint() == second.fingerprint()
    assert (first.difference(second.declarations()) is None) == equal
    assert (second.difference(first.declarations()) is None) == equal


@PATIENT
@given(CALLS)
def test_registries_of_one_fingerprint_mean_the_same_by_every_key(calls: list) -> None:
    """Declared backwards: where the fingerprint is the same, so is every value."""
    first, second = built(calls), built(calls[::-1])
    if first.fingerprint() == second.fingerprint():
        for key in ("a", "b", "ab", "a0", "a[0]", "c/d", "c/b", "n", "zz"):
            for prefix in ("", "c/"):
                one, two = first.resolve(key, prefix), second.resolve(key, prefix)
                assert one.meaning == two.meaning


def test_every_kind_is_written_with_what_is_not_default() -> None:
    """The form that run.json holds."""
    registry = Registry()
    registry.average("loss", weight="n", unit="nats", nonfinite="skip")
    registry.std("x", ddof=1)
    registry.ratio("acc", "num_correct", "n", group="quality")
    registry.rate("speed", "n", seconds="time", per_device=True, scaling="invariant")
    registry.rate("total_speed", "n")
    registry.count("n", replicated_over=("tensor",), help="samples")
    registry.ignore("debug/*")
    assert registry.declarations() == [
        {
            "pattern": "loss",
            "reduction": "average",
            "params": {"weight": "n"},
            "unit": "nats",
            "nonfinite": "skip",
        },
        {"pattern": "x", "reduction": "std", "params": {"ddof": 1}},
        {
            "pattern": "acc",
            "reduction": "ratio",
            "params": {"numerator": "num_correct", "denominator": "n"},
            "group": "quality",
        },
        {
            "pattern": "speed",
            "reduction": "rate",
            "params": {"of": "n", "seconds": "time", "per_device": True},
            "scaling": "invariant",
        },
        {
            "pattern": "total_speed",
            "reduction": "rate",
            "params": {"of": "n"},
            "scaling": "extensive",
        },
        {
            "pattern": "n",
            "reduction": "count",
            "help": "samples",
            "replicated_over": ["tensor"],
        },
        {"pattern": "debug/*", "reduction": "ignore"},
    ]
    back = Registry.from_declarations(registry.declarations())
    assert list(back) == list(registry)


@pytest.mark.parametrize(
    ("declaration", "error", "text"),
    [
        ("loss", InvalidType, "declaration 0: a declaration is a dict, not str 'loss'"),
        ({"pattern": "x"}, InvalidType, "reduction is the name"),
        ({"reduction": "count"}, InvalidType, "a key is a str"),
        ({"pattern": "x", "reduction": "mean"}, InvalidValue, "no reduction 'mean'"),
        ({"pattern": "x", "reduction": "count", "params": []}, InvalidType, "params is a dict"),
        ({"pattern": "x", "reduction": "count", "units": ""}, InvalidType, "'units'"),
    ],
)
def test_a_malformed_declaration_is_an_error_with_its_position(
    declaration: object, error: type[Exception], text: str
) -> None:
    """What is wrong, and which one it is."""
    with pytest.raises(error, match=text):
        Registry.from_declarations([declaration])


def test_a_contradiction_in_written_declarations_is_a_conflict() -> None:
    """The second one is named by its position."""
    written = [{"pattern": "x", "reduction": kind} for kind in ("count", "average")]
    with pytest.raises(DeclarationConflict, match="declaration 1: "):
        Registry.from_declarations(written)


def test_the_difference_names_the_first_key_and_both_declarations() -> None:
    """With the names that the caller gives both registries."""
    registry, other = Registry(), Registry()
    registry.count("n")
    other.count("n")
    registry.average("loss", weight="n", nonfinite="skip")
    other.average("loss")
    names = ("rank 0", "rank 3")
    assert registry.difference(other.declarations(), names=names) == (
        "'loss' is average(weight='n'), nonfinite='skip' in rank 0 and average() in rank 3"
    )
    assert "'loss' is not declared in the other" not in registry.difference(other.declarations())
    assert "'n' is count() in this registry and not declared" in registry.difference([])


def test_settings_are_compared_as_well() -> None:
    """`default` changes values, `strict` which keys there are."""
    assert Registry().difference([], default="count") == (
        "default= is 'average' in this registry and 'count' in the other"
    )
    assert Registry().difference([], strict=True).startswith("strict= is False")
    prints = {
        Registry(default=default, strict=strict).fingerprint()
        for default in ("average", "ignore")
        for strict in (False, True)
    }
    assert len(prints) == 4


def test_an_order_that_matters_is_a_difference_and_any_other_order_is_none() -> None:
    """Of equally long patterns the later wins, where they mean different things."""

    def registry(*pairs: tuple[str, str]) -> Registry:
        made = Registry()
        for kind, pattern in pairs:
            made.declare(kind, [pattern], {})
        return made

    one = registry(("count", "a*"), ("average", "*b"))
    two = registry(("average", "*b"), ("count", "a*"))
    assert "'*b', 'a*'" in one.difference(two.declarations())
    assert one.fingerprint() != two.fingerprint()
    one = registry(("count", "a*"), ("count", "*b"), ("average", "long*"), ("same", "x"))
    two = registry(("same", "x"), ("average", "long*"), ("count", "*b"), ("count", "a*"))
    assert one.difference(two.declarations()) is None
    assert one.fingerprint() == two.fingerprint()


def test_what_changes_no_value_is_no_difference() -> None:
    """Units, help texts, groups and scaling classes may differ over ranks."""
    one, two = Registry(), Registry()
    one.count("n", unit="samples", group="data", help="x", scaling="extensive")
    two.count("n")
    assert one.difference(two.declarations()) is None
    assert one.fingerprint() == two.fingerprint()


def test_the_fingerprint_is_the_same_in_another_process() -> None:
    """It does not depend on the seed of Python's hashes."""
    code = (
        "from distmetrics.registry import Registry\n"
        "registry = Registry()\n"
        "registry.average('loss', weight='n', replicated_over=('b', 'a'))\n"
        "registry.count('*num', '*sum')\n"
        "print(registry.fingerprint())"
    )
    prints = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(prints) == 1


def test_a_registry_can_be_copied_and_pickled() -> None:
    """A copy goes its own way."""
    registry = Registry(default="count", strict=True)
    registry.average("loss", weight="n", group="quality")
    for other in (
        copy.copy(registry),
        copy.deepcopy(registry),
        pickle.loads(pickle.dumps(registry)),
    ):
        assert list(other) == list(registry)
        assert (other.default, other.strict) == ("count", True)
        other.count("x")
        assert len(registry) == 1
