"""The judgement: from the values of one key in several runs to a verdict.

The order matters. What can be told exactly comes first (equality, counts rounded to the ranks,
fixed factors), then when the runs differ (on uneven steps, later, now and then), last how their
scatter grows. All thresholds stand beside the evidence they belong to; `docs/audit.md` says how
they were found and how often they err.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from distmetrics.audit import pattern, scaling, scatter
from distmetrics.audit.aligned import FLOAT32_STEP, Aligned, Bools, Floats, thinned
from distmetrics.audit.remedy import extreme, looks_like_count, remedy
from distmetrics.audit.verdict import Kind, Verdict

DEFAULT_RTOL = 1e-6
"""Relative differences up to this are no difference, unless the caller says otherwise."""

SURE = 0.8
"""A verdict that is less sure than this is `undecided`."""

_CLOCK = re.compile(
    r"per_?s(ec(ond)?s?)?$|/s(ec)?$|throughput|seconds?$|_secs?$|(^|[^a-z])(time|times|duration|elapsed|"
    r"latency|fps|eta|wait|mfu|t?flops|wall(clock)?|mem|memory|vram|rss|cpu|gpu_util)([^a-z]|$)|_ms$|_time_|[a-z]time$"
)
_EXACT_FLOAT32 = 2.0**24
_BIASED = 6.0
_COARSE = 1e-3
_ROUNDING = 1e-9
_BY_CHANCE = 5
_UNLIKELY = 1.0 - SURE
_BESIDE_EQUAL = 0.85
_FEW_AGREED = 3


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
class _Finding:
    """A verdict in the making."""

    kind: Kind
    confidence: float
    reason: str
    weight: str | None = None


def judge(aligned: Aligned, context: Context | None = None) -> Verdict:
    """The verdict on one key.

    >>> rng = np.random.default_rng(0)
    >>> from distmetrics.audit.aligned import align
    >>> from distmetrics.runs import Series
    >>> steps = np.arange(60)
    >>> pairs = rng.integers(20, 40, 60).astype(float) * 4
    >>> runs = [Series(steps, pairs / size, np.ones(60, int)) for size in (1, 2, 4)]
    >>> print(judge(align("num_pairs", runs, [1, 2, 4])))
    num_pairs: shrinks_with_ranks (confidence 1.00, 60 steps): 0.5 times at 2 ranks, \
