"""The order in which declarations apply to a key, of a logger or of a child."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from distmetrics import reductions
from distmetrics.registry.declarations import Index, Pattern, Referred
from distmetrics.registry.metric import IGNORE, Metric


def look_up(index: Index, key: str, prefix: str, default: str) -> Metric:
    """What a key of the child with this prefix means.

    In this order, for key `loss` of child `val` (for a logger without prefix only 3 to 5):

    1. the name `val/loss`;
    2. a pattern that names the child, that is, matches `val/loss` and not `loss`, and holds a
       slash or begins with the child's name: `val/*`, `*/loss`, `val*`;
    3. the name `loss`;
    4. any other pattern that matches `loss` or `val/loss`: `*`, `*loss`, `l*`;
    5. being needed by another key: its weight, numerator, denominator or `of` is a count; its
       `seconds` is what `default` says;
    6. what `default` says, the name of a reduction or "ignore".

    Step 2 is narrow so that neither a catch-all nor a piece that happens to stand in a child's
    name (`*num*`, child `num_eval`) hides the name `loss`. Among patterns the longer wins, of
    equally long ones the later. A pattern leaves out the keys that its own declaration refers to:
    `average("*", weight="n")` does not average `n`.

    What comes back names the keys it needs as the child's calls do: `average("val/loss",
    weight="val/n")` is looked up as `average(weight="n")`, like `average("val/loss", weight="n")`.
    """
    full = prefix + key
    found = index.names.get(full)
    if found is None and prefix:
        found = _named_child(index, key, prefix) or index.names.get(key)
    if found is None:
        found = _first(index, key, full)
    return _local(found, prefix) if found else _undeclared(index, key, full, default)


def virtual_keys(
    index: Index, key: str, prefix: str, children: tuple[str, ...]
) -> Iterator[tuple[str, Metric]]:
    """The declared ratios and rates that need a key, by their name in the child; maybe twice."""
    for needed in (key, prefix + key) if prefix else (key,):
        for metric in index.referred.get(needed, Referred()).makes:
            name = metric.pattern
            if prefix and name.startswith(prefix):
                yield name[len(prefix) :], metric
            elif not name.startswith(children):
                yield name, metric


def _local(metric: Metric, prefix: str) -> Metric:
    """The metric with the keys it needs under the names used in the child's calls."""
    reduction = metric.reduction
    if (
        reduction is None
        or not prefix
        or not any(name.startswith(prefix) for name in reduction.refers)
    ):
        return metric
    params = {
        name: value.removeprefix(prefix) if value in reduction.refers else value
        for name, value in reduction.params.items()
    }
    return replace(metric, reduction=reductions.make(reduction.kind, **params))


def _named_child(index: Index, key: str, prefix: str) -> Metric | None:
    full, name = prefix + key, prefix.rstrip("/")
    for pattern in index.patterns:
        text = pattern.metric.pattern
        if (
            ("/" in text or text.startswith(name))
            and pattern.matches(full)
            and not pattern.matches(key)
            and not _needs(pattern, key, full)
        ):
            return pattern.metric
    return None


def _first(index: Index, key: str, full: str) -> Metric | None:
    for pattern in index.patterns:
        matches = pattern.matches(key) or (full != key and pattern.matches(full))
        if matches and not _needs(pattern, key, full):
            return pattern.metric
    return None


def _needs(pattern: Pattern, key: str, full: str) -> bool:
    refers = pattern.metric.refers
    return key in refers or full in refers


def _undeclared(index: Index, key: str, full: str, default: str) -> Metric:
    reduction = None if default == IGNORE else reductions.make(default)
    known = [index.referred[name] for name in dict.fromkeys((full, key)) if name in index.referred]
    if not known:
        return Metric(key, reduction, source="default")
    if any(referred.counted for referred in known):
        reduction = reductions.count()
    dimensions = dict.fromkeys(name for referred in known for name in referred.replicated_over)
    return Metric(key, reduction, replicated_over=tuple(dimensions), source="referred")
