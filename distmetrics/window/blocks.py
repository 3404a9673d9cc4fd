"""Tensors of many values of one key, folded as blocks: a few NumPy calls for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.reductions import Counter, Reduction, Terms
from distmetrics.snapshot import Route, Snapshot
from distmetrics.snapshot.table import Key
from distmetrics.window.batch import Batch
from distmetrics.window.tallies import Tallies

Array = NDArray[Any]
BLOCK = 256
"""Values of a key in one call from which on they are folded as a block."""


def columns_of(snapshot: Snapshot, array: int, columns: tuple[int, ...]) -> list[Array]:
    """The columns of an array."""
    assert snapshot.sizes is not None
    if len(snapshot.sizes[array]) == 1:
        return [snapshot.arrays[array]]
    ends = np.cumsum([0, *snapshot.sizes[array]])
    return [snapshot.arrays[array][ends[c] : ends[c + 1]] for c in columns]


def fold_blocks(batch: Batch, route: Route, snapshot: Snapshot, slot: int) -> bool:
    """Fold the columns of a route as blocks of one key each; False where that does not pay.

    Nor does it where some value takes a closer look: NaN and infinities.
    """
    x = columns_of(snapshot, *route.values)
    if sum(map(len, x)) < BLOCK * len(x) or not all(map(len, x)) or route.reduction.keeps_last:
        return False
    if route.weights is None:
        pairs: list[tuple[Array, Array | None]] = [(values, None) for values in x]
    else:
        pairs = [
            _weighing(route.reduction, *pair)
            for pair in zip(x, columns_of(snapshot, *route.weights), strict=True)
        ]
    blocks = []
    for values, weights in pairs:
        block = _block(route.reduction, values, weights) if len(values) else Terms()
        if block is None:
            return False
        blocks.append((block, len(values)))
    for key, (block, count) in zip(route.keys, blocks, strict=True):
        _add_block(batch, route, key, block, slot, count)
    return True


def _weighing(reduction: Reduction, x: Array, w: Array) -> tuple[Array, Array]:
    """The contributions but those of weight zero, which are none, even where they are NaN."""
    keep = np.ones(len(w), bool) if reduction.pairs else (w != 0).astype(bool)
    return (x, w) if keep.all() else (x[keep], w[keep])


def _block(reduction: Reduction, x: Array, w: Array | None) -> Terms | None:
    """What many contributions of a key add, their sums condensed; None: it takes a closer look."""
    if reduction.block is not None and w is None:
        terms = reduction.block(x)
        if terms is not None:
            return terms
    few = None
    if reduction.sums and w is None:
        few = exact.condensed(x)  # which looks at them all; often the sum itself
        if few is None:
            return None
    elif not _is_finite(x) or (w is not None and not _is_finite(w)):
        return None
    terms = reduction.contribute(x, w)
    if not terms.sums:
        return terms
    sums = []
    for row, values in terms.sums:
        condensed = few if values is x and few is not None else exact.condensed(values)
        if condensed is None:  # a product beyond the range of float64
            return None
        sums.append((row, condensed))
    return replace(terms, sums=tuple(sums))


def _add_block(batch: Batch, route: Route, key: Key, terms: Terms, slot: int, count: int) -> None:
    """Add many contributions of one key, all of them finite and none without weight."""
    counters = batch.counters[slot * batch.keys + key.index]
    counters[Counter.COUNT] += count
    counters[Counter.FLOATS] += count * route.floats
    counters[Counter.PLAIN] += count * (route.weights is None)
    counters[Counter.WEIGHT_FLOATS] += count * route.weight_floats
    for row, values in terms.sums:
        batch.few.append((slot * batch.rows + key.row + row, values))
    for offset, images in terms.maxes:
        field = slot * batch.fields + key.field + offset
        batch.maxes[field] = max(batch.maxes[field], images.max())
    for offset, buckets in terms.tallies:
        met = buckets[buckets >= 0]
        tally = np.full(len(met), slot * batch.each + key.tally + offset, np.int64)
        batch.tallies.append(Tallies.counted(tally, met))
    for offset, buckets, counts in terms.counted:
        tally_of = slot * batch.each + key.tally + offset
        batch.tallies.append(Tallies.of_one(tally_of, buckets, counts))


def _is_finite(values: Array) -> bool:
    """Whether all are: an extreme is NaN or infinite where any value is."""
    if values.dtype.kind != "f":
        return True
    return bool(np.isfinite(values.max()) and np.isfinite(values.min()))
