"""What a reduction is: a small tuple of pure functions over the lanes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from numpy.typing import NDArray

from distmetrics.reductions.many import Columns, Made
from distmetrics.reductions.state import Counter, Number, State

Array = NDArray[Any]


@dataclass(frozen=True)
class Terms:
    """What some contributions add: for rows, fields and tallies of the lanes, values.

    Attributes:
        sums: pairs of a row (below `Reduction.sums`) and one finite or infinite number for each
            contribution.
        maxes: pairs of a field and one int64 for each contribution.
        tallies: pairs of a tally and the bucket of each contribution, -1 for none.
        counted: triples of a tally, buckets and how many contributions fell into each.
    """

    sums: tuple[tuple[int, Array], ...] = ()
    maxes: tuple[tuple[int, Array], ...] = ()
    tallies: tuple[tuple[int, Array], ...] = ()
    counted: tuple[tuple[int, Array, Array], ...] = ()


class LocalWindow(Protocol):
    """What a rank knows of its own part of a window when it closes it."""

    @property
    def seconds(self) -> float:
        """Wall time of the window on this rank, without pauses."""

    def total(self) -> Number | None:
        """This rank's own sum of the key; None where it logged none."""


class ReducedWindow(Protocol):
    """What `finalize` may ask of the rest of the window."""

    def total(self, key: str) -> Number | None:
        """The window's sum of another key, under the name used in the call; None: nobody logged it.

        NaN and infinities count in it, or are left out, as its key's declaration (or the one that
        asks) has it.
        """

    def holders(self, key: str) -> int:
        """How many ranks hold data of their own for the key (replicas count once)."""


Contribute = Callable[[Array, Array | None], Terms]
Block = Callable[[Array], Terms | None]
Finalized = Number | dict[str, Any]
"""A number; a histogram; or several numbers by the ends of their keys."""
Finalize = Callable[[State, ReducedWindow], Finalized | None]
Many = Callable[[Columns], Made]
Limit = Callable[[State], Finalized]
AtRank = Callable[[Sequence[int], int], Iterable[tuple[int, int, int]]]


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
        tallies: tallies in the tally lane.
        contribute: ``(x, w) -> Terms``; `x` holds finite contributions (float64, int64, uint64 or
            Python ints), `w` their weights, none of which is zero, or None.
        block: what many contributions of a key together add, without weight, their sums condensed,
            where that is sooner told than by `contribute`; it gives None where it does not pay or
            where not all are finite. Optional.
        finalize: ``(state, window) -> value``; None where there is nothing to log.
        many: what `finalize` gives for many states at once, where it is easily told; optional.
        limit: the value where a contribution was NaN or infinite and `nonfinite="propagate"`.
        left_out: the value where every contribution was left out.
        ends: where values are dicts, of which each entry is a key of its own, all entries that
            there may be: ``{"p50": 3}`` of the key `latency` is ``latency/p50``.
        weighted: takes a weight (`weight=` of the call or of the tag).
        pairs: the second number of a contribution is a denominator, not a weight.
        keeps_last: within a rank a later step's fields replace those of an earlier one.
        cumulative: the logged value is that of all windows so far.
        at_close: fields that a rank sets when it closes a window.
        at_rank: ``(fields, rank)`` to triples of a tally, a bucket and a count, which a rank adds
            when it closes a window.
        scalar: a contribution is one number; a tensor of several is an error.
        virtual: made from other keys; nobody logs a value under this key.
        derive: computes the value from the reduced values of the record, after all others; such a
            key is in no lane (virtual only).
        inputs: the keys that `derive` needs, as far as they are known.
        takes: a key whose values this one takes too, under its name in the call (virtual only).
        summable: its row 0 is the plain sum of its values, which other keys can be made from.
    """

    kind: str
    params: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    refers: tuple[str, ...] = field(default=(), compare=False)
    scaling: str = field(default="invariant", compare=False)
    sums: int = field(default=0, compare=False)
    maxes: int = field(default=0, compare=False)
    tallies: int = field(default=0, compare=False)
    contribute: Contribute = field(default=lambda x, w: Terms(), compare=False, repr=False)
    block: Block | None = field(default=None, compare=False, repr=False)
    finalize: Finalize = field(default=lambda state, window: None, compare=False, repr=False)
    many: Many | None = field(default=None, compare=False, repr=False)
    limit: Limit = field(default=lambda state: math.nan, compare=False, repr=False)
    left_out: Limit = field(default=lambda state: math.nan, compare=False, repr=False)
    ends: tuple[str, ...] = field(default=(), compare=False)
    weighted: bool = field(default=False, compare=False)
    pairs: bool = field(default=False, compare=False)
    keeps_last: bool = field(default=False, compare=False)
    cumulative: bool = field(default=False, compare=False)
    at_close: Callable[[LocalWindow], list[int]] | None = field(
        default=None, compare=False, repr=False
    )
    at_rank: AtRank | None = field(default=None, compare=False, repr=False)
    scalar: bool = field(default=False, compare=False)
    virtual: bool = field(default=False, compare=False)
    derive: Callable[[Mapping[str, Any]], Any] | None = field(
        default=None, compare=False, repr=False
    )
    inputs: tuple[str, ...] = field(default=(), compare=False)
    takes: str | None = field(default=None, compare=False)
    summable: bool = field(default=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        from distmetrics.reductions import rebuild

        params = dict(self.params)  # its own functions do not pickle
        if "function" in params and self.derive is not None:
            params["function"] = self.derive
        return rebuild, (self.kind, params)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        return f"{self.kind}({options})"

    def gives(self, key: str) -> tuple[str, ...]:
        """The names in records of all that may come of a key of this reduction."""
        values = tuple(f"{key}/{end}" for end in self.ends) or (key,)
        return values if self.virtual else (*values, f"{key}/nonfinite")

    def value(self, state: State, window: ReducedWindow, nonfinite: str) -> Finalized | None:
        """The logged value of a state; None where the record lacks the key."""
        if self.virtual or self.keeps_last:
            return self.finalize(state, window)
        if not state.present:
            return None
        if state.nonfinite and nonfinite == "propagate":
            return self.limit(state)
        if not state.counters[Counter.COUNT]:
            return self.left_out(state)
        return self.finalize(state, window)


def parameters(**options: Any) -> Mapping[str, Any]:
    """The options that say something."""
    return MappingProxyType({k: v for k, v in options.items() if v not in (None, False)})


def names(*keys: str | None) -> tuple[str, ...]:
    """The keys that are named."""
    return tuple(key for key in keys if key is not None)
