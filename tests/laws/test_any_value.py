"""No value that is accepted breaks the worker, and extreme ones depend on no split either."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from tests.laws.reference import all_bits
from tests.laws.runs import Call, records_of

FLOATS = st.floats() | st.sampled_from(
    [5e-324, -5e-324, 1e-200, 2e-200, 1.7e308, -1.7e308, 1e155, math.nan, math.inf, -math.inf, 0.0]
)
INTS = st.integers() | st.integers(-(10**400), 10**400)
SAMPLES = st.lists(FLOATS, max_size=4) | st.lists(INTS, max_size=4)
WEIGHTS = st.sampled_from([0, 1, 3, 10**300, 0.5, 5e-324, 1.7e308])


def registry(nonfinite: Any) -> dm.Registry:
    """Every kind that takes any numbers."""
    made = dm.Registry()
    for kind in ("count", "total", "average", "minimum", "maximum", "std", "l2_norm"):
        getattr(made, kind)(kind, nonfinite=nonfinite)
    made.average("average_w", weight="w", nonfinite=nonfinite)
    made.std("std_w", weight="w", ddof=1, nonfinite=nonfinite)
    made.ratio("ratio", "count", "w")
    made.rate("rate", of="count", seconds="average")
    made.histogram("histogram", edges=[-1.0, 0.0, 1e300], nonfinite=nonfinite)
    made.quantiles("quantiles", qs=[0.1, 0.9], nonfinite=nonfinite)
    return made


@settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    ranks=st.lists(SAMPLES, min_size=1, max_size=3),
    weight=WEIGHTS,
    nonfinite=st.sampled_from(["propagate", "skip"]),
)
@example(ranks=[[1e-200, 2e-200]], weight=1, nonfinite="propagate")
@example(ranks=[[1e300], [1.0]], weight=10**300, nonfinite="skip")
@example(ranks=[[10**400], [-(10**400)], [1]], weight=1.7e308, nonfinite="skip")
@example(ranks=[[5e-324], [math.nan]], weight=5e-324, nonfinite="skip")
def test_any_numbers_give_a_record_that_no_split_changes(
    ranks: list[list[Any]], weight: Any, nonfinite: str
) -> None:
    """From the smallest subnormal to integers beyond float64, NaN and infinities among them."""
    kinds = ("count", "total", "average", "minimum", "maximum", "std", "l2_norm")
    keys = (*kinds, "average_w", "std_w", "histogram", "quantiles")

    def call(samples: list[Any]) -> Call:
        return Call(0, [], {**dict.fromkeys(keys, samples), "w": [weight] * len(samples)})

    split = records_of([[call(samples)] for samples in ranks], registry(nonfinite), 1)
    whole = records_of([[call(samples) for samples in ranks]], registry(nonfinite), 1)
    (found, wanted) = [
        [all_bits({k: v for k, v in r.values.items() if k != "rate"}) for r in records]
        for records in (split, whole)
    ]
    assert found == wanted
    assert len(found) == any(ranks)
