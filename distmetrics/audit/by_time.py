"""Faults and drift that show in the steps at which the runs differ."""

from __future__ import annotations

import numpy as np

from distmetrics.audit import pattern, scaling, scatter
from distmetrics.audit.aligned import Aligned
from distmetrics.audit.by_scatter import of_scatter
from distmetrics.audit.finding import COARSE, FEW_EQUAL, Context, Finding, likely_weight
from distmetrics.audit.verdict import Kind

_BY_CHANCE = 5


def in_time(aligned: Aligned, context: Context) -> Finding | None:
    """Faults and drift that show in the steps at which the runs differ."""
    if aligned.count < 2:
        return None
    uneven = pattern.uneven_steps(aligned, context.counts)
    if uneven is not None:
        name, sure = uneven
        return Finding(
            Kind.WEIGHTING,
            sure,
            f"the runs differ at the steps where {name} does not split evenly over the ranks, and "
            "agree at the others",
            name,
        )
    when = pattern.onset(aligned, context.rtol)
    flips = when.lattice or (when.discrete and when.rare and context.drifting)
    back = when.returns or when.isolated
    if back and (when.regular or not flips) and len(set(aligned.sizes)) > 1:
        found = scatter.measure(aligned) if when.discrete and not when.regular else None
        if found is not None and found.noise < 0.5 and found.rank_local:
            return of_scatter(aligned, context)  # ratios of small counts are equal by chance
        return Finding(
            Kind.WEIGHTING,
            0.9 if when.returns or when.regular else 0.8,
            "the runs agree at some steps and differ at others, from the start to the end: as with "
            "steps whose parts are uneven",
            likely_weight(context),
        )
    return _of_rounding(aligned, when) or _drift(aligned, when, context, flips=flips)


def _of_rounding(aligned: Aligned, when: pattern.Onset) -> Finding | None:
    """Differences that are no larger than rounding in a training's own numbers."""
    if aligned.count < scaling.MIN_STEPS or float(aligned.relative().max()) > pattern.ROUNDING:
        return None
    if when.growth >= 3:
        return Finding(
            Kind.DRIFT, 0.9, "differences of the size of float32 rounding that grow with the steps"
        )
    return Finding(Kind.NOISE, 0.9, "differences of the size of float32 rounding")


def _drift(
    aligned: Aligned, when: pattern.Onset, context: Context, *, flips: bool
) -> Finding | None:
    if when.equal == 0:
        return _coarse_drift(aligned, when)
    if flips and (when.returns or when.rare):
        # A count or a ratio of counts: equal until a sample near the boundary flips.
        if when.equal < FEW_EQUAL or not (context.drifting or when.growth > 1.0):
            return None
        return Finding(
            Kind.DRIFT,
            0.85,
            f"equal for the first {when.equal} steps, then single samples count differently while "
            "the training drifts",
        )
    if when.discrete and when.equal < _BY_CHANCE and when.growth < 3:
        return None  # ratios of small counts can be equal at first by chance
    steps = "step" if when.equal == 1 else "steps"
    # A large difference at the last step alone may be that of a small last batch.
    begun = when.equal < aligned.count - 1 or float(aligned.relative()[-1]) <= COARSE
    enough = aligned.count >= 4 and begun
    if not enough or when.returns:
        return None
    sure = 0.97 if when.equal >= 3 or when.growth >= 10 else 0.85
    return Finding(
        Kind.DRIFT, sure, f"equal for the first {when.equal} {steps} up to rounding, then apart"
    )


def _coarse_drift(aligned: Aligned, when: pattern.Onset) -> Finding | None:
    """Drift in trainings of low precision, in which not even the first step is equal."""
    first = float(np.median(aligned.relative()[: max(FEW_EQUAL, aligned.count // 20)]))
    if when.returns or when.discrete or first > COARSE or when.overall < 30 * first:
        return None
    return Finding(
        Kind.DRIFT, 0.85, "almost equal at first, as in low precision, and then more and more apart"
    )
