"""The algebra: what each reduction adds to the lanes, and how a merged state becomes a value.

A key's state lives in three lanes of integers that merge elementwise, so that any tree of ranks,
in any order, gives the same bits:

* the *sum* lane: `sums` exact rows (see `distmetrics.exact`), merged by addition;
* the *counter* lane: `Counter`, plain int64, merged by addition;
* the *max* lane: `maxes` int64 fields, merged by maximum, `NOTHING` where nobody contributed.

A reduction is a small tuple of pure functions over these lanes: `contribute` turns contributions
into terms, `finalize` turns the merged state into the logged value. The exchange moves lanes and
knows no reduction, so a new kind is a new builder here and nothing else.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact

Array = NDArray[Any]
Number = int | float
NOTHING = int(np.iinfo(np.int64).min)
"""The identity of the max lane."""


class Counter(enum.IntEnum):
    """The columns of the counter lane."""

    COUNT = 0
    """finite contributions"""
    FLOATS = 1
    """of them, those whose value is a float"""
    PLAIN = 2
    """of them, those without a weight, each of which weighs 1"""
    WEIGHT_FLOATS = 3
    """of them, those whose weight (or denominator) is a float"""
    NAN = 4
    POSITIVE_INFINITY = 5
    NEGATIVE_INFINITY = 6
    REPLICA = 7
    """balance of the replicas' hashes: zero where all replicas agree"""


@dataclass(frozen=True)
class Terms:
    """What some contributions add: for each row of the sum lane, or field of the max lane, values.

    Attributes:
        sums: pairs of a row (below `Reduction.sums`) and one finite or infinite number for each
            contribution.
        maxes: pairs of a field and one int64 for each contribution.
    """

    sums: tuple[tuple[int, Array], ...] = ()
    maxes: tuple[tuple[int, Array], ...] = ()


@dataclass
class State:
    """One key's merged state in one window (or, for a running total, in all so far).

    Attributes:
        units: the exact rows as integers in units of 2^(32·lo - 1088).
        lo: the absolute index of the lowest limb of `units`.
        counters: indexed by `Counter`.
        maxes: the max lane.
        steps: in how many steps of the window any rank logged anything to this logger.
    """

    units: list[int]
    lo: int
    counters: list[int]
    maxes: list[int]
    steps: int = 1

    @property
    def present(self) -> bool:
        """Whether anybody contributed."""
        return self.counters[Counter.COUNT] > 0 or self.nonfinite > 0

    @property
    def nonfinite(self) -> int:
        """How many contributions were NaN or infinite."""
        return sum(self.counters[Counter.NAN : Counter.NEGATIVE_INFINITY + 1])

    def total(self) -> Number:
        """The sum of row 0: exact where every part was an integer, else rounded once."""
        ints = not self.counters[Counter.FLOATS] and not self.counters[Counter.WEIGHT_FLOATS]
        return self._number(self.units[0], ints)

    def weight(self) -> Number:
        """The weight of all contributions: row 1 and 1 for each plain contribution."""
        units = self.units[1] + self._one() * self.counters[Counter.PLAIN]
        return self._number(units, not self.counters[Counter.WEIGHT_FLOATS])

    def aligned(self) -> State:
        """The same state in units that divide 1."""
        shift = 32 * (self.lo - exact.UNIT_LIMB)
        if shift <= 0:
            return self
        units = [unit << shift for unit in self.units]
        return State(units, exact.UNIT_LIMB, self.counters, self.maxes, self.steps)

    def merged(self, other: State) -> State:
        """This state and a later one as one: how running totals go on."""
        lo = min(self.lo, other.lo)
        mine = [unit << 32 * (self.lo - lo) for unit in self.units]
        theirs = [unit << 32 * (other.lo - lo) for unit in other.units]
        return State(
            [a + b for a, b in zip(mine, theirs, strict=True)],
            lo,
            [a + b for a, b in zip(self.counters, other.counters, strict=True)],
            [max(a, b) for a, b in zip(self.maxes, other.maxes, strict=True)],
            self.steps + other.steps,
        )

    def _one(self) -> int:
        shift = 32 * (exact.UNIT_LIMB - self.lo)
        if shift < 0:
            raise AssertionError("a state with plain contributions is aligned first")
        return 1 << shift

    def _number(self, units: int, ints: bool) -> Number:
        return exact.to_int(units, self.lo) if ints else exact.to_float(units, self.lo)


