"""When the runs differ: from the start, later, on steps with uneven parts only, or now and then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.audit.aligned import Aligned, Bools, Floats
from distmetrics.audit.statistics import alternations, autocorrelation_discount, gap_split

ROUNDING = 1e-5
"""Relative differences up to this can come from float32 rounding in the training."""

_APART = 5.0  # how much larger differences on uneven steps, or between two groups, have to be
_FEW = 3
_LATER = 0.8
_DISTINCT = 0.8
_SMOOTH = 0.1
_TOLERANCE = 2e-5
_BY_FAR, _BY_VERY_FAR = 30.0, 300.0
_FLOAT32 = 2e-7
_MOSTLY = 0.6
_SOME = 40
_LARGEST_WHOLE = 1025.0
_OFF = 1e-3
_LEAST_SHARE, _MOST_WEIGHT = 8, 4096


@dataclass(frozen=True)
class Padding:
    """Counts that show padded or dropped samples.

    Attributes:
        padded: True: rounded up to a multiple of W; False: rounded down.
        confidence: how unlikely it is that other counts look like it.
    """

    padded: bool
    confidence: float


def padding(aligned: Aligned) -> Padding | None:
    """Whether counts look like one number of samples, rounded to a multiple of the ranks.

    A sampler that gives every rank equally many samples makes ceil(N/W)·W of N, or floor(N/W)·W:
    all runs' counts are multiples of their W, and some N is compatible with all of them.
    """
    sizes = np.array(aligned.sizes, np.float64)[:, None]
    if not aligned.whole or len(set(aligned.sizes)) < 2 or not aligned.spread.any():
        return None
    counts = np.rint(aligned.values)
    if np.any(counts <= 0) or np.any(np.mod(counts, sizes) != 0):
        return None
    for padded in (True, False):
        least = (counts - sizes + 1 if padded else counts).max(axis=0)
        most = (counts if padded else counts + sizes - 1).min(axis=0)
        if np.all(least <= most):
            different = len(np.unique(counts[0]))
            bits = sum(1.0 - 1.0 / size for size in set(aligned.sizes)) * different
            small = float(np.max(aligned.relative())) <= 0.25
            chance = 0.5 ** (2 * bits + (2 if small else 0))
            return Padding(padded, min(1.0 - chance, 0.999))
    return None


def floored_weight(aligned: Aligned, weights: Mapping[str, Floats]) -> str | None:
    """The count by which values look divided after its mean over ranks lost its fraction.

    With total weight N the value then is (N/W) / floor(N/W) times too large. The reference has
    to be a run of one rank. `weights` maps names of counts to their values, shape (n,).
    """
    if aligned.sizes[0] != 1 or len(set(aligned.sizes)) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = aligned.values / aligned.values[0]
    for name, weight in weights.items():
        expected = np.ones_like(ratios)
        for row, size in enumerate(aligned.sizes):
            share = weight / size
            expected[row] = share / np.maximum(np.floor(share), 1.0)
        differs = np.any(np.abs(expected - 1) > 100 * _TOLERANCE, axis=0)
        usable = np.isfinite(ratios).all(axis=0) & (weight >= max(aligned.sizes))
        for begin in _beginnings(aligned.count):
            telling = differs[:begin] & usable[:begin]
            others = ~differs[:begin] & usable[:begin]
            if int(telling.sum()) < 2:
                continue
            off = np.abs(ratios[:, :begin] / expected[:, :begin] - 1)
            if _small(off[:, telling]) and _small(off[:, others]):
                return name
    return None


def floored_constant(logs: Floats, sizes: tuple[int, ...]) -> int | None:
    """The weight N, the same at all steps, for which values are (N/W) / floor(N/W) times too large.

    Args:
        logs: shape (R-1,): the logs of the exact factors between the runs and the first.
        sizes: shape (R,): the world sizes.
    """
    if len(set(sizes)) < 2:
        return None
    ranks = np.array(sizes, np.float64)[:, None]
    totals = np.arange(_LEAST_SHARE * max(sizes), _MOST_WEIGHT, dtype=np.float64)
    expected = np.log(totals / ranks) - np.log(np.floor(totals / ranks))
    off = np.abs(expected[1:] - expected[0] - logs[:, None]).max(axis=0)
    good = np.flatnonzero(off <= _TOLERANCE)
    return int(totals[good[0]]) if len(good) else None


def _small(off: Floats) -> bool:
    return off.size == 0 or bool(np.quantile(off, 0.9) <= _TOLERANCE)


def _beginnings(count: int) -> tuple[int, ...]:
    """All steps, and their first half and quarter, before the trainings drift apart."""
    return (count, count // 2, count // 4)


def uneven_steps(aligned: Aligned, weights: Mapping[str, Floats]) -> tuple[str, float] | None:
    """The count whose uneven steps are those where runs differ, and how sure that is.

    A step is uneven where the count is no multiple of some world size; or, where all or none are,
    where it is not the usual count (the small last batch).
    """
    differences = [(size, aligned.relative(row)) for row, size in enumerate(aligned.sizes)]
    best: tuple[str, float] | None = None
    for name, weight in weights.items():
        for size, difference in differences:
            uneven = np.mod(weight, np.lcm(size, aligned.sizes[0])) != 0
            if uneven.all() or not uneven.any():
                uneven = weight != _usual(weight)
            for begin in _beginnings(aligned.count):
                sure = _told_apart(difference[:begin], uneven[:begin])
                if sure is not None and (best is None or sure > best[1]):
                    best = name, sure
    return best


def _usual(weight: Floats) -> float:
    found, counts = np.unique(weight, return_counts=True)
    return float(found[np.argmax(counts)])


def _told_apart(difference: Floats, uneven: Bools) -> float | None:
    off, even = difference[uneven], difference[~uneven]
    if len(off) < 2 or len(even) < 2 or len(off) + len(even) < 6:
        return None
    if np.median(off) <= _APART * np.quantile(even, 0.9) or np.median(off) <= ROUNDING:
        return None
    larger = float(np.mean(off[:, None] > even[None, :])) if len(off) * len(even) < 10**6 else 1.0
    if larger < 0.9:
        return None
    return min(1.0 - 0.5 ** min(len(off), len(even)), larger, 0.999)


@dataclass(frozen=True)
class Onset:
    """How differences lie in time.

    Attributes:
        equal: the number of leading steps that are equal up to rounding.
        growth: median difference of the last third over that of the first.
        overall: median difference of the last third.
        returns: some run falls back to (almost) equal to the reference again and again.
        isolated: some run differs at few steps, and is equal again right after them.
        regular: the steps that differ lie at one distance, as the last batch of each epoch does.
        lattice: differences are multiples of one quantum, as with counts, and ratios of counts.
        discrete: some run repeats its values often, as ratios of small counts do.
        rare: most steps are equal.
    """

    equal: int
    growth: float
    overall: float
    returns: bool
    isolated: bool
    regular: bool
    lattice: bool
    discrete: bool
    rare: bool


def onset(aligned: Aligned, rtol: float) -> Onset:
    """How the differences between the runs lie in time."""
    difference = aligned.relative()
    third = max(len(difference) // 3, 1)
    early = float(np.median(difference[:third]))
    late = float(np.median(difference[-third:]))
    rounding = _rounding(late, rtol)
    same = difference <= rounding
    equal = int(np.argmin(same)) if not same.all() else len(same)
    growth = late / early if early > 0 else (np.inf if late > 0 else 1.0)
    if 0 < equal < _FEW and growth < 3 and difference[:equal].max() > late / _BY_VERY_FAR:
        equal = 0  # a small difference among larger ones
    rows = [aligned.relative(row) for row in range(1, len(aligned.sizes))]
    limit = max(ROUNDING, rtol)
    returns = any(
        _returns(row[:begin], limit) for row in rows for begin in _beginnings(aligned.count)
    )
    distinct = min(len(np.unique(row)) for row in aligned.values) / aligned.count
    return Onset(
        equal,
        growth,
        late,
        returns,
        any(_isolated(row, limit) for row in rows),
        _regular(aligned.steps, difference > limit),
        _is_lattice(aligned),
        distinct < _DISTINCT or _is_ratio(aligned.values),
        rare=float(np.mean(difference <= limit)) >= 0.5,
    )


def _rounding(late: float, rtol: float) -> float:
    """What counts as equal in runs that end apart by `late`: so little that it is no chance."""
    small = ROUNDING if late == 0 else min(ROUNDING, max(late / _BY_FAR, _FLOAT32))
    return max(small, rtol)


def _returns(difference: Floats, rounding: float) -> bool:
    """Whether a run is (almost) equal to the reference now and then, between steps when it is not.

    Being equal at first is no return to being equal, and steps apart that come mostly after the
    equal ones are a drift.
    """
    same = difference <= rounding
    if same.all():
        return False
    later = difference[int(np.argmin(same)) :]
    least = max(2, min(max(_FEW, len(later) // 20), len(later) // 10))
    split = gap_split(later, _APART, least)
    if split is None:
        return False
    apart = later > split
    before = np.cumsum(~apart)[apart]  # how many equal steps precede each that is apart
    mostly_later = float(before.mean()) > _LATER * float(np.sum(~apart))
    return alternations(apart) >= 4 and not mostly_later


def _isolated(difference: Floats, rounding: float) -> bool:
    """Whether a run differs clearly at few steps and is equal to the reference after each.

    A training that has drifted apart does not come back to equal values.
    """
    same = difference <= rounding
    if same.all() or not same.any():
        return False
    later = same[int(np.argmin(same)) :]
    if later.sum() < 2 or later.mean() < 0.5:
        return False
    before = np.cumsum(later)[~later]
    if float(before.mean()) > _LATER * float(later.sum()):
        return False
    return bool(np.median(difference[~same]) >= 200 * float(difference[same].max()))


def _regular(steps: NDArray[Any], apart: Bools) -> bool:
    """Whether the marked steps are every p-th one, p >= 3, most of them.

    Two of them have to be the p-th and the 2p-th, or the first and the p-th after it.
    """
    if len(steps) < 3 or not 2 <= apart.sum() <= len(steps) / 2:
        return False
    unit = float(np.median(np.diff(steps))) or 1.0
    places = np.rint((steps - steps[0]) / unit).astype(np.int64)
    at = places[apart]
    period = int(np.gcd.reduce(np.diff(at)))
    if period < 3 or (len(at) == 2 and at[0] % period not in {0, period - 1}):
        return False
    sites = int(np.sum(places % period == at[0] % period))
    return len(at) >= _MOSTLY * sites


def _is_ratio(values: Floats) -> bool:
    """Whether all values are fractions of one whole number, as of a fixed number of samples."""
    some = np.unique(np.abs(values[:, :_SOME]))
    some = some[some > 0]
    if not len(some) or some[-1] > 1:
        return False
    scaled = some * np.arange(2.0, _LARGEST_WHOLE)[:, None]
    off = np.abs(scaled - np.maximum(np.rint(scaled), 1.0)).max(axis=1)
    return bool(off.min() <= _OFF)


def _is_lattice(aligned: Aligned) -> bool:
    """Whether values and their differences are multiples of one quantum, far above rounding."""
    spread = aligned.spread[aligned.spread > 0]
    if aligned.whole or not len(spread):
        return aligned.whole
    quantum = float(spread.min())
    if quantum < 1e-5 * aligned.scale:
        return False
    off = np.abs(spread / quantum - np.rint(spread / quantum))
    values = np.abs(aligned.values) / quantum
    off_values = np.abs(values - np.rint(values))
    return bool(off.max() <= 1e-3 * max(1.0, spread.max() / quantum) and off_values.max() <= 0.01)


@dataclass(frozen=True)
class Bias:
    """Whether later runs lie on one side of the reference.

    Attributes:
        z: the largest mean difference in standard errors.
        one_sided: the part of the steps, where runs differ, on the same side.
        above: that side is above the reference.
        grows: the mean difference grows with the world size.
        smooth: differences hardly change from one step to the next, as no scatter would.
    """

    z: float
    one_sided: float
    above: bool
    grows: bool
    smooth: bool


def bias(aligned: Aligned) -> Bias:
    """The differences of all runs to the reference, as a matter of sign."""
    offsets = aligned.values[1:] - aligned.values[0]
    scale = np.maximum(np.abs(aligned.values).max(axis=0), 0.1 * aligned.scale)
    relative = np.divide(offsets, scale, out=np.zeros_like(offsets), where=scale > 0)
    scores = np.maximum(_scores(offsets), _scores(relative))
    strongest = int(np.argmax(scores))
    means = np.abs(relative.mean(axis=1))
    above = bool(relative[strongest].mean() > 0)
    differing = relative[:, np.any(relative != 0, axis=0)]
    sides = np.sign(differing) if above else -np.sign(differing)
    together = float(np.mean(np.all(sides >= 0, axis=0))) if differing.size else 0.0
    wobble = np.sqrt(np.mean(np.diff(relative, n=2, axis=1) ** 2, axis=1) / 6)
    smooth = bool(np.all(wobble <= _SMOOTH * np.sqrt(np.mean(relative**2, axis=1)) + 1e-12))
    return Bias(
        float(scores[strongest]),
        together,
        above,
        bool(np.all(np.diff(means) >= 0)),
        smooth,
    )


def _scores(rows: Floats) -> Floats:
    """The mean of each row in standard errors."""
    counts = np.array([len(row) * autocorrelation_discount(row) for row in rows])
    errors = rows.std(axis=1) / np.sqrt(np.maximum(counts, 1.0))
    means = np.abs(rows.mean(axis=1))
    scores: Floats = means / np.maximum(errors, 1e-9 * means + 1e-300)
    return scores


def picks_one_rank(aligned: Aligned) -> bool:
    """Whether values look like one rank's part of an extreme over all ranks.

    They lie on one side of the reference, and equal it on about one step in W: when the extreme
    is that rank's.
    """
    if aligned.sizes[0] != 1 or aligned.count < 12:
        return False
    offsets = aligned.values[1:] - aligned.values[0]
    if not (np.all(offsets <= 0) or np.all(offsets >= 0)):
        return False
    if alternations(np.all(offsets == 0, axis=0)) < 4:
        return False
    for row, size in zip(offsets, aligned.sizes[1:], strict=True):
        expected = 1.0 / size
        error = np.sqrt(expected * (1 - expected) / aligned.count)
        if size > 1 and abs(float(np.mean(row == 0)) - expected) > 3 * error + 0.05:
            return False
    return True
