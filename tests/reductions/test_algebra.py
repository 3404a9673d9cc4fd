"""The algebra itself: states merge by integer operations, in any order and grouping."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics import reductions
from distmetrics.reductions import NOTHING, Reduction, disputed, same_value
from tests.snapshot.taking import Taker

FINITE = st.floats(-1e100, 1e100) | st.sampled_from([0.1, -0.0, 1e16, 1 / 3])
NUMBERS = FINITE | st.integers(-(2**80), 2**80) | st.sampled_from([math.nan, math.inf, -math.inf])
WEIGHTS = st.sampled_from([0, 1, 2.5, 2**60, 0.1])
TAGS: dict[str, Any] = {
    "count": dm.Count,
    "total": dm.Total,
    "average": dm.Average,
    "weighted": lambda x: dm.Average(x, weight=1.5),
    "ratio": lambda x: dm.Ratio(x, 3),
    "minimum": dm.Minimum,
    "maximum": dm.Maximum,
    "std": dm.Std,
    "l2_norm": dm.L2Norm,
}
State = dict[str, Any]


def state(samples: list[Any]) -> State:
    """What a rank that logs these samples adds, key by key; nothing where there are none."""
    taker = Taker()
    calls = [{name: tag(x) for name, tag in TAGS.items()} for x in [0, *samples]]
    _, *snapshots = [taker.take(call) for call in calls]  # the first gives every key its place
    return taker.state(*snapshots)


def merged(one: State, other: State) -> State:
    """Two ranks' states as one: sums and counters are added, fields are maximised."""
    if not one or not other:
        return one or other
    return {
        key: (
            [a + b for a, b in zip(one[key][0], other[key][0], strict=True)],
            [a + b for a, b in zip(one[key][1], other[key][1], strict=True)],
            [max(a, b) for a, b in zip(one[key][2], other[key][2], strict=True)],
        )
        for key in one
    }


@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.lists(NUMBERS, max_size=4), min_size=2, max_size=4))
def test_merging_is_associative_commutative_and_neutral(parts: list[list[Any]]) -> None:
    """Any tree of ranks in any order gives the state of all samples on one rank, in bits."""
    states = [state(part) for part in parts]
    whole = state([x for part in parts for x in part])
    left = states[0]
    for other in states[1:]:
        left = merged(left, other)
    right = states[-1]
    for other in reversed(states[:-1]):
        right = merged(other, right)
    backwards = states[-1]
    for other in reversed(states[:-1]):
        backwards = merged(backwards, other)
    assert left == right == backwards == whole
    assert merged(whole, state([])) == whole == merged(state([]), whole)


OPTIONS: dict[str, dict[str, Any]] = {
    "ratio": {"numerator": "a", "denominator": "b"},
    "rate": {"of": "a"},
}
KINDS = ("count", "total", "average", "minimum", "maximum", "std", "l2_norm", "same", *OPTIONS)


@pytest.mark.parametrize("kind", KINDS)
def test_reductions_are_compared_copied_and_pickled_by_kind_and_options(kind: str) -> None:
    """Two reductions are equal exactly when their kind and options are."""
    options = OPTIONS.get(kind, {})
    one = reductions.make(kind, **options)
    assert one == reductions.make(kind, **options)
    assert one == pickle.loads(pickle.dumps(one)) == copy.deepcopy(one)
    assert hash(one) == hash(pickle.loads(pickle.dumps(one)))
    assert one != reductions.make("l2_norm" if kind != "l2_norm" else "count")
    assert str(one).startswith(f"{kind}(")


def test_options_make_a_difference() -> None:
    """A weight, a ddof or another operand is another declaration; a default is none."""
    assert reductions.average("n") != reductions.average()
    assert reductions.std(1) != reductions.std()
    assert reductions.std(0) == reductions.std()
    assert reductions.std(1) == reductions.std(1.0)
    assert reductions.rate("a") != reductions.rate("a", per_device=True)
    assert reductions.rate("a", per_device=False) == reductions.rate("a")
    assert str(reductions.std(1, "n")) == "std(ddof=1, weight='n')"
    assert reductions.ratio("a", "b").refers == ("a", "b")


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones() -> None:
    """So that a file with a typing error says what could be meant."""
    with pytest.raises(ValueError, match=r"no reduction 'avg'; there are count, total, .*average"):
        reductions.make("avg")
    with pytest.raises(TypeError, match="numerator and denominator"):
        reductions.ratio("a")


def fields_of(reduction: Reduction, values: Any) -> list[int]:
    """The max lane's fields after some values of one rank, the last step's last."""
    terms = reduction.contribute(np.asarray(values), None)
    fields = [NOTHING] * reduction.maxes
    for field, images in terms.maxes:
        fields[field] = max(images.tolist())
    return fields


@given(value=st.integers(-(2**110), 2**110) | FINITE | st.sampled_from([math.nan, math.inf]))
def test_a_value_that_is_the_same_comes_back_as_it_was(value: Any) -> None:
    """Floats in their bits, ints exactly: seeds and step counters have more than 53 bits."""
    array = np.array([value], object if isinstance(value, int) else np.float64)
    fields = fields_of(reductions.same(), array)
    found = same_value(fields)
    assert found == value or (math.isnan(value) and math.isnan(found))
    fields[-2:] = [3, -3]
    assert not disputed(fields)


def test_values_that_differ_anywhere_are_disputed() -> None:
    """In the value, in the last bits of a wide int, or in the step they were logged at."""
    same = reductions.same()
    for one, other in ((0.1, 0.2), (2**60, 2**60 + 1), (1, 1.5), (math.nan, 1.0)):
        left = [*fields_of(same, [one])[:-2], 3, -3]
        right = [*fields_of(same, np.array([other]))[:-2], 3, -3]
        assert disputed([max(a, b) for a, b in zip(left, right, strict=True)])
    agreed = [*fields_of(same, [0.1])[:-2], 3, -3]
    later = [*agreed[:-2], 4, -4]
    assert disputed([max(a, b) for a, b in zip(agreed, later, strict=True)])
    nobody = [NOTHING] * same.maxes
    assert not disputed(nobody)
    assert not disputed([max(a, b) for a, b in zip(agreed, nobody, strict=True)])