class LocalWindow(Protocol):
    """What a rank knows of its own part of a window when it closes it."""

    @property
    def seconds(self) -> float:
        """Wall time of the window on this rank, without pauses."""

    def total(self, key: str) -> Number | None:
        """This rank's own sum of a key; None where it logged none."""


class ReducedWindow(Protocol):
    """What `finalize` may ask of the rest of the window."""

    def state(self, key: str) -> State | None:
        """The merged state of another key, under the name used in the call."""

    def holders(self, key: str) -> int:
        """How many ranks hold data of their own for the key (replicas count once)."""


Contribute = Callable[[Array, Array | None], Terms]
Finalize = Callable[[State, ReducedWindow], Number | None]
Overflow = Callable[[State], Number]


@dataclass(frozen=True)
class Reduction:
    """What a key means: how contributions from all ranks and steps become one value.

    Two reductions are equal when their kind and parameters are.

    Attributes:
        kind: the registry's method, "average".
        params: its options, JSON-able.
        refers: the other keys it needs, under the names used in the call.
        scaling: the scaling class for audits: "invariant", "extensive" or "per_rank".
        sums: rows in the sum lane.
        maxes: fields in the max lane.
        contribute: ``(x, w) -> Terms``; `x` holds finite contributions (float64, int64, uint64 or
            Python ints), `w` their weights, none of which is zero, or None.
        finalize: ``(state, window) -> value``; None where there is nothing to log.
        limit: the value where a contribution was NaN or infinite and `nonfinite="propagate"`.
        weighted: takes a weight (`weight=` of the call or of the tag).
        pairs: the second number of a contribution is a denominator, not a weight.
        keeps_last: within a rank a later step's fields replace those of an earlier one.
        cumulative: the logged value is that of all windows so far.
        at_close: fields that a rank sets when it closes a window.
        scalar: a contribution is one number; a tensor of several is an error.
        virtual: made from other keys; nobody logs a value under this key.
    """

    kind: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    refers: tuple[str, ...] = field(default=(), compare=False)
    scaling: str = field(default="invariant", compare=False)
    sums: int = field(default=0, compare=False)
    maxes: int = field(default=0, compare=False)
    contribute: Contribute = field(default=lambda x, w: Terms(), compare=False, repr=False)
    finalize: Finalize = field(default=lambda state, window: None, compare=False, repr=False)
    limit: Overflow = field(default=lambda state: math.nan, compare=False, repr=False)
    weighted: bool = field(default=False, compare=False)
    pairs: bool = field(default=False, compare=False)
    keeps_last: bool = field(default=False, compare=False)
    cumulative: bool = field(default=False, compare=False)
    at_close: Callable[[LocalWindow], list[int]] | None = field(
        default=None, compare=False, repr=False
    )
    scalar: bool = field(default=False, compare=False)
    virtual: bool = field(default=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.kind, dict(self.params))  # its functions do not pickle

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"{self.kind}({options})"

    def value(self, state: State, window: ReducedWindow, nonfinite: str) -> Number | None:
        """The logged value of a state; None where the record lacks the key."""
        if self.virtual or self.keeps_last:
            return self.finalize(state, window)
        if not state.present:
            return None
        if state.nonfinite and nonfinite == "propagate":
            return self.limit(state)
        if not state.counters[Counter.COUNT]:
            return math.nan  # every contribution was left out
        return self.finalize(state, window)


def _params(**options: Any) -> Mapping[str, Any]:
    return MappingProxyType({k: v for k, v in options.items() if v not in (None, False)})


def _names(*keys: str | None) -> tuple[str, ...]:
    return tuple(key for key in keys if key is not None)


# --- sums ---------------------------------------------------------------------------------------


def count() -> Reduction:
    """The sum of all contributions for each step: Σx / steps of the window."""
    return Reduction(
        "count", sums=1, contribute=_plain_sum, finalize=_sum_per_step, limit=_sum_limit
    )


def total() -> Reduction:
    """The running sum of all contributions since the run began."""
    return Reduction(
        "total",
        sums=1,
        contribute=_plain_sum,
        finalize=lambda state, window: state.total(),
        limit=_sum_limit,
        cumulative=True,
    )


def average(weight: str | None = None) -> Reduction:
    """The weighted mean: Σwx / Σw, one division at the end."""
    return Reduction(
        "average",
        _params(weight=weight),
        _names(weight),
        sums=2,
        contribute=_weighted_sum,
        finalize=_quotient,
        limit=_sum_limit,
        weighted=True,
    )


