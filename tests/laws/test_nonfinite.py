"""Laws 3, 9 and 10: absent, not finite, and of no weight."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import distmetrics as dm
from tests.laws.reference import all_bits
from tests.laws.runs import Call, records_of

NAN, INF = math.nan, math.inf
KINDS = ("count", "total", "average", "minimum", "maximum", "std", "l2_norm")


def registry(nonfinite: str = "propagate") -> dm.Registry:
    """A key of each kind, named by it; and one that is always finite."""
    made = dm.Registry()
    for kind in KINDS:
        getattr(made, kind)(kind, nonfinite=nonfinite)
    made.average("clean")
    return made


def logged(ranks: list[list[Any]], nonfinite: str = "propagate") -> dict[str, Any]:
    """The record of one step in which each rank logs its samples under a key of each kind."""
    calls = [[Call(0, [], {**dict.fromkeys(KINDS, samples), "clean": 1.0})] for samples in ranks]
    (record,) = records_of(calls, registry(nonfinite), 1)
    return dict(record.values)


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([[1.0, NAN], [1.0, 1.0]], dict.fromkeys(KINDS, NAN)),
        ([[1.0], [INF]], {**dict.fromkeys(KINDS, INF), "minimum": 1.0, "std": NAN}),
        (
            [[-INF], [2.0]],
            {**dict.fromkeys(KINDS, -INF), "maximum": 2.0, "std": NAN, "l2_norm": INF},
        ),
        (
            [[-INF], [INF]],
            {**dict.fromkeys(KINDS, NAN), "minimum": -INF, "maximum": INF, "l2_norm": INF},
        ),
        ([[INF], [NAN]], dict.fromkeys(KINDS, NAN)),
        ([[INF]], {**dict.fromkeys(KINDS, INF), "std": NAN}),
        ([[torch.inf], [7]], {**dict.fromkeys(KINDS, INF), "minimum": 7.0, "std": NAN}),
    ],
    ids=str,
)
def test_what_is_not_finite_reaches_the_record(
    ranks: list[list[Any]], expected: dict[str, float]
) -> None:
    """The value is what the arithmetic gives, a count of it stands beside, other keys are clean."""
    found = logged(ranks)
    number = sum(not math.isfinite(sample) for samples in ranks for sample in samples)
    wanted: dict[str, Any] = {**expected, "clean": 1.0}
    wanted |= {f"{kind}/nonfinite": number for kind in KINDS}
    assert all_bits(found) == all_bits(wanted)


def test_what_is_not_finite_may_be_left_out() -> None:
    """With nonfinite='skip' the value is that of the rest; the count stands beside as well."""
    found = logged([[1.0, NAN], [3.0, INF], [-INF]], "skip")
    assert {kind: found[kind] for kind in KINDS} == {
        "count": 4.0,
        "total": 4.0,
        "average": 2.0,
        "minimum": 1.0,
        "maximum": 3.0,
        "std": 1.0,
        "l2_norm": 10.0**0.5,
    }
    assert all(found[f"{kind}/nonfinite"] == 3 for kind in KINDS)


def test_where_all_is_left_out_the_value_is_nan() -> None:
    """Not zero, and not absent: somebody did log the key."""
    found = logged([[NAN], [INF]], "skip")
    assert all(math.isnan(found[kind]) for kind in KINDS)


def test_only_steps_with_such_values_have_a_count_of_them() -> None:
    """The count shows in any tool at which steps a run broke."""
    calls = [
        [Call(step, [], {"loss": dm.Average(NAN if step in (1, 3) else 1.0)}) for step in range(5)]
    ]
    records = records_of(calls, dm.Registry(), 1)
    assert [record.values.get("loss/nonfinite") for record in records] == [None, 1, None, 1, None]
    assert [math.isnan(record.values["loss"]) for record in records] == [  # type: ignore[arg-type]
        False,
        True,
        False,
        True,
        False,
    ]


def test_a_total_stays_nan_once_it_is_and_skips_if_it_should() -> None:
    """A running total remembers; with 'skip' it goes on without."""
    made = dm.Registry()
    made.total("kept")
    made.total("skipped", nonfinite="skip")
    calls = [[Call(s, [], {"kept": x, "skipped": x}) for s, x in enumerate((1.0, NAN, 2.0))]]
    records = records_of(calls, made, 1)
    assert [str(record.values["kept"]) for record in records] == ["1.0", "nan", "nan"]
    assert [record.values["skipped"] for record in records] == [1.0, 1.0, 3.0]


def test_ratios_follow_their_parts() -> None:
    """A NaN numerator makes the ratio NaN, unless the part or the ratio itself leaves it out."""
    made = dm.Registry()
    made.count("a")
    made.count("b", nonfinite="skip")
    made.ratio("r", "a", "n")
    made.ratio("r_skip", "a", "n", nonfinite="skip")
    made.ratio("of_skipped", "b", "n")
    made.rate("speed", of="a", seconds="took")
    calls = [
        [Call(0, [], {"a": NAN, "b": NAN, "n": 2, "took": 1.0})],
        [Call(0, [], {"a": 4.0, "b": 4.0, "n": 2, "took": 2.0})],
    ]
    (record,) = records_of(calls, made, 1)
    assert {k: str(record.values[k]) for k in ("r", "r_skip", "of_skipped", "speed")} == {
        "r": "nan",
        "r_skip": "1.0",
        "of_skipped": "1.0",
        "speed": "nan",
    }
    assert not any(key.startswith("r/") for key in record.values)


@pytest.mark.parametrize("tag", [dm.Average, dm.Std])
def test_a_weight_of_zero_is_no_contribution(tag: Any) -> None:
    """A padded sample changes nothing, not even when its value is NaN."""
    for padding in (NAN, INF, 1e300, 0.0):
        calls = [
            [Call(0, [], {"k": tag([1.0, padding], weight=[2.0, 0.0])})],
            [Call(0, [], {"k": tag(torch.tensor([3.0, padding]), weight=torch.tensor([2, 0]))})],
            [Call(0, [], {"k": tag(padding, weight=0)})],
        ]
        (record,) = records_of(calls, dm.Registry(), 1)
        assert record.values == {"k": {dm.Average: 2.0, dm.Std: 1.0}[tag]}


def test_where_every_weight_is_zero_the_key_is_absent() -> None:
    """Nobody contributed: there is no 0/0 in the record."""
    calls = [[Call(0, [], {"k": dm.Average(NAN, weight=0), "n": dm.Count(1)})] for _ in range(2)]
    (record,) = records_of(calls, dm.Registry(), 1)
    assert record.values == {"n": 2}


def test_a_ratio_without_denominator_is_what_division_gives() -> None:
    """0/0 is NaN and 1/0 infinite, which no other key notices."""
    calls = [[Call(0, [], {"none": dm.Ratio(0, 0), "some": dm.Ratio(1, 0), "ok": dm.Ratio(1, 2)})]]
    (record,) = records_of(calls, dm.Registry(), 1)
    assert {key: str(value) for key, value in record.values.items()} == {
        "none": "nan",
        "some": "inf",
        "ok": "0.5",
    }


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_neutral_ranks_change_nothing(world_size: int) -> None:
    """Ranks without data, first, last or in between, leave every value as it is."""
    data = [Call(0, [], {**dict.fromkeys(KINDS, (0.1, 0.2)), "clean": 0.3})]
    wanted = None
    for holder in range(world_size):
        calls: list[list[Call]] = [[] for _ in range(world_size)]
        calls[holder] = data
        (record,) = records_of(calls, registry(), 1)
        wanted = wanted or record.values
        assert record.values == wanted
