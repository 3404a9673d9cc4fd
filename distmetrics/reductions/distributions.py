"""Reductions that keep how values are distributed: histograms, quantiles."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from distmetrics import exact
from distmetrics.exact.rounding import round_ratio
from distmetrics.reductions.reduction import (
    Array,
    Reduction,
    Terms,
    parameters,
)
from distmetrics.reductions.state import Counter, Number, State

MOST_EDGES = 1 << 20
MOST_QUANTILES = 100


def histogram(edges: Sequence[float]) -> Reduction:
    """How many contributions lie in each bin, below and above.

    Bins are half open, the last one is closed, as those of `numpy.histogram`. The value is
    ``{"edges": [...], "counts": [...]}``, with ``below``, ``above``, ``nan``, ``inf`` and
    ``neginf`` where there are any.

    Args:
        edges: the bins' ends: at least two finite numbers, rising.

    Raises:
        ValueError: they are not.
    """
    ends = _checked_edges(edges)
    array = np.array(ends)
    bins = len(ends) - 1

    def contribute(x: Array, w: Array | None) -> Terms:
        floats = exact.widened(x)
        buckets = np.searchsorted(array, floats, side="right")
        buckets[floats == array[-1]] = bins
        return Terms(tallies=((0, buckets.astype(np.int64)),))

    def block(x: Array) -> Terms | None:
        ordered = exact.widened(np.sort(x))
        if not _are_finite(ordered):
            return None
        ends = np.append(
            np.searchsorted(ordered, array[:-1], side="left"),
            np.searchsorted(ordered, array[-1], side="right"),
        )
        counts = np.diff(ends, prepend=0, append=len(x))
        used = np.flatnonzero(counts)
        return Terms(counted=((0, used, counts[used]),))

    def counted(state: State) -> dict[str, Any]:
        counts = state.tallies[0]
        beside = {"below": counts.get(0, 0), "above": counts.get(bins + 1, 0)}
        inside = [counts.get(1 + i, 0) for i in range(bins)]
        return {"edges": list(ends), "counts": inside} | _used(beside)

    def limit(state: State) -> dict[str, Any]:
        beside = {
            "nan": state.counters[Counter.NAN],
            "inf": state.counters[Counter.POSITIVE_INFINITY],
            "neginf": state.counters[Counter.NEGATIVE_INFINITY],
        }
        return counted(state) | _used(beside)

    return Reduction(
        "histogram",
        parameters(edges=list(ends)),
        tallies=1,
        contribute=contribute,
        block=block,
        finalize=lambda state, window: counted(state),
        limit=limit,
        left_out=counted,
    )


def _are_finite(ordered: Array) -> bool:
    """Whether all of rising numbers are; NaN comes last among them."""
    return math.isfinite(ordered[0]) and math.isfinite(ordered[-1])


def _used(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _checked_edges(edges: Any) -> tuple[float, ...]:
    rule = "edges= are at least two finite numbers, rising: the ends of the bins"
    if isinstance(edges, str) or not hasattr(edges, "__iter__"):
        raise TypeError(f"{rule}, not {edges!r:.80}")
    found = []
    for edge in edges:
        if isinstance(edge, str | bool):
            raise TypeError(f"{rule}, not {edge!r:.80}")
        try:
            found.append(float(edge))
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"{rule}, not {edge!r:.80}") from None
    if not 2 <= len(found) <= MOST_EDGES:
        raise ValueError(f"{rule}, at most {MOST_EDGES}; there are {len(found)}")
    for low, high in pairwise(found):
        if not -math.inf < low < high < math.inf:
            raise ValueError(f"{rule}; {low!r} comes before {high!r}")
    return tuple(edge + 0.0 for edge in found)  # -0.0 is 0.0


# --- quantiles ----------------------------------------------------------------------------------

# A bucket is a 64th of an octave: the exponent and the first 6 bits of the mantissa. Two numbers
# u > l of one bucket differ by less than l/64, and the harmonic mean of its ends is less than
# 1/128 away from any number in it.
_PARTS = 64
_SHIFT = 52 - 6
_SINGLE_SHIFT = 23 - 6
_SUBNORMAL_OCTAVES = 1074
_BELOW = 51 * _PARTS
"""Buckets of subnormal numbers below that of exponent field 0."""
_SIZE = np.int64(0x7FFF_FFFF_FFFF_FFFF)
_LEAST_NORMAL = np.int64(1 << 52)
_LEAST_NORMAL_SINGLE = np.float64(2.0**-126).view(np.int64)
_POSITIVE, _NEGATIVE = range(2)
"""Tallies: of positive and of negative numbers, by size; zeros are what is left."""
_LARGEST, _SMALLEST_NEGATED = range(2)
"""Fields."""


def quantiles(qs: Sequence[float]) -> Reduction:
    """Quantiles of all contributions, each within 1% of a true one, on any range.

    With n contributions in order, quantile q is number ⌊q·(n-1)⌋, counted from 0: a contribution,
    not a mean of two. The result is at most 1/128 of it away from it, lies between the smallest and
    the largest contribution, and is exact where these are met (q = 0 and 1), for zeros and
    infinities. A NaN among them makes all quantiles NaN. For each q there is one key: ``k/p50``,
    ``k/p99.9``.

    Args:
        qs: numbers from 0 to 1, at least one, rising.

    Raises:
        ValueError: they are not.

    Reference: C. Masson, J. E. Rim, H. K. Lee, *DDSketch: a fast and fully-mergeable quantile
    sketch with relative-error guarantees*, PVLDB 12 (2019), https://arxiv.org/abs/1908.10693; here
    with buckets cut from the numbers' bits and none of them ever merged, so that the same data
    give the same bits in any order.
    """
    known = _checked_quantiles(qs)
    names = {f"p{_percent(q)}": q for q in known}
    if len(names) < len(known):
        raise ValueError(f"qs= have the same names: {', '.join(names)}")

    def contribute(x: Array, w: Array | None) -> Terms:
        floats = exact.widened(x)
        bits = floats.view(np.int64)
        size = bits & _SIZE
        buckets = size_buckets(size)
        buckets[size == 0] = -1
        negative = bits < 0
        images = exact.order_image(floats)
        return Terms(
            maxes=((_LARGEST, images), (_SMALLEST_NEGATED, -images)),
            tallies=(
                (_POSITIVE, np.where(negative, -1, buckets)),
                (_NEGATIVE, np.where(negative, buckets, -1)),
            ),
        )

    def block(x: Array) -> Terms | None:
        ordered = np.sort(x)
        single = ordered.dtype == np.float32
        if not single:
            ordered = exact.widened(ordered)
        if not _are_finite(ordered) or not (ordered[0] and ordered[-1]):  # zeros have two signs
            return None
        codes = (
            ordered.view(np.int32) >> _SINGLE_SHIFT if single else ordered.view(np.int64) >> _SHIFT
        )
        starts = np.concatenate(([0], (codes[1:] != codes[:-1]).nonzero()[0] + 1))
        counts = np.diff(starts, append=len(codes))
        first = exact.widened(ordered[starts]).view(np.int64)
        size = first & _SIZE
        normal = _LEAST_NORMAL_SINGLE if single else _LEAST_NORMAL
        if ((size > 0) & (size < normal)).any():
            return None  # subnormal numbers have buckets within one code
        buckets = size_buckets(size)
        positive, negative = first > 0, (first < 0) & (size > 0)
        images = exact.order_image(exact.widened(ordered[[0, -1]]))
        return Terms(
            maxes=((_LARGEST, images[1:]), (_SMALLEST_NEGATED, -images[:1])),
            counted=(
                (_POSITIVE, buckets[positive], counts[positive]),
                (_NEGATIVE, buckets[negative], counts[negative]),
            ),
        )

    def unknown(state: State) -> dict[str, Number]:
        return dict.fromkeys(names, math.nan)

    def limit(state: State) -> dict[str, Number]:
        if state.counters[Counter.NAN]:
            return unknown(state)
        below = (-math.inf, state.counters[Counter.NEGATIVE_INFINITY])
        above = (math.inf, state.counters[Counter.POSITIVE_INFINITY])
        return chosen([below, *_in_order(state), above])

    def chosen(ranked: list[tuple[float, int]]) -> dict[str, Number]:
        last = sum(count for _, count in ranked) - 1
        return {name: _at(ranked, math.floor(q * last)) for name, q in names.items()}

    return Reduction(
        "quantiles",
        parameters(qs=[float(q) for q in known]),
        maxes=2,
        tallies=2,
        contribute=contribute,
        block=block,
        finalize=lambda state, window: chosen(list(_in_order(state))),
        limit=limit,
        left_out=unknown,
        ends=tuple(names),
    )


def size_buckets(size: Array) -> Array:
    """The bucket of each finite size, given as the bits of a float64 without sign.

    Integer operations alone, so that subnormal numbers are what they are in every mode of the
    processor; they are brought to the form of normal ones first.
    """
    buckets: Array = (size >> _SHIFT) + _BELOW
    small = np.flatnonzero(size < _LEAST_NORMAL)
    if small.size:
        normal = size[small].astype(np.float64).view(np.int64)
        buckets[small] = (normal >> _SHIFT) - _SUBNORMAL_OCTAVES * _PARTS + _BELOW
    return buckets


def middle(bucket: int) -> float:
    """The harmonic mean of a bucket's ends, rounded to float64.

    With ends l = (64 + m)/64·2^e and u = (65 + m)/64·2^e: 2lu/(l + u) = l·(130 + 2m)/(129 + 2m).
    """
    exponent, m = divmod(bucket - _BELOW, _PARTS)
    num, den = (_PARTS + m) * (2 * _PARTS + 2 + 2 * m), _PARTS * (2 * _PARTS + 1 + 2 * m)
    return round_ratio(num, den, exponent - 1023)


def _in_order(state: State) -> Iterator[tuple[float, int]]:
    """Finite values that rise, and how many contributions each stands for."""
    positive, negative = state.tallies
    finite = state.counters[Counter.COUNT]
    zeros = finite - sum(positive.values()) - sum(negative.values())
    buckets = [(-middle(bucket), negative[bucket]) for bucket in sorted(negative, reverse=True)]
    buckets.append((0.0, zeros))
    buckets += [(middle(bucket), positive[bucket]) for bucket in sorted(positive)]
    if finite:
        least, largest = -state.maxes[_SMALLEST_NEGATED], state.maxes[_LARGEST]
        yield from _with_ends([pair for pair in buckets if pair[1]], least, largest)


def _with_ends(
    buckets: list[tuple[float, int]], least: int, largest: int
) -> Iterator[tuple[float, int]]:
    """The buckets with the smallest and the largest contribution taken out and put at the ends.

    No value lies beyond these; compared as integers, so that subnormal ones are told apart in
    every mode of the processor.
    """
    images = exact.order_image(np.array([value for value, _ in buckets]))
    bounded = exact.from_order_image(np.clip(images, least, largest)).tolist()
    counts = [count for _, count in buckets]
    counts[0] -= 1
    ends = exact.from_order_image(np.array([least, largest])).tolist()
    yield ends[0], 1
    if sum(counts):
        counts[-1] -= 1
        yield from zip(bounded, counts, strict=True)
        yield ends[1], 1


def _at(ranked: list[tuple[float, int]], rank: int) -> float:
    """The value at a place in the order."""
    for value, count in ranked:
        if rank < count:
            return value
        rank -= count
    raise AssertionError("a rank lies within the contributions")


def _checked_quantiles(qs: Any) -> list[Fraction]:
    rule = "qs= are numbers from 0 to 1, rising, such as [0.5, 0.9, 0.99]"
    if isinstance(qs, str) or not hasattr(qs, "__iter__"):
        raise TypeError(f"{rule}, not {qs!r:.80}")
    found: list[Fraction] = []
    for q in qs:
        if isinstance(q, bool | str):
            raise TypeError(f"{rule}, not {q!r:.80}")
        try:
            number = float(q)
        except (TypeError, ValueError):
            raise TypeError(f"{rule}, not {q!r:.80}") from None
        if not 0 <= number <= 1 or (found and found[-1] >= number):
            raise ValueError(f"{rule}; {q!r} is out of place")
        found.append(Fraction(str(number)))  # as it is written: 0.99 of 101 is number 99
    if not 1 <= len(found) <= MOST_QUANTILES:
        raise ValueError(f"{rule}, at most {MOST_QUANTILES}; there are {len(found)}")
    return found


def _percent(q: Fraction) -> str:
    """A quantile in percent as it is written in keys.

    >>> _percent(Fraction(1, 2)), _percent(Fraction("0.999")), _percent(Fraction(1))
    ('50', '99.9', '100')
    """
    return format((q * 100).numerator / (q * 100).denominator, ".15g")
