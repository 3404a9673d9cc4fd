"""The vocabulary of declarations: one method for each reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InvalidType
from distmetrics.reductions import Derive
from distmetrics.registry.declarations import Declarations
from distmetrics.registry.keys import checked_key, checked_name, shortened
from distmetrics.registry.metric import IGNORE, Described, described
from distmetrics.registry.parameters import build, check_names

if TYPE_CHECKING:
    from typing_extensions import Unpack

_COMPUTED = ("ratio", "rate", "derived")
_ONE_KEY = "its key is computed and never logged, so there is nothing that a pattern could match"


class Vocabulary:
    """What can be declared. Each method takes the keywords of `Described` and raises as `declare`.

    A further kind is one more method here, which hands its options to `declare`.
    """

    def __init__(self) -> None:
        self._declarations = Declarations()

    def count(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The sum over all contributions, for each step; over a window the mean of the steps."""
        self.declare("count", patterns, {}, **described)

    def total(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The running sum of all contributions since the run began."""
        self.declare("total", patterns, {}, **described)

    def average(
        self, *patterns: str, weight: str | None = None, **described: Unpack[Described]
    ) -> None:
        """The weighted mean Σwx / Σw.

        `weight` names the key of the same call that holds the weights, of the value's shape.
        Without it the call's ``weight=`` is taken, else 1 for each element.
        """
        self.declare("average", patterns, {"weight": weight}, **described)

    def ratio(
        self, key: str, numerator: str, denominator: str, **described: Unpack[Described]
    ) -> None:
        """Σ numerator / Σ denominator of two other keys of the call; `key` is never logged.

        `key` is an exact name, one in each call.

        >>> from distmetrics.registry import Registry
        >>> registry = Registry()
        >>> registry.ratio("acc", "num_correct", "num_samples")
        >>> print(registry["acc"], registry["num_correct"])
        ratio(numerator='num_correct', denominator='num_samples') count()
        """
        params = {"numerator": numerator, "denominator": denominator}
        self.declare("ratio", (key,), params, **described)

    def minimum(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The smallest contribution."""
        self.declare("minimum", patterns, {}, **described)

    def maximum(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The largest contribution."""
        self.declare("maximum", patterns, {}, **described)

    def std(
        self,
        *patterns: str,
        ddof: float = 0,
        weight: str | None = None,
        **described: Unpack[Described],
    ) -> None:
        """The standard deviation, weighted as `average`; its square divides by Σw - ddof."""
        self.declare("std", patterns, {"ddof": ddof, "weight": weight}, **described)

    def l2_norm(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The root of the sum of squares, such as a gradient norm from its shards."""
        self.declare("l2_norm", patterns, {}, **described)

    def same(self, *patterns: str, **described: Unpack[Described]) -> None:
        """A value that all ranks should agree on, such as the learning rate: the last step's."""
        self.declare("same", patterns, {}, **described)

    def rate(
        self,
        key: str,
        of: str,
        seconds: str | None = None,
        per_device: bool = False,
        **described: Unpack[Described],
    ) -> None:
        """The count of key `of` for each second; `key` is never logged.

        Args:
            key: an exact name, one in each call.
            of: the key that is counted.
            seconds: the key with the time spent, of which the slowest rank's counts; without it
                the wall time between the ends of windows.
            per_device: divide by the number of ranks that hold data of their own.
            described: as everywhere; the scaling class is "extensive" unless given.
        """
        params = {"of": of, "seconds": seconds, "per_device": per_device}
        self.declare("rate", (key,), params, **described)

    def histogram(
        self, *patterns: str, edges: Sequence[float], **described: Unpack[Described]
    ) -> None:
        """How many contributions lie in each bin between `edges`, below and above.

        Bins are half open, the last is closed, as those of `numpy.histogram`; NaN and infinities
        are counted beside. The value is ``{"edges": [...], "counts": [...]}``, with ``below``,
        ``above``, ``nan``, ``inf`` and ``neginf`` where there are any.
        """
        self.declare("histogram", patterns, {"edges": edges}, **described)

    def quantiles(
        self, *patterns: str, qs: Sequence[float], **described: Unpack[Described]
    ) -> None:
        """Quantiles of all contributions, each a contribution to within 1%, on any range.

        `qs` are numbers from 0 to 1; the keys are ``k/p50``, ``k/p99.9``.
        """
        self.declare("quantiles", patterns, {"qs": qs}, **described)

    def per_rank(self, *patterns: str, **described: Unpack[Described]) -> None:
        """One value for each rank, the last step's: ``k/rank0``, ..., up to ``k/rank63``.

        With them ``k/min``, ``k/max`` and ``k/argmax``, the rank of the largest, of all ranks.
        """
        self.declare("per_rank", patterns, {}, **described)

    def derived(self, key: str, fn: Derive | str, **described: Unpack[Described]) -> None:
        """What `fn` makes of the other *reduced* values of a record; `key` is never logged.

        It is computed once a record, after all other keys, in the order of declaration, so that
        it may use derived keys that were declared before it. A record that lacks a key it needs
        lacks it too. Where `fn` raises, that is reported once, and the record lacks this key only.

        Args:
            key: an exact name.
            fn: an expression (`distmetrics.reductions.expression`), or a pure function that takes
                the values by key and returns a number, or None for no value. Keys are those used
                in the call: bare names in a child. A function is known to this process alone: a
                registry with one can be written to no file, and what `distmetrics merge` completes
                lacks its key.
            described: as everywhere.

        >>> from distmetrics.registry import Registry
        >>> registry = Registry()
        >>> registry.derived("perplexity", "exp(loss)")
        >>> registry.derived("bits", lambda values: values["loss"] * 1.4426950408889634)
        >>> print(registry["perplexity"])
        derived(expression='exp(loss)')
        """
        params = {"expression": fn} if isinstance(fn, str) else {"function": fn}
        self.declare("derived", (key,), params, **described)

    def axis(self, *patterns: str, **described: Unpack[Described]) -> None:
        """The running sum of all contributions, for charts to use as x-axis: samples, tokens."""
        self.declare("axis", patterns, {}, **described)

    def ignore(self, *patterns: str, **described: Unpack[Described]) -> None:
        """Leave these keys out of records; as weights and the like they can still serve."""
        self.declare(IGNORE, patterns, {}, **described)

    def declare(
        self,
        kind: str,
        patterns: Sequence[str],
        params: Mapping[str, Any],
        **options: Unpack[Described],
    ) -> None:
        """Declare keys by the name of their reduction: what every method above does.

        Args:
            kind: the name of a reduction, or "ignore".
            patterns: names and patterns; one exact name for a ratio, a rate or a derived key.
            params: the options of the reduction.
            options: the keywords of `Described`.

        Raises:
            InvalidType: a key, option or keyword has a wrong type, or does not exist.
            InvalidValue: it is not accepted: an unknown reduction, an empty key, a pattern where a
                name is needed, a key that refers to itself or to a ratio or rate.
            DeclarationConflict: a name has been declared in another way. Nothing is declared then.
        """
        if not patterns:
            raise InvalidType(f"registry.{kind}(): at least one key is needed, a name or a pattern")
        metrics = []
        for pattern in patterns:
            where = f"registry.{kind}({shortened(pattern)})"
            text = (
                checked_name(pattern, where, _ONE_KEY)
                if kind in _COMPUTED
                else checked_key(pattern, where)
            )
            known = Described.__annotations__
            unknown = [name for name in options if name not in known]
            check_names(kind, [*params, *unknown], where, known)
            reduction = None if kind == IGNORE else build(kind, params, where)
            metrics.append(described(text, reduction, options, where))
        self._declarations.add(metrics, f"registry.{kind}(...)")
