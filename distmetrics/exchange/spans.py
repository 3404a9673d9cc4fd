"""Which buckets of tallies travel: for each tally the span of those that any rank has in use.

As with limbs, a wider span does no harm: what lies in it and is not in use is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

from distmetrics.exchange.schema import Schema, StreamSchema
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.stream import Window, tally_spans
from distmetrics.window.tallies import BUCKETS, NO_BUCKETS, BucketRange

Spans = dict[str, list[BucketRange]]
"""For each stream the spans of its agreed tallies, in their order."""
Told = dict[str, dict[str, list[BucketRange]]]
"""For streams and keys, as a rank says it of keys that are not agreed yet."""


def own_spans(
    stream: StreamSchema, windows: Iterable[Window], table: KeyTable
) -> list[BucketRange]:
    """What this rank's windows use of the agreed tallies."""
    if not stream.table.tallies:
        return []
    used = tally_spans(windows)
    found = [NO_BUCKETS] * stream.table.tallies
    for key in stream.table:
        mine = table.get(key.name)
        if mine is not None and mine.reduction == key.reduction:
            for i in range(key.reduction.tallies):
                found[key.tally + i] = used.get(mine.tally + i, NO_BUCKETS)
    return found


def fields_of(spans: Iterable[BucketRange]) -> list[int]:
    """The spans as fields of which the maximum over ranks is taken."""
    return [field for lo, hi in spans for field in (BUCKETS - lo, hi)]


def from_fields(schema: Schema, fields: Sequence[int]) -> Spans:
    """The spans of all agreed streams, from the merged fields."""
    spans = [
        BucketRange(BUCKETS - lo, hi) for lo, hi in zip(fields[::2], fields[1::2], strict=True)
    ]
    found: Spans = {}
    for stream in schema:
        count = stream.table.tallies
        found[stream.name], spans = spans[:count], spans[count:]
    return found


def told_spans(names: Iterable[str], windows: Iterable[Window], table: KeyTable) -> Any:
    """What this rank's windows use of the tallies of some keys, JSON-able."""
    keys = [key for key in map(table.get, names) if key is not None and key.reduction.tallies]
    if not keys:
        return {}
    used = tally_spans(windows)
    return {
        key.name: [used.get(key.tally + i, NO_BUCKETS) for i in range(key.reduction.tallies)]
        for key in keys
    }


def united(
    stream: StreamSchema, known: Sequence[BucketRange], told: Sequence[Mapping[str, Any]]
) -> list[BucketRange]:
    """The spans of all agreed tallies of a stream: those that are known, and those of later keys.

    Args:
        stream: what is agreed by now.
        known: of its first tallies.
        told: what each rank said, by key.
    """
    found = list(known)
    for key in stream.table:
        for i in range(key.reduction.tallies):
            if key.tally + i < len(known):
                continue
            of = [BucketRange(*said[key.name][i]) for said in told if _fits(said, key.name, i)]
            found.append(reduce(BucketRange.union, of, NO_BUCKETS))
    return found


def _fits(said: Mapping[str, Any], key: str, tally: int) -> bool:
    """Whether a rank has this tally; one that declares the key otherwise may not."""
    return key in said and tally < len(said[key])
