"""Folds snapshots into lanes, many windows and steps at a time.

What costs here is the number of NumPy calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distmetrics import exact
from distmetrics.reductions import Counter, Terms
from distmetrics.snapshot import Plan, Route, Snapshot
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.batch import Batch
from distmetrics.window.blocks import columns_of, fold_blocks
from distmetrics.window.lanes import Slot
from distmetrics.window.tallies import Tallies, summed

Array = NDArray[Any]
Int64Array = NDArray[np.int64]


def fold(slots: Iterable[Slot], table: KeyTable) -> None:
    """Fold the pending snapshots of every slot into its lanes."""
    todo = [slot for slot in slots if slot.pending]
    if not todo:
        return
    extent = table.extent()
    batch = Batch(len(todo), extent)
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


def _fold_plan(batch: Batch, plan: Plan, members: list[_Member]) -> None:
    scalars = [member for member in members if member[1].sizes is None]
    if scalars:
        _fold_scalars(batch, plan, scalars)
    for member in members:
        if member[1].sizes is not None:
            _fold_arrays(batch, plan, member)


def _fold_scalars(batch: Batch, plan: Plan, members: list[_Member]) -> None:
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
        given = _Given(
            x.reshape(-1),
            None if w is None else w.reshape(-1),
            np.repeat(slots, width),
            np.tile(np.arange(width), count),
            np.repeat(moments, width),
        )
        _contribute(batch, route, given)


def _columns(matrix: Array, columns: tuple[int, ...]) -> Array:
    if len(columns) == matrix.shape[1] and columns == tuple(range(len(columns))):
        return matrix
    return matrix[:, list(columns)]


def _fold_arrays(batch: Batch, plan: Plan, member: _Member) -> None:
    """A snapshot with columns of any length."""
    position, snapshot, moment = member
    assert snapshot.sizes is not None
    for route in plan.routes:
        if fold_blocks(batch, route, snapshot, position):
            continue
        x, lengths = _pieces(snapshot, *route.values)
        w = None if route.weights is None else _pieces(snapshot, *route.weights)[0]
        which = np.repeat(np.arange(len(lengths)), lengths)
        slots = np.full(len(which), position, np.int64)
        moments = np.full(len(which), moment, np.int64)
        _contribute(batch, route, _Given(x, w, slots, which, moments))


def _pieces(snapshot: Snapshot, array: int, columns: tuple[int, ...]) -> tuple[Array, list[int]]:
    """The columns of an array one after another, and their lengths."""
    parts = columns_of(snapshot, array, columns)
    return (parts[0] if len(parts) == 1 else np.concatenate(parts)), [len(part) for part in parts]


class _Given(NamedTuple):
    """Contributions of the keys of a route, in one window or several; all arrays are as long.

    Attributes:
        x: the values.
        w: their weights or denominators, None where each weighs 1.
        slots: the window of each.
        which: the key of each, counted among those of the route.
        moments: when it was logged.
    """

    x: Array
    w: Array | None
    slots: Int64Array
    which: Int64Array
    moments: Int64Array

    def where(self, keep: Array) -> _Given:
        """Some of them."""
        if keep.all():
            return self
        w = None if self.w is None else self.w[keep]
        return _Given(self.x[keep], w, self.slots[keep], self.which[keep], self.moments[keep])


def _contribute(batch: Batch, route: Route, given: _Given) -> None:
    reduction = route.reduction
    keep = np.ones(len(given.x), bool)
    if given.w is not None and not reduction.pairs:
        keep &= (given.w != 0).astype(bool)  # as in `_weighing`
    if route.floats or (reduction.pairs and route.weight_floats):
        below = given.w if reduction.pairs else None
        finite = _finite(given.x) & (True if below is None else _finite(below))
        if not finite.all():
            _count_nonfinite(batch, route, given.where(keep & ~finite))
            if not reduction.keeps_last:
                keep &= finite
    given = given.where(keep)
    if not len(given.x):
        return
    terms = reduction.contribute(given.x, given.w)
    beyond = _beyond_range(terms, len(given.x))
    if beyond is not None:  # as a whole, so that sums and weights stay of the same contributions
        finite = np.isfinite(beyond)
        _count_nonfinite(batch, route, given._replace(x=beyond, w=None).where(~finite))
        given = given.where(finite)
        if not len(given.x):
            return
        terms = reduction.contribute(given.x, given.w)
    _count(batch, route, given)
    _add_sums(batch, route, terms, given)
    _add_maxes(batch, route, terms, given)
    _add_tallies(batch, route, terms, given)


def _cells(batch: Batch, route: Route, given: _Given) -> Int64Array:
    """The row of the counters of each contribution."""
    indexes = np.array([key.index for key in route.keys], np.int64)
    return np.asarray(given.slots * batch.keys + indexes[given.which])


def _count(batch: Batch, route: Route, given: _Given) -> None:
    counters = [Counter.COUNT]
    if route.floats:
        counters.append(Counter.FLOATS)
    if given.w is None:
        counters.append(Counter.PLAIN)
    elif route.weight_floats:
        counters.append(Counter.WEIGHT_FLOATS)
    cells = _cells(batch, route, given)
    for counter in counters:
        np.add.at(batch.counters[:, counter], cells, 1)


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


def _add_sums(batch: Batch, route: Route, terms: Terms, given: _Given) -> None:
    if not terms.sums:
        return
    rows = np.array([key.row for key in route.keys], np.int64)
    first = given.slots * batch.rows + rows[given.which]
    for row, values in terms.sums:
        exact.add(batch.sums, first + row, values)


def _add_maxes(batch: Batch, route: Route, terms: Terms, given: _Given) -> None:
    if not terms.maxes:
        return
    fields = np.array([key.field for key in route.keys], np.int64)
    first = given.slots * batch.fields + fields[given.which]
    if not route.reduction.keeps_last:
        for offset, images in terms.maxes:
            np.maximum.at(batch.maxes, first + offset, images)
        return
    moments = given.moments
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


def _add_tallies(batch: Batch, route: Route, terms: Terms, given: _Given) -> None:
    if not terms.tallies:
        return
    tallies = np.array([key.tally for key in route.keys], np.int64)
    first = given.slots * batch.each + tallies[given.which]
    for offset, buckets in terms.tallies:
        met = buckets >= 0
        batch.tallies.append(Tallies.counted(first[met] + offset, buckets[met]))


def _finite(values: Array) -> Array:
    return np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), bool)


def _count_nonfinite(batch: Batch, route: Route, given: _Given) -> None:
    """Count NaN, inf and -inf among the values; a pair with a non-finite denominator is a NaN."""
    values = exact.widened(given.x)
    if given.w is not None and route.reduction.pairs:
        values[~_finite(given.w)] = np.nan
    cells = _cells(batch, route, given)
    for counter, found in (
        (Counter.NAN, np.isnan(values)),
        (Counter.POSITIVE_INFINITY, values == np.inf),
        (Counter.NEGATIVE_INFINITY, values == -np.inf),
    ):
        np.add.at(batch.counters[:, counter], cells[found], 1)
