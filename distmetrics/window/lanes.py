"""One rank's state of all keys in one window: a few arrays, whatever the number of keys.

`fold` turns snapshots into lanes, many windows and steps at a time, since what costs here is the
number of NumPy calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.exact import Limbs
from distmetrics.reductions import NOTHING, Counter, Reduction, Terms
from distmetrics.snapshot import Plan, Route, Snapshot
from distmetrics.snapshot.table import Extent, Key, KeyTable
from distmetrics.window.tallies import Tallies, summed

Array = NDArray[Any]
Int64Array = NDArray[np.int64]
BLOCK = 256
"""Values of a key in one call from which on they are folded as a block."""


@dataclass
class Lanes:
    """The state of the first `len(counters)` keys of a table.

    Attributes:
        sums: exact rows, `Reduction.sums` for each key.
        counters: int64, shape (keys, len(Counter)).
        maxes: int64, `Reduction.maxes` fields for each key.
        tallies: sparse, `Reduction.tallies` for each key.
    """

    sums: Limbs
    counters: Int64Array
    maxes: Int64Array
    tallies: Tallies

    @classmethod
    def empty(cls, extent: Extent) -> Lanes:
        """The identity: nobody contributed."""
        return cls(
            exact.zeros(extent.rows),
            np.zeros((extent.keys, len(Counter)), np.int64),
            np.full(extent.fields, NOTHING, np.int64),
            Tallies.empty(),
        )

    def grown(self, extent: Extent) -> Lanes:
        """The same state with room for keys that the table has gained."""
        if len(self.counters) == extent.keys:
            return self
        grown = Lanes.empty(extent)
        digits = np.zeros((extent.rows, self.sums.digits.shape[1]), np.int64)
        digits[: self.sums.rows] = self.sums.digits
        grown.sums = Limbs(self.sums.lo, digits)
        grown.counters[: len(self.counters)] = self.counters
        grown.maxes[: len(self.maxes)] = self.maxes
        grown.tallies = self.tallies
        return grown

    def merge(self, later: Lanes, table: KeyTable) -> None:
        """Add the lanes of later calls of this rank; both cover the same keys."""
        exact.merge(self.sums, later.sums)
        self.counters = self.counters + later.counters
        merged = np.maximum(self.maxes, later.maxes)
        for key in table.keys[: len(self.counters)]:
            if key.reduction.keeps_last:
                fields = slice(key.field, key.field + key.reduction.maxes)
                step = fields.stop - 2
                newer = later.maxes[step] >= self.maxes[step]
                merged[fields] = (later if newer else self).maxes[fields]
        self.maxes = merged
        self.tallies = summed((self.tallies, later.tallies))

    def total(self, key: Key) -> int | float | None:
        """This rank's own sum of a key; None where it has none."""
        if key.index >= len(self.counters) or not self.counters[key.index, Counter.COUNT]:
            return None
        row = exact.take(self.sums, slice(key.row, key.row + 1))
        return exact.to_float(exact.decode(row.digits, row.lo)[0], row.lo)


@dataclass
class Slot:
    """Contributions that are reduced to one row: snapshots to be folded, and their lanes so far."""

    pending: list[tuple[Snapshot, int]] = field(default_factory=list)
    waiting: int = 0
    lanes: Lanes | None = None


def fold(slots: Iterable[Slot], table: KeyTable) -> None:
    """Fold the pending snapshots of every slot into its lanes."""
    todo = [slot for slot in slots if slot.pending]
    if not todo:
        return
    extent = table.extent()
    batch = _Batch(len(todo), extent)
    for plan, members in _by_plan(todo).items():
        _fold_plan(batch, plan, members)
    batch.add_few()
    exact.normalize(batch.sums)
    tallies = summed(batch.tallies)
    for position, slot in enumerate(todo):
        lanes = batch.part(position, tallies)
        if slot.lanes is None:
            slot.lanes = lanes
        else:
            slot.lanes = slot.lanes.grown(extent)
            slot.lanes.merge(lanes, table)
            exact.normalize(slot.lanes.sums)  # keeps the room that sums over ranks need
        slot.pending, slot.waiting = [], 0


class _Batch:
    """The lanes of several slots as single arrays."""

    def __init__(self, slots: int, extent: Extent) -> None:
        self.rows, self.keys, self.fields, self.each = extent
        self.sums = exact.zeros(slots * self.rows)
        self.counters = np.zeros((slots * self.keys, len(Counter)), np.int64)
        self.maxes = np.full(slots * self.fields, NOTHING, np.int64)
        self.moments = np.full(slots * self.fields, NOTHING, np.int64)
        self.tallies: list[Tallies] = []
        self.few: list[tuple[int, Array]] = []

    def add_few(self) -> None:
        """Add what blocks were condensed to: rows of `sums`, and some values for each."""
        for dtype in {values.dtype for _, values in self.few}:
            pairs = [pair for pair in self.few if pair[1].dtype == dtype]
            rows = np.repeat([row for row, _ in pairs], [len(values) for _, values in pairs])
            exact.add(self.sums, rows, np.concatenate([values for _, values in pairs]))

    def part(self, position: int, tallies: Tallies) -> Lanes:
        """One slot's lanes.

        Args:
            position: the slot's.
            tallies: those of all slots, one slot after another.
        """
        return Lanes(
            exact.take(self.sums, slice(position * self.rows, (position + 1) * self.rows)),
            self.counters[position * self.keys : (position + 1) * self.keys],
            self.maxes[position * self.fields : (position + 1) * self.fields],
            tallies.part(position * self.each, (position + 1) * self.each),
        )