0.25 times at 4 ranks, at all steps: as 1/W (exponent -1.00)
        registry.count("num_pairs")  # a count is being averaged over the ranks: sum it
    """
    # Ratios of extreme magnitudes may overflow; what follows takes infinities and NaN as such.
    with np.errstate(all="ignore"):
        return _judge(aligned, context or Context())


def _judge(aligned: Aligned, context: Context) -> Verdict:
    if aligned.split:
        return _verdict(aligned, _split_finding(aligned), None)
    if aligned.count == 0:
        return _verdict(aligned, _nothing(aligned), None)
    outside = beyond_tolerance(aligned, context.rtol)
    if not outside.any():
        return _verdict(aligned, _equal(aligned, context.rtol), None)
    part = thinned(aligned, outside)
    if part is not aligned:
        context = replace(context, counts=_counts_at(part, aligned, context))
    factors = scaling.fit(part)
    found = _declared(part, factors) or _find(part, factors, context)
    if not found.confidence >= SURE and found.kind is not Kind.UNDECIDED:
        found = replace(
            found,
            kind=Kind.UNDECIDED,
            reason=f"perhaps {found.kind.value} ({found.confidence:.2f}): {found.reason}",
        )
    return _verdict(aligned, found, factors)


def _counts_at(part: Aligned, whole: Aligned, context: Context) -> dict[str, Floats]:
    rows = np.searchsorted(whole.steps, part.steps)
    return {name: counts[rows] for name, counts in context.counts.items()}


def beyond_tolerance(aligned: Aligned, rtol: float) -> Bools:
    """Shape (n,): the steps at which runs differ by more than the tolerance.

    Ints compare exactly, up to what float32 holds where a file has no more.
    """
    relative = aligned.relative()
    if not aligned.integer:
        outside: Bools = relative > max(rtol, FLOAT32_STEP if aligned.single else 0.0)
        return outside
    if not aligned.single:
        return aligned.spread > 0
    rounded = np.abs(aligned.values).max(axis=0) > _EXACT_FLOAT32
    beyond: Bools = (aligned.spread > 0) & ~(rounded & (relative <= FLOAT32_STEP))
    return beyond


def _split_finding(aligned: Aligned) -> _Finding:
    steps = "step" if aligned.split == 1 else "steps"
    return _Finding(
        Kind.NONFINITE,
        1.0,
        f"NaN or infinite in some runs but not in others at {aligned.split} {steps}",
    )


def _nothing(aligned: Aligned) -> _Finding:
    if aligned.dropped:
        return _Finding(Kind.IDENTICAL, 1.0, "NaN or infinite in all runs at all common steps")
    return _Finding(
        Kind.UNDECIDED,
        0.0,
        "the runs have no step in common; compare them by samples or tokens with --x KEY",
    )


def _equal(aligned: Aligned, rtol: float) -> _Finding:
    if not aligned.spread.any():
        held = " that float32 holds" if aligned.single else ""
        return _Finding(Kind.IDENTICAL, 1.0, f"the same bits{held} at every step")
    if aligned.single and float(aligned.relative().max()) <= FLOAT32_STEP:
        return _Finding(Kind.CLOSE, 1.0, "equal up to float32, which is all that a file holds")
    return _Finding(Kind.CLOSE, 1.0, f"equal within the relative tolerance {rtol:g}")


def _declared(aligned: Aligned, factors: scaling.Scaling | None) -> _Finding | None:
    """What is to be said of a key whose scaling class, declared or by its name, is no invariant."""
    declared = aligned.declared
    exact = factors is not None and factors.exact
    if declared is None or (declared.scaling == "invariant" and declared.reduction == "average"):
        if _CLOCK.search(aligned.key.lower()) and not exact:
            return _Finding(
                Kind.EXPECTED_SCALING,
                0.9,
                "by its name a time, a rate or a memory size, which follow the machine; declare "
                "its scaling class to have it judged by that",
            )
        return None
    if declared.scaling == "per_rank":
        return _Finding(Kind.EXPECTED_SCALING, 0.99, "declared as a value of each rank")
    if declared.scaling != "extensive":
        return None
    exponent = None if factors is None else factors.exponent
    if exact and exponent is not None and exponent < -0.75:
        return _Finding(
            Kind.SHRINKS_WITH_RANKS,
            0.95,
            f"declared as growing with the ranks, but falls as W^{exponent:.2f}",
        )
    shown = "" if exponent is None else f"; it goes as W^{exponent:.2f}"
    return _Finding(Kind.EXPECTED_SCALING, 0.95, f"declared as growing with the ranks{shown}")


def _find(aligned: Aligned, factors: scaling.Scaling | None, context: Context) -> _Finding:
    return (
        _exact_counts(aligned, context)
        or _of_extreme(aligned)
        or _factor(aligned, factors, context)
        or _in_time(aligned, context)
        or _of_scatter(aligned, context)
        or _undecided(aligned, factors)
    )


def _exact_counts(aligned: Aligned, context: Context) -> _Finding | None:
    rounded = pattern.padding(aligned)
    if rounded is not None and rounded.confidence >= SURE:
        how = "up: padded samples are counted" if rounded.padded else "down: samples are dropped"
        return _Finding(
            Kind.WEIGHTING,
            rounded.confidence,
            f"the counts are those of one rank, rounded to a multiple of the ranks, {how}",
        )
    weight = pattern.floored_weight(aligned, context.counts)
    if weight is None:
        return None
    return _floored(f"= {weight}", weight)


def _floored(which: str, weight: str | None) -> _Finding:
    return _Finding(
        Kind.WEIGHTING,
        0.99 if weight else 0.85,
        f"too large by (N/W) / floor(N/W) with N {which}: an integer weight was averaged over "
        "the ranks and lost its fraction",
        weight,
    )


def _of_extreme(aligned: Aligned) -> _Finding | None:
    if _extreme(aligned) is None or not pattern.picks_one_rank(aligned):
        return None
    return _Finding(
        Kind.RANK_LOCAL,
        0.9,
        "never beyond the value of one rank, and equal to it about once in W steps: one rank's "
        "part of an extreme over all",
    )


def _factor(aligned: Aligned, factors: scaling.Scaling | None, context: Context) -> _Finding | None:
    if factors is None:
        return None
    whole = aligned.whole
    found = scaling.classify(
        factors,
        whole=whole,
        norm="norm" in aligned.key.lower(),
        min_exact_steps=context.min_exact_steps,
    )
    if found is None:
        return None
    kind, sure = found
    if kind is Kind.CONSTANT_FACTOR and factors.exact and not whole:
        weight = pattern.floored_constant(factors.logs, aligned.sizes)
        if weight is not None:
            return _floored(f"such as {weight}", None)
    where = "at all steps" if factors.exact else "at the median step"
    told = ", ".join(
        f"{factor:.4g} times at {size} ranks"
        for size, factor in factors.factors(aligned.sizes).items()
        if size != aligned.sizes[0]
    )
    law = {
        Kind.GROWS_WITH_RANKS: "as W",
        Kind.SHRINKS_WITH_RANKS: "as 1/W",
        Kind.GROWS_WITH_SQRT: "as the square root of W",
        Kind.SHRINKS_WITH_SQRT: "as one over the square root of W",
        Kind.CONSTANT_FACTOR: "a factor that does not follow W",
    }[kind]
    if not told:
        told = f"{float(np.exp(factors.logs[-1])):.4g} times in the later run"
    power = "" if factors.exponent is None else f" (exponent {factors.exponent:.2f})"
    return _Finding(kind, sure, f"{told}, {where}: {law}{power}")


def _in_time(aligned: Aligned, context: Context) -> _Finding | None:
    """Faults and drift that show in the steps at which the runs differ."""
    if aligned.count < 2:
        return None
    uneven = pattern.uneven_steps(aligned, context.counts)
    if uneven is not None:
        name, sure = uneven
        return _Finding(
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
            return _of_scatter(aligned, context)  # ratios of small counts are equal by chance
        return _Finding(
            Kind.WEIGHTING,
            0.9 if when.returns or when.regular else 0.8,
            "the runs agree at some steps and differ at others, from the start to the end: as with "
            "steps whose parts are uneven",
            _likely_weight(context),
        )
    return _of_rounding(aligned, when) or _drift(aligned, when, context, flips=flips)


def _extreme(aligned: Aligned) -> str | None:
    """The reduction maximum or minimum, if a key is declared or named so."""
    declared = aligned.declared
    if declared is not None and declared.reduction in {"maximum", "minimum"}:
        return declared.reduction
    return extreme(aligned.key)


def _of_rounding(aligned: Aligned, when: pattern.Onset) -> _Finding | None:
    """Differences that are no larger than rounding in a training's own numbers."""
    if aligned.count < scaling.MIN_STEPS or float(aligned.relative().max()) > pattern.ROUNDING:
        return None
    if when.growth >= 3:
        return _Finding(
            Kind.DRIFT, 0.9, "differences of the size of float32 rounding that grow with the steps"
        )
    return _Finding(Kind.NOISE, 0.9, "differences of the size of float32 rounding")


