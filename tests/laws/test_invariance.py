"""Laws 1 and 2: exact values, whatever the split over ranks and micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from tests.laws import numbers, reference
from tests.laws.numbers import Kind, plain
from tests.laws.reference import all_bits
from tests.laws.runs import Samples, calls_of, random_split, records_of, rows_of

WORLD_SIZES = (1, 2, 3, 4, 8)


def make_registry() -> dm.Registry:
    """Every reduction whose values do not depend on time."""
    registry = dm.Registry()
    registry.count("n")
    registry.total("t")
    registry.average("a")
    registry.average("a_w", weight="w")
    registry.ratio("r", "n", "w")
    registry.minimum("lo")
    registry.maximum("hi")
    registry.std("s")
    registry.std("s1", ddof=1)
    registry.std("s_w", weight="w")
    registry.l2_norm("g")
    return registry


def expected(
    every: int, steps: Sequence[Samples], xs: list[Any], ws: list[Any]
) -> list[tuple[object, ...]]:
    """The rows by the reference."""
    rows = []
    running: list[Any] = []
    for first in range(0, len(steps), every):
        window = range(len(steps))[first : first + every]
        samples = [sample for step in window for sample in steps[step]]
        x = [plain(xs[sample]) for sample in samples]
        w = [plain(ws[sample]) for sample in samples]
        pairs, plains = list(zip(x, w, strict=True)), [(value, 1) for value in x]
        running += x
        values = {
            "n": reference.count(x, len(window)),
            "t": reference.summed(running),
            "a": reference.average(plains),
            "a_w": reference.average(pairs),
            "w": reference.count(w, len(window)),
            "r": reference.ratio(pairs),
            "lo": reference.extreme(x, largest=False),
            "hi": reference.extreme(x, largest=True),
            "s": reference.std(plains),
            "s1": reference.std(plains, 1),
            "s_w": reference.std(pairs),
            "g": reference.l2_norm(x, len(window)),
        }
        present = {key: value for key, value in values.items() if value is not None}
        rows.append((window[-1], first, first + every - 1, False, all_bits(present)))
    return rows


def differences(found: list[Any], wanted: list[Any]) -> list[Any]:
    """What differs, key by key."""
    return [
        (one[:-1], other[:-1], key, one[-1].get(key), other[-1].get(key))
        for one, other in zip(found, wanted, strict=False)
        for key in {**one[-1], **other[-1]}
        if one[:-1] != other[:-1] or one[-1].get(key) != other[-1].get(key)
    ]


def as_set(rows: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """The rows with values in any order of keys."""
    return [(*row[:-1], dict(sorted(row[-1].items()))) for row in rows]  # type: ignore[attr-defined]


def check_kind(kind: Kind, data: st.DataObject, world_sizes: Sequence[int]) -> None:
    """One data set of a kind, in random splits and forms, against the reference."""
    weights = data.draw(st.sampled_from(numbers.WEIGHTS), label="kind of weights")
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="sizes of steps")
    xs = data.draw(st.lists(kind.numbers, min_size=sum(sizes), max_size=sum(sizes)), label="x")
    ws = data.draw(st.lists(weights.numbers, min_size=sum(sizes), max_size=sum(sizes)), label="w")
    every = data.draw(st.sampled_from([1, 2, 3]), label="every")
    random = data.draw(st.randoms(use_true_random=False), label="random")
    steps = [list(range(sum(sizes[:i]), sum(sizes[: i + 1]))) for i in range(len(sizes))]

    def outputs(samples: Samples) -> dict[str, Any]:
        x = [xs[sample] for sample in samples]
        w = [ws[sample] for sample in samples]
        scalar = len(samples) == 1 and random.random() < 0.5
        keys = ("n", "t", "a", "a_w", "lo", "hi", "s", "s1", "s_w", "g")
        made = {key: numbers.given(random, kind, x, scalar) for key in keys}
        return made | {"w": numbers.given(random, weights, w, scalar)}

    wanted = as_set(expected(every, steps, xs, ws))
    for world_size in world_sizes:
        split = random_split(random, steps, world_size)
        records = records_of(calls_of(split, outputs), make_registry(), every)
        found = as_set(rows_of(records))
        assert found == wanted, f"world size {world_size}: {differences(found, wanted)}"


@pytest.mark.parametrize("kind", numbers.KINDS, ids=repr)
@settings(max_examples=5, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_every_split_gives_the_bits_of_the_reference(kind: Kind, data: st.DataObject) -> None:
    """All reductions of all kinds of numbers equal an exact reference, at every world size."""
    check_kind(kind, data, data.draw(st.permutations(WORLD_SIZES))[:3])


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", numbers.KINDS, ids=repr)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_many_splits_give_the_bits_of_the_reference(kind: Kind, data: st.DataObject) -> None:
    """The same with many more data sets, at all world sizes."""
    check_kind(kind, data, WORLD_SIZES)
