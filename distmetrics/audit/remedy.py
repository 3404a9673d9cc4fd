"""What to change: one line of registry code for each verdict."""

from __future__ import annotations

import json
import re

from distmetrics.audit.verdict import Kind
from distmetrics.runs import Declared

_EXTREME = re.compile(r"(^|[^a-z])(max|maximum|min|minimum)([^a-z]|$)")
_COUNT = re.compile(r"token|sample|example|image|sequence|pairs|items|count|seen|num_|(^|/)n(_|$)")
_LOSS = re.compile(
    r"loss|nll|perplex|entropy|(^|[^a-z])(acc|accuracy|err|error|mean|avg)([^a-z]|$)"
)


def quoted(key: str) -> str:
    r"""A key as Python code.

    >>> print(quoted('a"b'))
    "a\"b"
    """
    return json.dumps(key, ensure_ascii=False)


def looks_like_mean(key: str) -> bool:
    """Whether a key has the name of something that is averaged."""
    return _LOSS.search(key.lower()) is not None


def looks_like_count(key: str) -> bool:
    """Whether a key has the name of something that is counted."""
    return _COUNT.search(key.lower()) is not None and not looks_like_mean(key)


def extreme(key: str) -> str | None:
    """The reduction "maximum" or "minimum" for a key named like one, else None."""
    found = _EXTREME.search(key.lower())
    return None if found is None else ("maximum" if found[2].startswith("max") else "minimum")


def remedy(
    kind: Kind,
    key: str,
    declared: Declared | None = None,
    weight: str | None = None,
    *,
    whole: bool = False,
) -> str:
    """One line of registry code for a verdict.

    Args:
        kind: the verdict.
        key: the key.
        declared: what the run declares of it now.
        weight: the key that holds the sizes of the parts, where one is known.
        whole: all values are whole numbers.

    >>> print(remedy(Kind.SHRINKS_WITH_RANKS, "num_pairs"))
    registry.count("num_pairs")  # a count is being averaged over the ranks: sum it
    """
    name = quoted(key)
    now = None if declared is None else declared.reduction
    if kind in {Kind.GROWS_WITH_RANKS, Kind.SHRINKS_WITH_RANKS}:
        return _linear(kind, key, now, whole=whole)
    if kind in {Kind.GROWS_WITH_SQRT, Kind.SHRINKS_WITH_SQRT}:
        return _root(kind, name)
    if kind in {Kind.WEIGHTING, Kind.RANK_LOCAL} and whole and not extreme(key):
        return (
            f"registry.count({name})  # count each sample once, on the rank that has it: a padded "
            "one adds 0"
        )
    if kind in {Kind.WEIGHTING, Kind.RANK_LOCAL}:
        return _average(kind, key, weight)
    if kind is Kind.CONSTANT_FACTOR:
        return _factor(key, now)
    comment = _COMMENTS[kind]
    return f"registry.{_method(key, now)}({name}{_EXTRA.get(kind, '')})  # {comment}"


_EXTRA = {Kind.EXPECTED_SCALING: ', scaling="extensive"', Kind.NONFINITE: ', nonfinite="skip"'}
_COMMENTS = {
    Kind.MISSING: "log it on any rank in every run: ranks that do not log a key add nothing",
    Kind.NONFINITE: "look for its cause first: the values are not finite in some runs only",
    Kind.UNDECIDED: "compare more steps, or a third world size, to tell the cause",
    Kind.NOISE: "nothing to change: the runs differ in data order or in random numbers",
    Kind.DRIFT: "nothing to change: rounding in the training itself, not the logging",
    Kind.EXPECTED_SCALING: "as declared: it may depend on the number of ranks",
    Kind.CLOSE: "nothing to change",
    Kind.IDENTICAL: "nothing to change",
}


def _method(key: str, now: str | None) -> str:
    known = {"count", "total", "average", "minimum", "maximum", "std", "l2_norm", "same"}
    if now in known:
        return str(now)
    return extreme(key) or "average"


def _linear(kind: Kind, key: str, now: str | None, *, whole: bool) -> str:
    name = quoted(key)
    if now == "same":
        return (
            f"registry.same({name})  # the value itself follows the number of ranks: set it alike"
        )
    if kind is Kind.GROWS_WITH_RANKS:
        if now in {"count", "total"}:
            return (
                f'registry.{now}({name}, replicated_over=("tensor",))  # every replica adds the '
                "whole; if it is a mean: registry.average"
            )
        if whole and looks_like_count(key):
            return (
                f'registry.count({name}, replicated_over=("tensor",))  # each rank counts the '
                "whole: count each sample on one rank only; if it is a mean: registry.average"
            )
        return f"registry.average({name})  # a mean is being summed over the ranks: average it"
    if now in {"count", "total"}:
        return (
            f"registry.{now}({name})  # as declared, but the ranks' parts shrink: log each rank's "
            "own part, undivided"
        )
    if looks_like_mean(key):
        return (
            f"registry.average({name})  # summed over accumulation steps, or divided by the ranks "
            f"twice: log each micro-batch's mean; if it is a count: registry.count({name})"
        )
    return f"registry.count({name})  # a count is being averaged over the ranks: sum it"


def _root(kind: Kind, name: str) -> str:
    if kind is Kind.SHRINKS_WITH_SQRT:
        return (
            f"registry.l2_norm({name})  # it is the norm of one shard: root of the sum of all "
            "shards' squares"
        )
    return (
        f'registry.l2_norm({name}, replicated_over=("replicate",))  # replicas hold the same '
        "values: only one of each set may count"
    )


def _average(kind: Kind, key: str, weight: str | None) -> str:
    name = quoted(key)
    if found := extreme(key):
        return f"registry.{found}({name})  # over all ranks, not one rank's, nor a mean of them"
    weighted = f"registry.average({name}, weight={quoted(weight or 'num_samples')})"
    if kind is Kind.RANK_LOCAL:
        return f"{weighted}  # one rank's own value is logged: reduce it over all ranks"
    return f"{weighted}  # parts of unequal size count alike: weigh each by its size, padding by 0"


def _factor(key: str, now: str | None) -> str:
    name = quoted(key)
    if looks_like_mean(key) and now not in {"count", "total"}:
        return (
            f"registry.average({name})  # k times: summed over k accumulation steps or replicas; "
            "log each micro-batch's mean"
        )
    method = now if now in {"count", "total", "average", "l2_norm"} else "count"
    return (
        f'registry.{method}({name}, replicated_over=("tensor",))  # k times: counted by k replicas '
        "(tensor-parallel peers), or in k accumulation steps"
    )
