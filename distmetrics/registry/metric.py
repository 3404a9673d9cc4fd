"""What one declaration says: a reduction, and how its key is described and treated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, cast, get_args

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry.keys import is_pattern, shown

Nonfinite = Literal["propagate", "skip"]
Scaling = Literal["invariant", "extensive", "per_rank"]
Source = Literal["declared", "referred", "default"]

IGNORE = "ignore"
"""Stands for a reduction where declarations are written down: the key is not logged."""


class Described(TypedDict, total=False):
    """The keywords that every declaration takes.

    Attributes:
        unit: the unit of the logged value, "pairs".
        help: one sentence for tables and charts.
        group: the heading under which charts and tables show the key.
        replicated_over: names of mesh dimensions whose ranks hold the *same* value because they
            saw the same samples; only one of each set of replicas counts.
        nonfinite: "propagate" (default): NaN and infinities reach the record; "skip": they are
            left out. Either way ``<key>/nonfinite`` counts them.
        scaling: how the value may depend on the number of ranks: "invariant", "extensive" (grows
            with the ranks) or "per_rank". None: the reduction's own, "extensive" for rates and
            "invariant" for everything else.
    """

    unit: str
    help: str
    group: str
    replicated_over: tuple[str, ...]
    nonfinite: Nonfinite
    scaling: Scaling | None


@dataclass(frozen=True)
class Metric:
    """What a key means.

    Attributes:
        pattern: the declared name or pattern; of a key that nobody declared, the key.
        reduction: how contributions become one value; None for a key that is ignored.
        unit: the unit of the logged value.
        help: one sentence for tables and charts.
        group: the heading under which the key is shown.
        replicated_over: names of mesh dimensions whose ranks hold the same value.
        nonfinite: "propagate" or "skip".
        scaling: "invariant", "extensive" or "per_rank".
        source: "declared"; "referred" for a key that nobody declared but another one needs (a
            weight, say); "default" for all other keys.
    """

    pattern: str
    reduction: Reduction | None
    unit: str = ""
    help: str = ""
    group: str = ""
    replicated_over: tuple[str, ...] = ()
    nonfinite: Nonfinite = "propagate"
    scaling: Scaling = "invariant"
    source: Source = "declared"

    @property
    def registered(self) -> bool:
        """Whether the key was declared, or is needed by one that was."""
        return self.source != "default"

    @property
    def ignored(self) -> bool:
        """Whether the key is left out of records: it has no reduction."""
        return self.reduction is None

    @property
    def virtual(self) -> bool:
        """Whether the value is made from other keys, so that nobody logs one under this key."""
        return self.reduction is not None and self.reduction.virtual

    @property
    def derived(self) -> bool:
        """Whether the value is computed from reduced values."""
        return self.reduction is not None and self.reduction.kind == "derived"

    @property
    def refers(self) -> tuple[str, ...]:
        """The other keys that the reduction needs, under the names used in the call."""
        return () if self.reduction is None else self.reduction.refers

    @property
    def uses(self) -> tuple[str, ...]:
        """All keys that the value is made of: those of the call, and reduced ones."""
        return () if self.reduction is None else (*self.reduction.refers, *self.reduction.inputs)

    @property
    def exact(self) -> bool:
        """Whether `pattern` is an exact name; that of a virtual key always is."""
        return self.virtual or not is_pattern(self.pattern)

    def __str__(self) -> str:
        """What changes values, as text: ``average(weight='n'), nonfinite='skip'``."""
        parts = ["ignored" if self.reduction is None else str(self.reduction)]
        if self.replicated_over:
            parts.append(f"replicated_over={self.replicated_over!r}")
        if self.nonfinite != "propagate":
            parts.append(f"nonfinite={self.nonfinite!r}")
        return ", ".join(parts)

    @property
    def meaning(self) -> tuple[Any, ...]:
        """What changes values; two declarations agree when this is equal."""
        reduction = self.reduction
        return (
            IGNORE if reduction is None else reduction.kind,
            {} if reduction is None else dict(reduction.params),
            sorted(self.replicated_over),
            self.nonfinite,
        )

    def declaration(self) -> dict[str, Any]:
        """The declaration as a JSON-able dict, without what is left at its default.

        ``{"pattern": "loss", "reduction": "average", "params": {"weight": "n"}, "unit": "nats"}``.
        A scaling class other than "invariant" is always there, so that who reads it need not know
        the reductions' own.
        """
        reduction = self.reduction
        written: dict[str, Any] = {
            "pattern": self.pattern,
            "reduction": IGNORE if reduction is None else reduction.kind,
        }
        if reduction is not None and reduction.params:
            written["params"] = dict(reduction.params)
        for name in ("unit", "help", "group"):
            if text := getattr(self, name):
                written[name] = text
        if self.replicated_over:
            written["replicated_over"] = list(self.replicated_over)
        if self.nonfinite != "propagate":
            written["nonfinite"] = self.nonfinite
        own = "invariant" if reduction is None else reduction.scaling
        if (self.scaling, own) != ("invariant", "invariant"):
            written["scaling"] = self.scaling
        return written


def described(
    pattern: str, reduction: Reduction | None, options: Mapping[str, object], where: str
) -> Metric:
    """The metric of a declaration whose keywords exist, and have still to be checked.

    Raises:
        InvalidType: a value of a wrong type.
        InvalidValue: a value that is not accepted.
    """
    own = "invariant" if reduction is None else reduction.scaling
    scaling = options.get("scaling")
    return Metric(
        pattern,
        reduction,
        unit=_text(options, "unit", where),
        help=_text(options, "help", where),
        group=_text(options, "group", where),
        replicated_over=_dimensions(options.get("replicated_over", ()), where),
        nonfinite=cast(
            "Nonfinite",
            _choice("nonfinite", options.get("nonfinite", "propagate"), Nonfinite, where),
        ),
        scaling=cast(
            "Scaling", _choice("scaling", own if scaling is None else scaling, Scaling, where)
        ),
    )


def _text(options: Mapping[str, object], name: str, where: str) -> str:
    value = options.get(name, "")
    if not isinstance(value, str):
        raise InvalidType(f"{where}: {name}= is a str, not {shown(value)}")
    return value


def _choice(name: str, value: object, choices: object, where: str) -> str:
    accepted = get_args(choices)
    if isinstance(value, str) and value in accepted:
        return str.__str__(value)
    kind = InvalidValue if isinstance(value, str) else InvalidType
    raise kind(f"{where}: {name}= is one of {', '.join(map(repr, accepted))}, not {shown(value)}")


def _dimensions(value: object, where: str) -> tuple[str, ...]:
    rule = "replicated_over= is a tuple of names of mesh dimensions, such as ('tensor',)"
    if not isinstance(value, tuple | list) or not all(isinstance(name, str) for name in value):
        remedy = f"; write ({value!r},)" if isinstance(value, str) else ""
        raise InvalidType(f"{where}: {rule}, not {shown(value)}{remedy}")
    if "" in value or len(set(value)) < len(value):
        raise InvalidValue(f"{where}: {rule}, each once and none empty, not {shown(value)}")
    return tuple(value)