_Member = tuple[int, Snapshot, int]
"""A slot's position, a snapshot, its moment: the step, and below it the number of the call."""
_CALLS = 12
"""Bits for the number of a call."""


def _by_plan(slots: list[Slot]) -> dict[Plan, list[_Member]]:
    found: dict[Plan, list[_Member]] = {}
    for position, slot in enumerate(slots):
        for call, (snapshot, step) in enumerate(slot.pending):
            member = (position, snapshot, (step << _CALLS) + call)
            found.setdefault(snapshot.plan, []).append(member)
    return found


def _fold_plan(batch: _Batch, plan: Plan, members: list[_Member]) -> None:
    scalars = [member for member in members if member[1].sizes is None]
    if scalars:
        _fold_scalars(batch, plan, scalars)
    for member in members:
        if member[1].sizes is not None:
            _fold_arrays(batch, plan, member)


def _fold_scalars(batch: _Batch, plan: Plan, members: list[_Member]) -> None:
    """Snapshots whose columns are one number each, as one matrix for each array."""
    count = len(members)
    matrices = [
        np.concatenate(parts).reshape(count, -1)
        for parts in zip(*(snapshot.arrays for _, snapshot, _ in members), strict=True)
    ]
    slots = np.array([position for position, _, _ in members], np.int64)
    moments = np.array([moment for _, _, moment in members], np.int64)
    for route in plan.routes:
        width = len(route.keys)
        x = _columns(matrices[route.values[0]], route.values[1])
        w = (
            None
            if route.weights is None
            else _columns(matrices[route.weights[0]], route.weights[1])
        )
        _contribute(
            batch,
            route,
            x.reshape(-1),
            None if w is None else w.reshape(-1),
            np.repeat(slots, width),
            np.tile(np.arange(width), count),
            np.repeat(moments, width),
        )


def _columns(matrix: Array, columns: tuple[int, ...]) -> Array:
    if len(columns) == matrix.shape[1] and columns == tuple(range(len(columns))):
        return matrix
    return matrix[:, list(columns)]


def _fold_arrays(batch: _Batch, plan: Plan, member: _Member) -> None:
    """A snapshot with columns of any length."""
    position, snapshot, moment = member
    assert snapshot.sizes is not None
    for route in plan.routes:
        if _fold_blocks(batch, route, member):
            continue
        x, lengths = _pieces(snapshot, *route.values)
        w = None if route.weights is None else _pieces(snapshot, *route.weights)[0]
        which = np.repeat(np.arange(len(lengths)), lengths)
        slots = np.full(len(which), position, np.int64)
        _contribute(batch, route, x, w, slots, which, np.full(len(which), moment, np.int64))


def _parts(snapshot: Snapshot, array: int, columns: tuple[int, ...]) -> list[Array]:
    """The columns of an array."""
    assert snapshot.sizes is not None
    if len(snapshot.sizes[array]) == 1:
        return [snapshot.arrays[array]]
    ends = np.cumsum([0, *snapshot.sizes[array]])
    return [snapshot.arrays[array][ends[c] : ends[c + 1]] for c in columns]


def _pieces(snapshot: Snapshot, array: int, columns: tuple[int, ...]) -> tuple[Array, list[int]]:
    """The columns of an array one after another, and their lengths."""
    parts = _parts(snapshot, array, columns)
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)), [len(part) for part in parts]


def _fold_blocks(batch: _Batch, route: Route, member: _Member) -> bool:
    """Fold the columns of a route as blocks of one key each; False where that does not pay.

    Nor does it where some value takes a closer look: NaN and infinities.
    """
    position, snapshot, _ = member
    x = _parts(snapshot, *route.values)
    if sum(map(len, x)) < BLOCK * len(x) or not all(map(len, x)) or route.reduction.keeps_last:
        return False
    if route.weights is None:
        pairs: list[tuple[Array, Array | None]] = [(values, None) for values in x]
    else:
        pairs = [
            _weighing(route.reduction, *pair)
            for pair in zip(x, _parts(snapshot, *route.weights), strict=True)
        ]
    blocks = []
    for values, weights in pairs:
        block = _block(route.reduction, values, weights) if len(values) else Terms()
        if block is None:
            return False
        blocks.append((block, len(values)))
    for key, (block, count) in zip(route.keys, blocks, strict=True):
        _add_block(batch, route, key, block, position, count)
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


def _add_block(batch: _Batch, route: Route, key: Key, terms: Terms, slot: int, count: int) -> None:
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


