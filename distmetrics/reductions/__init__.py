"""The algebra: what each reduction adds to the lanes, and how a merged state becomes a value.

A key's state lives in four lanes of integers that merge elementwise, so that any tree of ranks,
in any order, gives the same bits:

* the *sum* lane: `sums` exact rows (see `distmetrics.exact`), merged by addition;
* the *counter* lane: `Counter`, plain int64, merged by addition;
* the *max* lane: `maxes` int64 fields, merged by maximum, `NOTHING` where nobody contributed;
* the *tally* lane: `tallies` sparse maps of buckets to int64 counts, merged by addition.

A reduction is a small tuple of pure functions over these lanes: `contribute` turns contributions
into terms, `finalize` turns the merged state into the logged value. The exchange moves lanes and
knows no reduction, so a new kind is a new builder here and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from distmetrics.reductions.derived import Derive, derived
from distmetrics.reductions.distributions import histogram, quantiles
from distmetrics.reductions.extremes import maximum, minimum
from distmetrics.reductions.made import rate, ratio
from distmetrics.reductions.per_rank import MOST_RANKS, per_rank
from distmetrics.reductions.reduction import (
    Finalized,
    LocalWindow,
    ReducedWindow,
    Reduction,
    Terms,
)
from distmetrics.reductions.same import SAME_STEP, disputed, same, same_value
from distmetrics.reductions.state import NOTHING, Counter, Number, State
from distmetrics.reductions.sums import average, axis, count, l2_norm, std, total

__all__ = [
    "BUILDERS",
    "MOST_RANKS",
    "NOTHING",
    "SAME_STEP",
    "Counter",
    "Derive",
    "Finalized",
    "LocalWindow",
    "Number",
    "ReducedWindow",
    "Reduction",
    "State",
    "Terms",
    "average",
    "axis",
    "count",
    "derived",
    "disputed",
    "histogram",
    "l2_norm",
    "make",
    "maximum",
    "minimum",
    "per_rank",
    "quantiles",
    "rate",
    "ratio",
    "rebuild",
    "same",
    "same_value",
    "std",
    "total",
]

BUILDERS: Mapping[str, Callable[..., Reduction]] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (
            count,
            total,
            axis,
            average,
            ratio,
            minimum,
            maximum,
            std,
            l2_norm,
            same,
            rate,
            histogram,
            quantiles,
            per_rank,
            derived,
        )
    }
)


def rebuild(kind: str, params: dict[str, Any]) -> Reduction:
    """The reduction that was pickled."""
    return make(kind, **params)


def make(kind: str, **params: Any) -> Reduction:
    """The reduction of this kind and these options, as a registry or a file declares it.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in BUILDERS:
        raise ValueError(f"no reduction {kind!r}; there are {', '.join(BUILDERS)}")
    return BUILDERS[kind](**params)
