"""The judgement: from the values of one key in several runs to a verdict.

The order matters. What can be told exactly comes first (equality, counts rounded to the ranks,
fixed factors), then when the runs differ (on uneven steps, later, now and then), last how their
scatter grows. All thresholds stand beside the evidence they belong to; `docs/audit.md` says how
they were found and how often they err.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from distmetrics.audit import pattern, scaling, scatter
from distmetrics.audit.aligned import FLOAT32_STEP, Aligned, Bools, Floats, thinned
from distmetrics.audit.by_scatter import of_scatter
from distmetrics.audit.by_time import in_time
from distmetrics.audit.finding import SURE, Context, Finding, extreme_of
from distmetrics.audit.remedy import remedy
from distmetrics.audit.verdict import Kind, Verdict

_CLOCK = re.compile(
    r"per_?s(ec(ond)?s?)?$|/s(ec)?$|throughput|seconds?$|_secs?$|(^|[^a-z])(time|times|duration|elapsed|"
    r"latency|fps|eta|wait|mfu|t?flops|wall(clock)?|mem|memory|vram|rss|cpu|gpu_util)([^a-z]|$)|_ms$|_time_|[a-z]time$"
)
_EXACT_FLOAT32 = 2.0**24
_ROUNDING = 1e-9


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


def _split_finding(aligned: Aligned) -> Finding:
    steps = "step" if aligned.split == 1 else "steps"
    return Finding(
        Kind.NONFINITE,
        1.0,
        f"NaN or infinite in some runs but not in others at {aligned.split} {steps}",
    )


def _nothing(aligned: Aligned) -> Finding:
    if aligned.dropped:
        return Finding(Kind.IDENTICAL, 1.0, "NaN or infinite in all runs at all common steps")
    return Finding(
        Kind.UNDECIDED,
        0.0,
        "the runs have no step in common; compare them by samples or tokens with --x KEY",
    )


def _equal(aligned: Aligned, rtol: float) -> Finding:
    if not aligned.spread.any():
        held = " that float32 holds" if aligned.single else ""
        return Finding(Kind.IDENTICAL, 1.0, f"the same bits{held} at every step")
    if aligned.single and float(aligned.relative().max()) <= FLOAT32_STEP:
        return Finding(Kind.CLOSE, 1.0, "equal up to float32, which is all that a file holds")
    return Finding(Kind.CLOSE, 1.0, f"equal within the relative tolerance {rtol:g}")


def _declared(aligned: Aligned, factors: scaling.Scaling | None) -> Finding | None:
    """What is to be said of a key whose scaling class, declared or by its name, is no invariant."""
    declared = aligned.declared
    exact = factors is not None and factors.exact
    if declared is None or (declared.scaling == "invariant" and declared.reduction == "average"):
        if _CLOCK.search(aligned.key.lower()) and not exact:
            return Finding(
                Kind.EXPECTED_SCALING,
                0.9,
                "by its name a time, a rate or a memory size, which follow the machine; declare "
                "its scaling class to have it judged by that",
            )
        return None
    if declared.scaling == "per_rank":
        return Finding(Kind.EXPECTED_SCALING, 0.99, "declared as a value of each rank")
    if declared.scaling != "extensive":
        return None
    exponent = None if factors is None else factors.exponent
    if exact and exponent is not None and exponent < -0.75:
        return Finding(
            Kind.SHRINKS_WITH_RANKS,
            0.95,
            f"declared as growing with the ranks, but falls as W^{exponent:.2f}",
        )
    shown = "" if exponent is None else f"; it goes as W^{exponent:.2f}"
    return Finding(Kind.EXPECTED_SCALING, 0.95, f"declared as growing with the ranks{shown}")


def _find(aligned: Aligned, factors: scaling.Scaling | None, context: Context) -> Finding:
    return (
        _exact_counts(aligned, context)
        or _part_of_extreme(aligned)
        or _factor(aligned, factors, context)
        or in_time(aligned, context)
        or of_scatter(aligned, context)
        or _undecided(aligned, factors)
    )


def _exact_counts(aligned: Aligned, context: Context) -> Finding | None:
    rounded = pattern.padding(aligned)
    if rounded is not None and rounded.confidence >= SURE:
        how = "up: padded samples are counted" if rounded.padded else "down: samples are dropped"
        return Finding(
            Kind.WEIGHTING,
            rounded.confidence,
            f"the counts are those of one rank, rounded to a multiple of the ranks, {how}",
        )
    weight = pattern.floored_weight(aligned, context.counts)
    if weight is None:
        return None
    return _floored(f"= {weight}", weight)


def _floored(which: str, weight: str | None) -> Finding:
    return Finding(
        Kind.WEIGHTING,
        0.99 if weight else 0.85,
        f"too large by (N/W) / floor(N/W) with N {which}: an integer weight was averaged over "
        "the ranks and lost its fraction",
        weight,
    )


def _part_of_extreme(aligned: Aligned) -> Finding | None:
    if extreme_of(aligned) is None or not pattern.picks_one_rank(aligned):
        return None
    return Finding(
        Kind.RANK_LOCAL,
        0.9,
        "never beyond the value of one rank, and equal to it about once in W steps: one rank's "
        "part of an extreme over all",
    )


def _factor(aligned: Aligned, factors: scaling.Scaling | None, context: Context) -> Finding | None:
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
    return Finding(kind, sure, f"{told}, {where}: {law}{power}")


def _undecided(aligned: Aligned, factors: scaling.Scaling | None) -> Finding:
    if float(aligned.relative().max()) <= _ROUNDING:
        return Finding(
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
    return Finding(Kind.UNDECIDED, 0.5, f"the runs differ beyond the tolerance, with {hint}")


def _verdict(aligned: Aligned, found: Finding, factors: scaling.Scaling | None) -> Verdict:
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