def _contribute(
    batch: _Batch,
    route: Route,
    x: Array,
    w: Array | None,
    slots: Int64Array,
    which: Int64Array,
    moments: Int64Array,
) -> None:
    """Add contributions `x`, weights `w`: of key `which` of the route, in slot `slots`."""
    reduction = route.reduction
    indexes = np.array([key.index for key in route.keys], np.int64)
    cells = slots * batch.keys + indexes[which]
    keep = np.ones(len(x), bool)
    if w is not None and not reduction.pairs:
        keep &= (w != 0).astype(bool)  # as in `_weighing`
    if route.floats or (reduction.pairs and route.weight_floats):
        finite = _finite(x) & (_finite(w) if reduction.pairs and w is not None else True)
        if not finite.all():
            _count_nonfinite(batch, x, w if reduction.pairs else None, cells, keep & ~finite)
            if not reduction.keeps_last:
                keep &= finite
    if not keep.all():
        x, cells, slots, which = x[keep], cells[keep], slots[keep], which[keep]
        moments = moments[keep]
        w = None if w is None else w[keep]
    if not len(x):
        return
    terms = reduction.contribute(x, w)
    beyond = _beyond_range(terms, len(x))
    if beyond is not None:  # as a whole, so that sums and weights stay of the same contributions
        _count_nonfinite(batch, beyond, None, cells, ~np.isfinite(beyond))
        keep = np.isfinite(beyond)
        x, cells, slots, which = x[keep], cells[keep], slots[keep], which[keep]
        moments = moments[keep]
        w = None if w is None else w[keep]
        if not len(x):
            return
        terms = reduction.contribute(x, w)
    counts = np.bincount(cells, minlength=len(batch.counters))
    batch.counters[:, Counter.COUNT] += counts
    if route.floats:
        batch.counters[:, Counter.FLOATS] += counts
    if w is None:
        batch.counters[:, Counter.PLAIN] += counts
    elif route.weight_floats:
        batch.counters[:, Counter.WEIGHT_FLOATS] += counts
    _add_sums(batch, route, terms, slots, which)
    _add_maxes(batch, route, terms, slots, which, moments)
    _add_tallies(batch, route, terms, slots, which)


def _beyond_range(terms: Terms, count: int) -> Array | None:
    """For each contribution an infinity or NaN if a product of it is beyond float64, else 0.

    None where no product is.
    """
    found = None
    for _, values in terms.sums:
        finite = _finite(values)
        if not finite.all():
            found = np.zeros(count) if found is None else found
            found = np.where(np.isfinite(found) & ~finite, values, found)
    return found


def _add_sums(
    batch: _Batch,
    route: Route,
    terms: Terms,
    slots: Int64Array,
    which: Int64Array,
) -> None:
    if not terms.sums:
        return
    rows = np.array([key.row for key in route.keys], np.int64)
    first = slots * batch.rows + rows[which]
    for row, values in terms.sums:
        exact.add(batch.sums, first + row, values)


def _add_maxes(
    batch: _Batch,
    route: Route,
    terms: Terms,
    slots: Int64Array,
    which: Int64Array,
    moments: Int64Array,
) -> None:
    if not terms.maxes:
        return
    fields = np.array([key.field for key in route.keys], np.int64)
    first = slots * batch.fields + fields[which]
    if not route.reduction.keeps_last:
        for offset, images in terms.maxes:
            np.maximum.at(batch.maxes, first + offset, images)
        return
    newer = np.flatnonzero(moments > batch.moments[first])
    # of equal indices NumPy keeps the last assignment
    newer = newer[np.argsort(moments[newer], kind="stable")]
    batch.moments[first[newer]] = moments[newer]
    steps = moments >> _CALLS
    for offset, images in (
        *terms.maxes,
        (route.reduction.maxes - 2, steps),
        (route.reduction.maxes - 1, -steps),
    ):
        batch.maxes[first[newer] + offset] = images[newer]


def _add_tallies(
    batch: _Batch, route: Route, terms: Terms, slots: Int64Array, which: Int64Array
) -> None:
    if not terms.tallies:
        return
    tallies = np.array([key.tally for key in route.keys], np.int64)
    first = slots * batch.each + tallies[which]
    for offset, buckets in terms.tallies:
        met = buckets >= 0
        batch.tallies.append(Tallies.counted(first[met] + offset, buckets[met]))


def _finite(values: Array | None) -> Array:
    if values is None or values.dtype.kind != "f":
        return np.ones(0 if values is None else len(values), bool)
    return np.isfinite(values)


def _count_nonfinite(
    batch: _Batch, x: Array, w: Array | None, cells: Int64Array, where: Array
) -> None:
    """Count NaN, inf and -inf among the values; a pair with a non-finite denominator is a NaN."""
    values = x[where].astype(np.float64)
    if w is not None:
        values[~_finite(w[where])] = np.nan
    cells = cells[where]
    for counter, found in (
        (Counter.NAN, np.isnan(values)),
        (Counter.POSITIVE_INFINITY, values == np.inf),
        (Counter.NEGATIVE_INFINITY, values == -np.inf),
    ):
        np.add.at(batch.counters[:, counter], cells[found], 1)
