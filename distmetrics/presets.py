"""Ready sets of declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distmetrics.registry import Registry

_MATCHING = {
    "num_pairs": ("pairs", "pairs of a query and an instance that were matched"),
    "queries_total": ("queries", "queries in the batch"),
    "gt_instances_total": ("instances", "ground-truth instances in the batch"),
    "unmatched_queries": ("queries", "queries that no instance was matched to"),
    "unmatched_gt": ("instances", "ground-truth instances that no query was matched to"),
}

MATCHING_COUNT_SUFFIXES = tuple(_MATCHING)
"""Keys that end so are counts in models which match queries to ground-truth instances."""


def matching_counts(registry: Registry) -> None:
    """Registers the counts of models that match queries to instances, in group "matching".

    Every key that ends in one of `MATCHING_COUNT_SUFFIXES` is then a count: `num_pairs`,
    `head0_num_pairs`, `val/num_pairs`. Call it before declarations of your own that shall win
    over these patterns; exact names win anyway.

    >>> from distmetrics.registry import Registry
    >>> registry = Registry()
    >>> matching_counts(registry)
    >>> print(registry["head0_num_pairs"], registry["head0_num_pairs"].unit)
    count() pairs
    """
    for suffix, (unit, text) in _MATCHING.items():
        registry.count(f"*{suffix}", unit=unit, help=text, group="matching")
