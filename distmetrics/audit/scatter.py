"""Whether the scatter between runs grows with the number of ranks, and how large it is.

What is left of the runs' values without their trend is taken as a vector over the runs, one for
each step, with covariance ``a J + b K``: J is all ones, what the runs share (the same
batches), and K is what they do not. Each explanation of the scatter is a shape of K:

* noise: K = I, alike in all runs; or 1/W, where the global batch grows with the ranks; or alike in
  all runs but the reference, where one rank alone is deterministic;
* growing scatter: K = W - 1, independent or nested. For rank 0's mean over its part of a batch,
  ``x_W = m + e``, it follows exactly with b = a: the global mean m of B samples has variance
  s²/B, the part's mean W s²/B. For an unweighted mean of means over uneven parts it has the same
  or a similar shape (also 1 - 1/W, or W² - 1) with b much smaller than a, since parts differ in
  size by a fraction only.

The likelihoods are those of a multivariate t distribution, which bears spikes and changing scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import legvander

from distmetrics.audit.aligned import Aligned, Floats
from distmetrics.audit.statistics import autocorrelation_discount

MIN_STEPS = 12
_RANK_LOCAL_SHARE = 0.3
_LINEAR_SHARE, _SATURATING_SHARE = 0.06, 0.8

_DEGREES = 5.0
_WHITE = 0.3
_FLAT = 1.2  # less scatter than this, relative to that between runs: none that runs share
_OVERLAP = 0.4  # second differences of neighbouring steps share values
_SHARES = 10.0 ** np.linspace(-8, 6, 15)
_FINER = 10.0 ** np.array([-0.6, -0.3, 0.3, 0.6])
_FINEST = 10.0 ** np.array([-0.15, -0.075, 0.075, 0.15])
_MOST = 1000
_TOO_SMALL = 0.05
_CLEARLY = 10.0
_SMOOTH = 1e-3


@dataclass(frozen=True)
class Scatter:
    """What the scatter between runs looks like.

    Attributes:
        noise: the probability that it does not grow with the ranks, of the two.
        share: its size relative to what one rank's own value would have (1); very large where the
            runs share no scatter at all.
        rank_local: the size and the growth are those of one rank's own value, rather than those
            of a mean over parts of unequal size.
    """

    noise: float
    share: float
    rank_local: bool


def measure(aligned: Aligned) -> Scatter | None:
    """The likelier explanation of the scatter; None with too few steps or nothing to explain."""
    if aligned.count < MIN_STEPS or len(set(aligned.sizes)) < 2:
        return None
    rough, temper = _roughness(_comparable(aligned.values))
    rough = _with_shared_scatter(rough)
    floor = float(np.max(np.abs(rough))) * 1e-12
    if not np.any(np.abs(rough - rough[0]) > floor):
        return None
    ranks = np.array(aligned.sizes, np.float64)
    scores: dict[str, tuple[float, float]] = {}
    for name, (prior, kernel) in _kernels(ranks).items():
        likelihood, share = _best(rough, kernel)
        scores[name] = (float(np.log(prior)) + temper * likelihood, share)
    top = max(score for score, _ in scores.values())
    weights = {name: float(np.exp(score - top)) for name, (score, _) in scores.items()}
    noise = sum(weight for name, weight in weights.items() if name.startswith("noise"))
    growing = {name: weight for name, weight in weights.items() if not name.startswith("noise")}
    name = max(growing, key=lambda one: growing[one])
    probability = noise / (noise + sum(growing.values()))
    if len(set(aligned.sizes)) < 3 and scores["noise"][1] < _TOO_SMALL:
        # Of two runs only the scatter that they share tells which has more; a little beside much
        # of it does not show.
        probability = min(max(probability, 0.3), 0.7)
    share = _share(name, scores[name][1], ranks)
    return Scatter(probability, share, share >= _least_share(growing))


def _least_share(growing: Mapping[str, float]) -> float:
    """The share from which on scatter is taken for rank-local, by how it grows.

    Scatter ~ W - 1 is that of one rank's own value, or of unequal parts that differ little; parts
    of any size that are averaged alike have a scatter that saturates.
    """
    saturating = growing["saturating"]
    linear = max(growing["nested"], growing["independent"])
    if saturating > _CLEARLY * linear:
        return _SATURATING_SHARE
    return _LINEAR_SHARE if linear > _CLEARLY * saturating else _RANK_LOCAL_SHARE


def _kernels(ranks: Floats) -> dict[str, tuple[float, Floats]]:
    """Name to prior probability and shape of the scatter that the runs do not share."""
    nested = np.minimum(ranks[:, None], ranks[None, :]) - 1.0
    return {
        "noise": (0.42, np.eye(len(ranks))),
        "noise, larger batch": (0.05, np.diag(ranks[0] / ranks)),
        "noise, exact reference": (0.08, np.diag((ranks > ranks[0]).astype(float))),
        "nested": (0.15, nested + 1e-9 * np.diag(ranks)),
        "independent": (0.12, np.diag(ranks - 1.0)),
        "saturating": (0.08 if ranks[0] == 1 else 0.02, np.diag(1.0 - 1.0 / ranks)),
        "quadratic": (0.05, np.diag(ranks**2 - 1.0)),
        "other data": (0.05, np.diag(ranks)),
    }


def _share(name: str, share: float, ranks: Floats) -> float:
    """The fitted scatter relative to that of rank 0's own mean, averaged over the runs."""
    above = ranks[ranks > 1]
    relative = {
        "saturating": 1.0 / above,
        "quadratic": above + 1.0,
        "other data": above / (above - 1.0),
    }.get(name, np.ones_like(above))
    return float(np.exp(np.mean(np.log(share * relative))))


