"""What is known when a key is judged, and a verdict in the making."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from distmetrics.audit import scaling
from distmetrics.audit.aligned import Aligned, Floats
from distmetrics.audit.remedy import extreme, looks_like_count
from distmetrics.audit.verdict import Kind

DEFAULT_RTOL = 1e-6
"""Relative differences up to this are no difference, unless the caller says otherwise."""

SURE = 0.8
"""A verdict that is less sure than this is `undecided`."""

COARSE = 1e-3
"""Relative differences up to this can come from low precision in the training."""

FEW_EQUAL = 3
"""So many equal steps are no chance."""


@dataclass(frozen=True)
class Context:
    """What else is known when a key is judged.

    Attributes:
        rtol: the relative tolerance.
        counts: names of counts to their values, shape (n,), at the key's steps: from them it can
            be told which steps have parts of unequal size.
        min_exact_steps: how many steps an exact factor needs.
        drifting: another key of the runs is equal at first and then apart.
        agreed: up to this step a loss or a norm among the other keys is equal in all runs, so
            that the trainings are; None where there is none.
    """

    rtol: float = DEFAULT_RTOL
    counts: Mapping[str, Floats] = field(default_factory=dict)
    min_exact_steps: int = scaling.MIN_EXACT_STEPS
    drifting: bool = False
    agreed: float | None = None


@dataclass(frozen=True)
class Finding:
    """A verdict in the making."""

    kind: Kind
    confidence: float
    reason: str
    weight: str | None = None


def extreme_of(aligned: Aligned) -> str | None:
    """The reduction maximum or minimum, if a key is declared or named so."""
    declared = aligned.declared
    if declared is not None and declared.reduction in {"maximum", "minimum"}:
        return declared.reduction
    return extreme(aligned.key)


def likely_weight(context: Context) -> str | None:
    """A count among the other keys that may hold the sizes of the parts, None without one."""
    return next((name for name in context.counts if looks_like_count(name)), None)