def ratio(numerator: str | None = None, denominator: str | None = None) -> Reduction:
    """Σ numerator / Σ denominator: of two other keys, or (without names) of pairs."""
    if numerator is None and denominator is None:
        return Reduction(
            "ratio",
            sums=2,
            contribute=_pair_sum,
            finalize=_quotient,
            limit=_sum_limit,
            pairs=True,
        )
    if numerator is None or denominator is None:
        raise TypeError("a ratio of keys needs both numerator and denominator")

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        above, below = window.state(numerator), window.state(denominator)
        if above is None or below is None or not (above.present and below.present):
            return None
        return exact.quotient(_bounded_total(above), _bounded_total(below))

    return Reduction(
        "ratio",
        _params(numerator=numerator, denominator=denominator),
        _names(numerator, denominator),
        finalize=finalize,
        virtual=True,
    )


def l2_norm() -> Reduction:
    """The root of the sum of squares; over a window of many steps their root mean square."""
    return Reduction(
        "l2_norm",
        sums=1,
        contribute=lambda x, w: Terms(sums=((0, exact.product(x, x)),)),
        finalize=lambda state, window: math.sqrt(exact.quotient(state.total(), state.steps)),
        limit=lambda state: math.nan if state.counters[Counter.NAN] else math.inf,
    )


def std(ddof: int | float = 0, weight: str | None = None) -> Reduction:
    """The standard deviation, evaluated exactly and rounded once.

    With W = Σw, S = Σwx, Q = Σwx² as exact sums: sqrt((W·Q - S²) / (W·(W - ddof))).
    """

    def finalize(state: State, window: ReducedWindow) -> Number:
        state = state.aligned()
        one = 1 << 32 * (exact.UNIT_LIMB - state.lo)
        squares, weights, values = state.units
        weights += one * state.counters[Counter.PLAIN]
        scale = float(ddof).as_integer_ratio()
        free = weights * scale[1] - one * scale[0]  # (W - ddof) times scale[1]
        if weights <= 0 or free <= 0:
            return math.nan
        return exact.root_of_ratio(
            (weights * squares - values * values) * scale[1], weights * free
        )

    return Reduction(
        "std",
        _params(ddof=ddof, weight=weight),
        _names(weight),
        sums=3,
        contribute=_moments,
        finalize=finalize,
        weighted=True,
    )


def _plain_sum(x: Array, w: Array | None) -> Terms:
    return Terms(sums=((0, x),))


def _weighted_sum(x: Array, w: Array | None) -> Terms:
    return Terms(sums=((0, x),) if w is None else ((0, exact.product(x, w)), (1, w)))


def _pair_sum(x: Array, w: Array | None) -> Terms:
    assert w is not None
    return Terms(sums=((0, x), (1, w)))


def _moments(x: Array, w: Array | None) -> Terms:
    squares = tuple((0, part) for part in exact.exact_terms(x, w, 2))
    values = tuple((2, part) for part in exact.exact_terms(x, w, 1))
    return Terms(sums=squares + values + (() if w is None else ((1, w),)))


def _sum_per_step(state: State, window: ReducedWindow) -> Number:
    summed = state.total()
    if isinstance(summed, int) and summed % state.steps == 0:
        return summed // state.steps
    return exact.quotient(summed, state.steps)


def _quotient(state: State, window: ReducedWindow) -> Number | None:
    state = state.aligned()
    return exact.quotient(state.total(), state.weight())


def _sum_limit(state: State) -> Number:
    """What a sum with NaN or infinite parts tends to."""
    up = state.counters[Counter.POSITIVE_INFINITY]
    down = state.counters[Counter.NEGATIVE_INFINITY]
    if state.counters[Counter.NAN] or (up and down):
        return math.nan
    return math.inf if up else -math.inf


def _bounded_total(state: State) -> Number:
    return _sum_limit(state) if state.nonfinite else state.total()


# --- extremes -----------------------------------------------------------------------------------


def maximum() -> Reduction:
    """The largest contribution. Compared as float64: integers beyond 2^53 are rounded."""
    return _extreme("maximum", 1)


def minimum() -> Reduction:
    """The smallest contribution. Compared as float64: integers beyond 2^53 are rounded."""
    return _extreme("minimum", -1)


