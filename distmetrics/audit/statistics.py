"""Small robust statistics that the judgement stands on."""

from __future__ import annotations

import math

import numpy as np

from distmetrics.audit.aligned import Floats

_MAD_TO_DEVIATION = 1.4826
"""Of a normal distribution: standard deviation over median absolute deviation."""


def normal_cdf(z: float) -> float:
    """The probability that a standard normal variable is below z.

    >>> round(normal_cdf(1.6449), 3)
    0.95
    """
    return 0.5 * math.erfc(-z / math.sqrt(2))


def robust_deviation(rows: Floats) -> Floats:
    """The standard deviation of each row, from the median absolute deviation.

    Outliers (a spike of the loss) hardly move it. Where more than half of a row is one value the
    median is 0; then the ordinary standard deviation is given, so that scatter is not missed.
    """
    middle = np.median(rows, axis=1, keepdims=True)
    found: Floats = _MAD_TO_DEVIATION * np.median(np.abs(rows - middle), axis=1)
    return np.where(found > 0, found, rows.std(axis=1))


def autocorrelation_discount(row: Floats) -> float:
    """What part of the values of a row are as good as independent, from 1/n to 1.

    ``(1 - r) / (1 + r)`` for lag-one correlation r: the effective sample size of a first-order
    autoregression (Priestley, Spectral Analysis and Time Series, 1981, section 5.3).

    >>> autocorrelation_discount(np.array([1.0, -1.0] * 8)), len(str(np.arange(9.0))) > 0
    (1.0, True)
    >>> autocorrelation_discount(np.arange(20.0)) < 0.1
    True
    """
    count = len(row)
    centred = row - row.mean()
    power = float(centred @ centred)
    if count < 4 or power == 0.0:
        return 1.0
    lag = min(max(float(centred[1:] @ centred[:-1]) / power, 0.0), 0.999)
    return max((1 - lag) / (1 + lag), 1.0 / count)


def gap_split(values: Floats, ratio: float, least: int) -> float | None:
    """Where non-negative values fall into two groups, the lower of which is next to nothing.

    Returns the geometric middle of the widest gap (on a log scale) that has at least `least`
    values on either side. None if it is no wider than `ratio`, or the largest value below it is
    more than half a percent of the median above it. Zeros are below everything.
    """
    ordered = np.sort(values)
    if len(ordered) < 2 * least or ordered[-1] <= 0:
        return None
    floor = max(float(ordered[-1]) * 1e-16, 1e-300)
    logs = np.log(np.maximum(ordered, floor))
    gaps = np.diff(logs)[least - 1 : len(logs) - least]
    if not len(gaps):
        return None
    widest = int(np.argmax(gaps))
    place = widest + least - 1
    if gaps[widest] < math.log(ratio) or 200 * ordered[place] > np.median(ordered[place + 1 :]):
        return None
    return float(np.exp((logs[place] + logs[place + 1]) / 2))


def alternations(flags: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
    """How often neighbouring flags differ."""
    return int(np.sum(flags[1:] != flags[:-1]))
