"""Faults and noise that show in how the differences scatter."""

from __future__ import annotations

import numpy as np

from distmetrics.audit import pattern, scatter
from distmetrics.audit.aligned import Aligned
from distmetrics.audit.finding import FEW_EQUAL, SURE, Context, Finding, extreme_of
from distmetrics.audit.verdict import Kind
from distmetrics.runs.series import plural

_BIASED = 6.0
_UNLIKELY = 1.0 - SURE
_BESIDE_EQUAL = 0.85


def of_scatter(aligned: Aligned, context: Context) -> Finding | None:
    """Faults and noise that show in how the differences scatter."""
    found = scatter.measure(aligned)
    if found is None:
        return None
    side = pattern.bias(aligned)
    if side.z > _BIASED and side.one_sided >= 0.9 and side.grows:
        named = extreme_of(aligned)
        where = "above" if side.above else "below"
        local = f": a mean of the ranks' {named}" if named else ""
        return Finding(
            Kind.WEIGHTING,
            0.95,
            f"always {where} the value at {plural(aligned.sizes[0], 'rank')}{local}",
        )
    if side.smooth:
        return None
    noise = found.noise
    agreed = _UNLIKELY <= noise < SURE and _differs_while_others_agree(aligned, context)
    if agreed:
        noise = 1.0 - _BESIDE_EQUAL
    if noise < 0.5:
        kind = Kind.RANK_LOCAL if found.rank_local else Kind.WEIGHTING
        size = (
            "as large as that of one rank's own values"
            if kind is Kind.RANK_LOCAL
            else f"{found.share:.2g} times that of one rank's own values"
        )
        grows = "is in this key, while others are equal," if agreed else "grows with the ranks"
        return Finding(
            kind,
            1.0 - noise,
            f"different from the first step, without a trend; the scatter {grows} and is {size}",
        )
    if side.z > _BIASED and side.grows:
        return Finding(Kind.WEIGHTING, 0.85, "a little off to one side, the more the more ranks")
    return Finding(
        Kind.NOISE, found.noise, "scatter to both sides that does not grow with the ranks"
    )


def _differs_while_others_agree(aligned: Aligned, context: Context) -> bool:
    """Whether a key differs at steps at which the trainings themselves are equal."""
    if context.agreed is None:
        return False
    early = aligned.relative()[aligned.steps <= context.agreed]
    return len(early) >= FEW_EQUAL and float(np.median(early)) > pattern.ROUNDING