def _extreme(kind: str, sign: int) -> Reduction:
    def contribute(x: Array, w: Array | None) -> Terms:
        return Terms(maxes=((0, exact.order_image(sign * x.astype(np.float64))),))

    def finalize(state: State, window: ReducedWindow) -> Number:
        found = sign * _from_image(state.maxes[0])
        return found if state.counters[Counter.FLOATS] else int(found)

    def limit(state: State) -> Number:
        if state.counters[Counter.NAN]:
            return math.nan
        toward = Counter.POSITIVE_INFINITY if sign > 0 else Counter.NEGATIVE_INFINITY
        if state.counters[toward] or not state.counters[Counter.COUNT]:
            return math.inf if state.counters[Counter.POSITIVE_INFINITY] else -math.inf
        found = sign * _from_image(state.maxes[0])
        return found if state.counters[Counter.FLOATS] else int(found)

    return Reduction(kind, maxes=1, contribute=contribute, finalize=finalize, limit=limit)


# --- values that are not summed -----------------------------------------------------------------

SAME_VALUE, SAME_VALUE_NEGATED, SAME_STEP, SAME_STEP_NEGATED = range(4)
_NAN_IMAGE = int(exact.order_image(np.array([np.inf]))[0]) + 1


def same() -> Reduction:
    """A value that all ranks should agree on: the last step's.

    The value and its step travel with their negatives: the largest and the smallest are equal
    exactly where all ranks agree, which costs no collective (see `Reduction.disputed`).
    """

    def contribute(x: Array, w: Array | None) -> Terms:
        floats = x.astype(np.float64)
        nan = np.isnan(floats)
        image = exact.order_image(np.where(nan, 0.0, floats))
        image[nan] = _NAN_IMAGE
        return Terms(maxes=((SAME_VALUE, image), (SAME_VALUE_NEGATED, -image)))

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        if state.maxes[SAME_STEP] == NOTHING:
            return None
        image = state.maxes[SAME_VALUE]
        if image == _NAN_IMAGE:
            return math.nan
        found = _from_image(image)
        return found if state.counters[Counter.FLOATS] or math.isinf(found) else int(found)

    return Reduction(
        "same", maxes=4, contribute=contribute, finalize=finalize, keeps_last=True, scalar=True
    )


def disputed(maxes: list[int]) -> bool:
    """Whether ranks gave a `same` key different values, or their last ones at different steps."""
    return (
        maxes[SAME_VALUE] != -maxes[SAME_VALUE_NEGATED]
        or maxes[SAME_STEP] != -maxes[SAME_STEP_NEGATED]
    ) and maxes[SAME_STEP] != NOTHING


def rate(of: str, seconds: str | None = None, per_device: bool = False) -> Reduction:
    """The sum of key `of` for each second of the slowest rank.

    The seconds are those of key `seconds` if given, else the wall time between the ends of the
    windows without pauses. `per_device` divides by the ranks that hold data of their own.
    """

    def at_close(window: LocalWindow) -> list[int]:
        spent = window.seconds if seconds is None else window.total(seconds)
        return [NOTHING if spent is None else int(exact.order_image(np.array([float(spent)]))[0])]

    def finalize(state: State, window: ReducedWindow) -> Number | None:
        counted = window.state(of)
        if counted is None or not counted.present or state.maxes[0] == NOTHING:
            return None
        spent = _from_image(state.maxes[0]) * (window.holders(of) if per_device else 1)
        return exact.quotient(float(_bounded_total(counted)), spent)

    return Reduction(
        "rate",
        _params(of=of, seconds=seconds, per_device=per_device),
        _names(of, seconds),
        "extensive",
        maxes=1,
        finalize=finalize,
        at_close=at_close,
        virtual=True,
    )


def _from_image(image: int) -> float:
    return float(exact.from_order_image(np.array([image], np.int64))[0])


BUILDERS: Mapping[str, Callable[..., Reduction]] = MappingProxyType(
    {
        builder.__name__: builder
        for builder in (
            count,
            total,
            average,
            ratio,
            minimum,
            maximum,
            std,
            l2_norm,
            same,
            rate,
        )
    }
)


def _rebuild(kind: str, params: dict[str, Any]) -> Reduction:
    return make(kind, **params)


def make(kind: str, **params: Any) -> Reduction:
    """The reduction of this kind and these options, as a registry or a file declares it.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in BUILDERS:
        raise ValueError(f"no reduction {kind!r}; there are {', '.join(BUILDERS)}")
    return BUILDERS[kind](**params)
