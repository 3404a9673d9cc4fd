"""Whether two registries give the same values: their common form, a fingerprint, a difference."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable
from typing import Any

from distmetrics.registry.metric import Metric

Run = tuple[tuple[Any, ...], list[str]]
"""A meaning, and the patterns of one length that are declared with it one after the other."""


def fingerprint(metrics: Iterable[Metric], default: str, strict: bool) -> str:
    """A hash of all that changes values: 32 hexadecimal digits, the same in every process.

    Units, help texts, groups and scaling classes do not count, nor does the order of declarations
    where it has no effect.
    """
    metrics = list(metrics)
    names = sorted((metric.pattern, metric.meaning) for metric in metrics if metric.exact)
    form = {"default": default, "strict": strict, "names": names, "patterns": _runs(metrics)}
    text = json.dumps(form, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def difference(
    here: Iterable[Metric], there: Iterable[Metric], names: tuple[str, str]
) -> str | None:
    """The first key that two registries declare differently, with both declarations; or None."""
    mine = {metric.pattern: metric for metric in here}
    other = {metric.pattern: metric for metric in there}
    for text in dict.fromkeys((*mine, *other)):
        one, two = mine.get(text), other.get(text)
        if one is None or two is None or one.meaning != two.meaning:
            return f"{text!r} is {_said(one)} in {names[0]} and {_said(two)} in {names[1]}"
    for run, its in zip(_runs(mine.values()), _runs(other.values()), strict=False):
        if run != its:
            texts = sorted({*run[1], *its[1]})
            return (
                f"of the equally long patterns {', '.join(map(repr, texts))} the later wins, and "
                f"{names[0]} and {names[1]} declare them in a different order"
            )
    return None


def _said(metric: Metric | None) -> str:
    return "not declared" if metric is None else str(metric)


def _runs(metrics: Iterable[Metric]) -> list[Run]:
    """All patterns in order of precedence, as far as it can matter.

    Only among patterns of one length does the order of declarations count, and there only between
    different meanings, so that neighbours of one meaning are sorted.
    """
    patterns = [metric for metric in metrics if not metric.exact]
    patterns.sort(key=lambda metric: -len(metric.pattern))
    return [
        (meaning, sorted(metric.pattern for metric in run))
        for (_, meaning), run in itertools.groupby(
            patterns, key=lambda metric: (len(metric.pattern), metric.meaning)
        )
    ]