def _drift(
    aligned: Aligned, when: pattern.Onset, context: Context, *, flips: bool
) -> _Finding | None:
    if when.equal == 0:
        return _coarse_drift(aligned, when)
    if flips and (when.returns or when.rare):
        # A count or a ratio of counts: equal until a sample near the boundary flips.
        if when.equal < _FEW_AGREED or not (context.drifting or when.growth > 1.0):
            return None
        return _Finding(
            Kind.DRIFT,
            0.85,
            f"equal for the first {when.equal} steps, then single samples count differently while "
            "the training drifts",
        )
    if when.discrete and when.equal < _BY_CHANCE and when.growth < 3:
        return None  # ratios of small counts can be equal at first by chance
    steps = "step" if when.equal == 1 else "steps"
    # A large difference at the last step alone may be that of a small last batch.
    begun = when.equal < aligned.count - 1 or float(aligned.relative()[-1]) <= _COARSE
    enough = aligned.count >= 4 and begun
    if not enough or when.returns:
        return None
    sure = 0.97 if when.equal >= 3 or when.growth >= 10 else 0.85
    return _Finding(
        Kind.DRIFT, sure, f"equal for the first {when.equal} {steps} up to rounding, then apart"
    )


def _coarse_drift(aligned: Aligned, when: pattern.Onset) -> _Finding | None:
    """Drift in trainings of low precision, in which not even the first step is equal."""
    first = float(np.median(aligned.relative()[: max(1, aligned.count // 20)]))
    if when.returns or when.discrete or first > _COARSE or when.overall < 30 * first:
        return None
    return _Finding(
        Kind.DRIFT, 0.85, "almost equal at first, as in low precision, and then more and more apart"
    )


def _of_scatter(aligned: Aligned, context: Context) -> _Finding | None:
    """Faults and noise that show in how the differences scatter."""
    found = scatter.measure(aligned)
    if found is None:
        return None
    side = pattern.bias(aligned)
    if side.z > _BIASED and side.one_sided >= 0.9 and side.grows:
        named = _extreme(aligned)
        where = "above" if side.above else "below"
        local = f": a mean of the ranks' {named}" if named else ""
        return _Finding(
            Kind.WEIGHTING, 0.95, f"always {where} the value at {aligned.sizes[0]} ranks{local}"
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
        return _Finding(
            kind,
            1.0 - noise,
            f"different from the first step, without a trend; the scatter {grows} and is {size}",
        )
    if side.z > _BIASED and side.grows:
        return _Finding(Kind.WEIGHTING, 0.85, "a little off to one side, the more the more ranks")
    return _Finding(
        Kind.NOISE, found.noise, "scatter to both sides that does not grow with the ranks"
    )


def _differs_while_others_agree(aligned: Aligned, context: Context) -> bool:
    """Whether a key differs at steps at which the trainings themselves are equal."""
    if context.agreed is None:
        return False
    early = aligned.relative()[aligned.steps <= context.agreed]
    return len(early) >= _FEW_AGREED and float(np.median(early)) > pattern.ROUNDING


def _undecided(aligned: Aligned, factors: scaling.Scaling | None) -> _Finding:
    if float(aligned.relative().max()) <= _ROUNDING:
        return _Finding(
            Kind.UNDECIDED,
            0.5,
            "the runs differ by no more than rounding; reduce exactly, or accept it with rtol",
        )
    few = aligned.count < scatter.MIN_STEPS
    hint = f"only {aligned.count} step{'s' * (aligned.count != 1)}" if few else "no clear pattern"
    if factors is not None and factors.significant and factors.coherent:
        told = ", ".join(
            f"{factor:.4g} times at {size}"
            for size, factor in factors.factors(aligned.sizes).items()
            if size != aligned.sizes[0]
        )
        hint += f"; {told} ranks" if told else ""
    return _Finding(Kind.UNDECIDED, 0.5, f"the runs differ beyond the tolerance, with {hint}")


def _likely_weight(context: Context) -> str | None:
    return next((name for name in context.counts if looks_like_count(name)), None)


def _verdict(aligned: Aligned, found: _Finding, factors: scaling.Scaling | None) -> Verdict:
    difference = float(aligned.relative().max()) if aligned.count else None
    exponent = None if factors is None else factors.exponent
    if found.kind in {Kind.IDENTICAL, Kind.CLOSE} and len(set(aligned.sizes)) > 1:
        exponent = 0.0
    declared = aligned.declared
    weight = found.weight or (declared.weight if declared else None)
    return Verdict(
        aligned.key,
        found.kind,
        exponent,
        difference,
        aligned.count,
        found.confidence,
        remedy(found.kind, aligned.key, declared, weight, whole=aligned.whole),
        found.reason,
        factors.factors(aligned.sizes) if factors is not None else {},
        aligned.notes,
    )