def _comparable(values: Floats) -> Floats:
    """Logs where all values are positive, so that scatter in proportion to them is even."""
    if np.all(values > 0):
        return np.log(values)
    scale = float(np.median(np.abs(values)))
    return values / scale if scale > 0 else values


def _roughness(values: Floats) -> tuple[Floats, float]:
    """Shape (R, m): the values without their trend, and the part of them that is independent.

    The trend is a polynomial of low degree. Where it leaves a trend in (a schedule, a long run),
    second differences are taken, scaled to keep the variance of white noise; they say less.
    """
    steps = values.shape[1]
    degree = int(min(5, steps // 8))
    basis = _polynomials(steps, degree)
    rough: Floats = values - (values @ basis) @ basis.T
    apart = rough[1:] - rough[0]
    rows = [*apart, *rough] if rough.std() > _FLAT * apart.std() else [*apart]
    temper = min(autocorrelation_discount(row) for row in rows)
    if temper < (1 - _WHITE) / (1 + _WHITE):
        rough = (values[:, 2:] - 2 * values[:, 1:-1] + values[:, :-2]) / np.sqrt(6.0)
        temper = _OVERLAP
    stride = max(1, -(-rough.shape[1] // _MOST))
    return rough[:, ::stride], temper


@lru_cache(maxsize=8)
def _polynomials(steps: int, degree: int) -> Floats:
    """Shape (steps, degree + 1): orthonormal polynomials."""
    return np.linalg.qr(legvander(np.linspace(-1.0, 1.0, steps), degree))[0]


def _with_shared_scatter(rough: Floats) -> Floats:
    """The same with a little scatter added to all runs, where the reference has none.

    Differences between the runs stay what they are. Without it the ratio of the two has no limit,
    and the likelihoods depend on nothing but where the search for it ends.
    """
    least = _SMOOTH * float((rough[1:] - rough[0]).std())
    if rough[0].std() >= least:
        return rough
    return rough + least * np.random.default_rng(0).standard_normal(rough.shape[1])


def _best(rough: Floats, kernel: Floats) -> tuple[float, float]:
    """The highest log likelihood over b/a, and that b/a.

    In the coordinates "reference, and differences to it" a J has one entry only, so that a b that
    is smaller by many orders of magnitude is not lost beside it; differences are scaled up.
    """
    runs = len(rough)
    apart = rough[1:] - rough[0]
    scale = max(1.0, float(rough[0].std()) / max(float(apart.std()), 1e-300))
    change = np.zeros((runs, runs))
    change[:, 0], change[0, 0] = -scale, 1.0
    change[1:, 1:] = scale * np.eye(runs - 1)
    shared = np.zeros((runs, runs))
    shared[0, 0] = 1.0
    own = change @ kernel @ change.T / scale**2
    seen = np.vstack([rough[:1], scale * apart])
    best, share = -np.inf, 1.0
    for factors in (_SHARES, _FINER, _FINEST):
        shares = (share * factors)[:, None, None]
        ridges = 1e-12 * (1 + shares) * np.eye(runs)
        likelihoods = _likelihoods(seen, shared + shares * own + ridges)
        place = int(np.argmax(likelihoods))
        if likelihoods[place] > best:
            best, share = float(likelihoods[place]), float(shares[place, 0, 0])
    return best, share / scale**2


def _likelihoods(rough: Floats, shapes: Floats) -> Floats:
    """Shape (S,): the log likelihood of a multivariate t of each shape, at its best scale.

    Scales are found by expectation maximisation; a shape that is not positive definite gets -inf.

    Args:
        rough: shape (R, n).
        shapes: shape (S, R, R).
    """
    runs, count = rough.shape
    found = np.full(len(shapes), -np.inf)
    good = np.linalg.eigvalsh(shapes).min(axis=1) > 0
    if not good.any():
        return found
    factors = np.linalg.cholesky(shapes[good])
    white = np.linalg.solve(factors, np.broadcast_to(rough, (len(factors), runs, count)))
    distance = np.einsum("sij,sij->sj", white, white)
    scale = np.maximum(distance.mean(axis=1) / runs, 1e-300)
    for _ in range(8):
        weight = (_DEGREES + runs) / (_DEGREES + distance / scale[:, None])
        scale = np.maximum((weight * distance).mean(axis=1) / runs, 1e-300)
    half_log_det = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
    tails = np.log1p(distance / (_DEGREES * scale[:, None])).sum(axis=1)
    found[good] = -count * (half_log_det + 0.5 * runs * np.log(scale)) - (
        0.5 * (_DEGREES + runs) * tails
    )
    return found
