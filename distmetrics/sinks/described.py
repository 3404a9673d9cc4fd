"""What the registry says of a record's key: for the names, texts and rules of back ends."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distmetrics.errors import UnknownKey

if TYPE_CHECKING:
    from distmetrics.registry import Metric, Registry

_RANK = re.compile(r"rank(\d+)")
_BIN = re.compile(r"(.+)\[(\d+|below|above|nan|inf|neginf)\]", re.DOTALL)
_QUANTILE = re.compile(r"p\d+(\.\d+)?")
_PARTS = {"min": "smallest of all ranks", "max": "largest of all ranks"}
_RULES = {
    "minimum": ("min", "last"),
    "maximum": ("max", "last"),
    "count": ("last",),
    "total": ("last",),
    "axis": ("last",),
    "same": ("last",),
}


@dataclass(frozen=True)
class Description:
    """What is known of one key of a record.

    Attributes:
        kind: the name of its reduction, "average"; empty where nothing is known.
        unit: the unit of the value.
        help: one sentence.
        group: the heading under which it is shown.
        registered: whether the key was declared, or is needed by one that was.
    """

    kind: str = ""
    unit: str = ""
    help: str = ""
    group: str = ""
    registered: bool = False

    @property
    def cumulative(self) -> bool:
        """Whether the value runs on since the run began."""
        return self.kind in ("total", "axis")

    @property
    def rules(self) -> tuple[str, ...]:
        """Which of "min", "max" and "last" sum the whole curve up.

        >>> Description("average").rules, Description("maximum").rules, Description("total").rules
        (('min', 'max', 'last'), ('max', 'last'), ('last',))
        """
        return _RULES.get(self.kind, ("min", "max", "last"))

    @property
    def text(self) -> str:
        """Help text and unit in one line; empty where there is neither.

        >>> Description("count", "pairs", "matched pairs").text
        'matched pairs [pairs]'
        """
        unit = f"[{self.unit}]" if self.unit else ""
        return " ".join(part for part in (self.help, unit) if part)


def describe(registry: Registry | None, key: str, logger: str | None = None) -> Description:
    """What the registry says of a record's key, which bears the prefix of the child `logger`.

    Keys that one declaration makes several of are described by it: ``mem/rank0``, ``mem/max`` and
    ``mem/argmax`` of a value of each rank, ``latency/p50``, and ``loss/nonfinite``, which any key
    may have.

    >>> from distmetrics.registry import Registry
    >>> registry = Registry()
    >>> registry.average("loss", unit="nats", help="cross entropy")
    >>> describe(registry, "val/loss", "val")
    Description(kind='average', unit='nats', help='cross entropy', group='', registered=True)
    >>> describe(registry, "loss/nonfinite").help
    'non-finite values of loss'
    """
    if registry is None:
        return Description()
    metric = _metric(registry, key, logger)
    if metric is not None and metric.registered:
        return _said(metric)
    base, _, part = key.rpartition("/")
    if base and (metric is None or not metric.registered):
        made = _part(registry, base, part, logger)
        if made is not None:
            return made
    return Description() if metric is None else _said(metric)


def describe_foreign(registry: Registry | None, key: str) -> Description:
    """As `describe`, for a key of which it is not known whether a child logged it.

    What stands before the first slash is taken for a child's name where that finds a declaration.
    The bins into which a reader takes a histogram apart, ``len[3]``, are described by their edges.

    >>> from distmetrics.registry import Registry
    >>> registry = Registry()
    >>> registry.average("loss", unit="nats")
    >>> describe_foreign(registry, "val/loss").unit
    'nats'
    """
    head, slash, _ = key.partition("/")
    for logger in (head, None) if slash and head else (None,):
        found = describe(registry, key, logger)
        if not found.registered and registry is not None:
            found = _bin(registry, key, logger) or found
        if found.registered:
            break
    return found


def _bin(registry: Registry, key: str, logger: str | None) -> Description | None:
    """A bin of a histogram; None where the key is none."""
    written = _BIN.fullmatch(key)
    metric = None if written is None else _metric(registry, written[1], logger)
    if written is None or metric is None or metric.reduction is None:
        return None
    if metric.reduction.kind != "histogram":
        return None
    said, place = _said(metric), written[2]
    edges = metric.reduction.params.get("edges", ())
    text = place
    if place.isdigit() and int(place) + 1 < len(edges):
        text = f"from {edges[int(place)]:g} to {edges[int(place) + 1]:g}"
    text = f"{said.help}, {text}" if said.help else text
    return Description(said.kind, "", text, said.group, registered=True)


def _metric(registry: Registry, key: str, logger: str | None) -> Metric | None:
    """The key's metric; None where a strict registry does not know it."""
    prefix = f"{logger}/" if logger else ""
    bare = key.removeprefix(prefix)
    try:
        return registry.resolve(bare, prefix if bare != key else "")
    except UnknownKey:
        return None


def _part(registry: Registry, base: str, part: str, logger: str | None) -> Description | None:
    """A key that is one of several made of `base`; None where it is not."""
    if part == "nonfinite":
        group = describe(registry, base, logger).group
        return Description("count", "", f"non-finite values of {base}", group, registered=True)
    whole = _metric(registry, base, logger)
    if whole is None or not whole.registered:
        return None
    said = _said(whole)
    rank = _RANK.fullmatch(part)
    if rank:
        text = f"of rank {rank[1]}"
    elif part in _PARTS:
        text = _PARTS[part]
    elif _QUANTILE.fullmatch(part):
        text = f"quantile {part[1:]}%"
    elif part == "argmax":
        text = f"rank with the largest {base}"
        return Description(said.kind, "rank", text, said.group, registered=True)
    else:
        return None
    help_text = f"{said.help}, {text}" if said.help else text
    return Description(said.kind, said.unit, help_text, said.group, registered=True)


def _said(metric: Metric) -> Description:
    kind = "" if metric.reduction is None else metric.reduction.kind
    return Description(kind, metric.unit, metric.help, metric.group, metric.registered)
