"""Sets of steps: what they hold, their hash, and their union."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distmetrics.window.steps import Steps, union

SETS = st.lists(st.integers(0, 30) | st.integers(0, 2**50 - 1), max_size=20)


def steps_of(numbers: list[int]) -> Steps:
    """The set of some numbers, added one by one."""
    steps = Steps()
    for number in numbers:
        steps.add(number)
    return steps


def held(steps: Steps) -> set[int]:
    """The numbers of a set whose runs are short."""
    return {n for first, last in steps.runs for n in range(first, last + 1)}


@given(SETS)
def test_steps_hold_what_was_added_in_any_order(numbers: list[int]) -> None:
    """Runs are sorted, apart from each other and hold each step once."""
    steps = steps_of(numbers)
    assert held(steps) == set(numbers)
    assert len(steps) == len(set(numbers))
    assert bool(steps) == bool(numbers)
    if numbers:
        assert (steps.first, steps.last) == (min(numbers), max(numbers))
    assert all(a[1] + 1 < b[0] for a, b in zip(steps.runs, steps.runs[1:], strict=False))


@given(SETS, SETS)
def test_a_hash_is_that_of_the_set(one: list[int], other: list[int]) -> None:
    """It does not depend on the order of additions, and differs where the sets do."""
    same = set(one) == set(other)
    digests = steps_of(one).digest(), steps_of(other).digest()
    assert (digests[0] == digests[1]) == same
    assert all(0 <= digest < 2**62 for digest in digests)
    assert steps_of(sorted(one)).digest() == digests[0]


@given(st.lists(SETS, max_size=4))
def test_a_union_holds_what_any_set_holds(sets: list[list[int]]) -> None:
    """As with sets of Python; the sets stay as they are."""
    each = [steps_of(numbers) for numbers in sets]
    assert held(union(each)) == set().union(*map(set, sets))
    assert [held(steps) for steps in each] == [set(numbers) for numbers in sets]
