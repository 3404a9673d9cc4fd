"""Whether one run's values are a fixed multiple of another's, and how the factor follows W."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from distmetrics.audit.aligned import Aligned, Floats
from distmetrics.audit.statistics import autocorrelation_discount, normal_cdf, robust_deviation
from distmetrics.audit.verdict import Kind

EXACT = 2e-5
"""Ratios that scatter by less are one factor, up to the rounding of float32 computations."""
MIN_EXACT_STEPS = 3
MIN_STEPS = 6

_SIGNIFICANT = 5.0
_ALMOST_ALL = 0.95
_NEAR_LINEAR, _NEAR_SQRT, _NEAR_NORM = 0.15, 0.2, 0.3
_NEAREST_SQRT = 0.03
_STEADY, _ENOUGH, _LARGE = 0.15, 20, 0.2
_EXACT_NEAR = 0.02
_CONSISTENT_LINEAR, _CONSISTENT_SQRT = 0.08, 0.2
_NICE = 0.04
_MOST = 0.9999

_POWERS = (
    (1.0, Kind.GROWS_WITH_RANKS),
    (-1.0, Kind.SHRINKS_WITH_RANKS),
    (0.5, Kind.GROWS_WITH_SQRT),
    (-0.5, Kind.SHRINKS_WITH_SQRT),
)


@dataclass(frozen=True)
class Scaling:
    """The factors between runs and the power of W that fits them best.

    Attributes:
        logs: shape (R-1,): median log of the ratio of each run to the reference.
        errors: shape (R-1,): standard errors of `logs`.
        deviations: shape (R-1,): robust standard deviation of the log ratio over the steps.
        ranks: shape (R-1,): log of the ratio of the world sizes.
        steps: the number of steps where no run's value is 0.
        exact: each factor is the same at (almost) all steps, up to rounding.
        coherent: values have the same sign in all runs, and are 0 together, at almost all steps.
        lasting: the factors are there from the first steps on.
    """

    logs: Floats
    errors: Floats
    deviations: Floats
    ranks: Floats
    steps: int
    exact: bool
    coherent: bool
    lasting: bool

    @property
    def exponent(self) -> float | None:
        """P of value ~ W^p, a least-squares line through the reference; None for one W alone."""
        norm = float(self.ranks @ self.ranks)
        return float(self.ranks @ self.logs) / norm if norm > 0 else None

    @property
    def exponent_error(self) -> float:
        """The standard error of `exponent`."""
        norm = float(self.ranks @ self.ranks)
        error = float(np.sqrt((self.ranks**2) @ (self.errors**2)))
        return error / norm if norm > 0 else float("inf")

    @property
    def significant(self) -> bool:
        """Whether some factor differs from 1 by more than its error allows."""
        return bool(np.any(np.abs(self.logs) > np.maximum(_SIGNIFICANT * self.errors, 2 * EXACT)))

    def factors(self, sizes: tuple[int, ...]) -> dict[int, float]:
        """World size to the median ratio to the reference; of runs of one size the last."""
        pairs = zip(sizes[1:], np.exp(self.logs).tolist(), strict=True)
        return {sizes[0]: 1.0} | dict(pairs)


def fit(aligned: Aligned) -> Scaling | None:
    """The factors between the runs of a key; None where no step has values other than 0.

    Where the first steps show one exact factor, it is taken from them: later on the trainings
    themselves may drift apart.
    """
    values = aligned.values
    nonzero = np.all(values != 0, axis=0)
    steps = int(nonzero.sum())
    if steps == 0:
        return None
    mixed = float(np.mean(np.any(values != 0, axis=0) & ~nonzero))
    kept = values[:, nonzero]
    same_sign = float(np.mean(np.all(np.sign(kept) == np.sign(kept[0]), axis=0)))
    logs = np.log(np.abs(kept[1:])) - np.log(np.abs(kept[0]))
    middle = np.median(logs, axis=1)
    first = max(3, steps // 8)
    early = np.median(logs[:, :first], axis=1)
    deviations = robust_deviation(logs)
    discount = np.array([autocorrelation_discount(row) for row in logs])
    errors = 1.2533 * deviations / np.sqrt(np.maximum(steps * discount, 1.0))
    allowed = np.maximum(0.3 * np.abs(middle), 5.0 * deviations / np.sqrt(first)) + EXACT
    exact = _is_exact(logs, middle, aligned.single)
    if not exact and steps > first and _is_exact(logs[:, :first], early, aligned.single):
        middle, errors, deviations = early, np.full_like(errors, EXACT), np.full_like(errors, EXACT)
        exact = bool(np.all(np.abs(middle - np.median(logs, axis=1)) <= allowed))
    return Scaling(
        middle,
        errors,
        deviations,
        np.log(np.array(aligned.sizes[1:]) / aligned.sizes[0]),
        steps,
        exact=exact,
        coherent=same_sign >= _ALMOST_ALL and mixed <= 1 - _ALMOST_ALL,
        lasting=bool(np.all(np.abs(early - middle) <= allowed)),
    )


def _is_exact(logs: Floats, middle: Floats, single: bool) -> bool:
    limit = EXACT * (2 if single else 1)
    return bool(np.quantile(np.abs(logs - middle[:, None]), 0.9, axis=1).max() <= limit)


def classify(
    scaling: Scaling, *, whole: bool, norm: bool, min_exact_steps: int
) -> tuple[Kind, float] | None:
    """The power of W, or the constant factor, that the factors follow, and how sure that is.

    Args:
        scaling: the fitted factors.
        whole: all values are whole numbers: a count does not follow the root of W.
        norm: the key is named like a norm, whose shards may be of unequal size.
        min_exact_steps: an exact factor needs this many steps.
    """
    enough = scaling.steps >= (min_exact_steps if scaling.exact else MIN_STEPS)
    if not (enough and scaling.coherent and scaling.lasting and scaling.significant):
        return None
    return _power(scaling, whole=whole, norm=norm) or _constant(scaling)


def _power(scaling: Scaling, *, whole: bool, norm: bool) -> tuple[Kind, float] | None:
    exponent, error = scaling.exponent, scaling.exponent_error
    if exponent is None:
        return None
    power, kind = min(_POWERS, key=lambda one: abs(one[0] - exponent))
    if norm and 0.5 - _NEAR_NORM <= abs(exponent) <= 0.5 + _NEAR_NORM:
        power, kind = _POWERS[2] if exponent > 0 else _POWERS[3]
    root = abs(power) == 0.5
    unequal = root and norm
    if root and whole and (scaling.exact or len(set(scaling.ranks.tolist()) - {0.0}) < 2):
        return None
    residual = np.abs(scaling.logs - exponent * scaling.ranks)
    if scaling.exact:
        near, consistent = _EXACT_NEAR, np.full_like(residual, _EXACT_NEAR)
    else:
        near = _NEAR_NORM if unequal else _near_root(scaling) if root else _NEAR_LINEAR
        near += min(2 * error, 0.1)
        limit = 1.5 * near if unequal else _CONSISTENT_SQRT if root else _CONSISTENT_LINEAR
        consistent = limit + np.minimum(3 * scaling.errors, 0.1)
    if abs(power - exponent) > near or np.any(residual > consistent):
        return None
    sure = _significance(scaling)
    boundary = 0.4 if unequal else 0.25
    between = normal_cdf((boundary - abs(power - exponent)) / (error + 0.04))
    return kind, min(sure, _MOST if scaling.exact else between)


def _near_root(scaling: Scaling) -> float:
    """How far from 1/2 a power may be: shards scatter and are unequal, replicas are neither."""
    return min(_NEAR_SQRT, _NEAREST_SQRT + float(scaling.deviations.max()))


def _constant(scaling: Scaling) -> tuple[Kind, float] | None:
    logs, errors = scaling.logs, scaling.errors
    if scaling.exact:
        return Kind.CONSTANT_FACTOR, _significance(scaling)
    steady = scaling.deviations <= 0.5 * np.abs(logs)
    away = np.abs(logs) > np.maximum(_SIGNIFICANT * errors, 0.05)
    if not np.any(away) or not np.all(steady[away]):
        return None
    magnitude = np.abs(logs)
    nearest = np.log(np.maximum(np.rint(np.exp(magnitude)), 1.0))
    nice = np.abs(magnitude - nearest) <= _NICE + np.minimum(3 * errors, 0.1)
    alike = bool(np.ptp(logs) <= max(0.03, 3 * float(errors.max())))
    # Of few steps the reference alone may lie to one side, by noise that lasts.
    alike &= scaling.steps >= _ENOUGH or bool(np.all(magnitude > _LARGE))
    if (np.all(nice) and np.any(nearest > 0)) or (alike and len(logs) > 1):
        return Kind.CONSTANT_FACTOR, min(_significance(scaling), 0.98)
    steadiness = float(np.max(scaling.deviations[away] / magnitude[away]))
    large = bool(np.all(magnitude[away] > 0.4)) and steadiness <= 0.25
    if large or (scaling.steps >= _ENOUGH and steadiness <= _STEADY):
        return Kind.CONSTANT_FACTOR, min(_significance(scaling), 0.85)
    return None


def _significance(scaling: Scaling) -> float:
    """How sure it is that the factors are not 1 by chance."""
    if scaling.exact:
        return min(1.0 - math.exp(-2.3 - 0.77 * scaling.steps), _MOST)
    strongest = np.abs(scaling.logs) / np.maximum(scaling.errors, EXACT)
    return min(normal_cdf(float(strongest.max()) / 2), _MOST)
