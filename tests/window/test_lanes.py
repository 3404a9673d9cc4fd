"""Folding: lanes hold exactly what was contributed, however the calls are grouped."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics import exact
from distmetrics.reductions import Counter
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot.table import Key
from distmetrics.window.fold import fold
from distmetrics.window.lanes import Lanes, Slot
from tests.snapshot.taking import Taker

REGISTRY = dm.Registry()
REGISTRY.count("c*")
REGISTRY.average("a*")
REGISTRY.maximum("m*")
REGISTRY.minimum("n*")
REGISTRY.std("d*")
REGISTRY.l2_norm("l*")
REGISTRY.same("s*")
REGISTRY.histogram("h*", edges=[0, 1, 10])
REGISTRY.quantiles("q*", qs=[0.5])
NAMES = ("c0", "c1", "a0", "m0", "n0", "d0", "l0", "s0", "h0", "q0")

INTEGERS = st.integers(-(2**40), 2**40)
FLOATS = st.floats(-1e6, 1e6)
VALUES = (
    INTEGERS
    | FLOATS
    | st.just(1 << 80)
    | st.lists(INTEGERS, min_size=1, max_size=3).map(np.array)
    | st.lists(FLOATS, max_size=3).map(lambda values: np.array(values, np.float64))
)


def accepted(name: str, value: Any) -> bool:
    """Whether a key takes a value: wide integers only where they are summed or counted."""
    if name[0] == "s":
        return np.ndim(value) == 0 and abs(value) < 2**53
    wide = any(abs(v) >= 2**53 for v in np.ravel(value))
    return name[0] in "ca" or not wide


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3),  # the slot
        st.integers(0, 5),  # the step
        st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=4),
    ),
    min_size=1,
    max_size=12,
)


def taken(calls: list[Any], taker: Taker) -> list[tuple[int, int, Snapshot, dict[str, Any]]]:
    """The calls that log anything, with their snapshots."""
    found = []
    for slot, step, outputs in calls:
        kept = {name: value for name, value in outputs.items() if accepted(name, value)}
        snapshot = taker.take(kept)
        if snapshot is not None:
            found.append((slot, step, snapshot, kept))
    return found


def bits(lanes: Lanes) -> tuple[Any, ...]:
    """Everything a message takes of lanes."""
    dense = exact.dense(lanes.sums, 0, exact.LIMBS)
    tallies = (lanes.tallies.cells.tolist(), lanes.tallies.counts.tolist())
    return dense.tolist(), lanes.counters.tolist(), lanes.maxes.tolist(), tallies


@given(CALLS, st.integers(1, 5))
def test_lanes_do_not_depend_on_how_calls_are_folded(calls: list[Any], size: int) -> None:
    """All slots at once, each alone, or a few calls at a time: the same bits."""
    taker = Taker(REGISTRY)
    table = taker.snapshotter.table
    snapshots = taken(calls, taker)
    together = [Slot() for _ in range(4)]
    alone = [Slot() for _ in range(4)]
    pieces = [Slot() for _ in range(4)]
    for number, (slot, step, snapshot, _) in enumerate(snapshots):
        for slots in (together, alone, pieces):
            slots[slot].pending.append((snapshot, step))
        if number % size == 0:
            fold(pieces, table)
    fold(together, table)
    fold(pieces, table)
    for slot in alone:
        fold([slot], table)
    for a, b, c in zip(together, alone, pieces, strict=True):
        if a.lanes is None:
            assert b.lanes is c.lanes is None
            continue
        assert b.lanes is not None
        assert c.lanes is not None
        assert bits(a.lanes) == bits(b.lanes) == bits(c.lanes.grown(table.extent()))


@given(CALLS)
def test_lanes_hold_what_was_contributed(calls: list[Any]) -> None:
    """Counts, sums, extremes and last values are those of plain Python."""
    taker = Taker(REGISTRY)
    table = taker.snapshotter.table
    snapshots = taken(calls, taker)
    slots = [Slot() for _ in range(4)]
    given: dict[tuple[int, str], list[tuple[int, Any]]] = {}
    for slot, step, snapshot, outputs in snapshots:
        slots[slot].pending.append((snapshot, step))
        for name, value in outputs.items():
            given.setdefault((slot, name), []).extend((step, v) for v in np.ravel(value).tolist())
    fold(slots, table)
    for number, slot in enumerate(slots):
        for key in table:
            contributions = given.get((number, key.name), [])
            if slot.lanes is None:
                assert not contributions
                continue
            assert slot.lanes.counters[key.index, Counter.COUNT] == len(contributions)
            check_key(slot.lanes, key, contributions)


def check_key(lanes: Lanes, key: Key, contributions: list[tuple[int, Any]]) -> None:
    """One key's lanes against its contributions."""
    values = [value for _, value in contributions]
    if key.name[0] in "ca":
        rows = exact.decode(lanes.sums.digits, lanes.sums.lo)
        unit = Fraction(2) ** (32 * lanes.sums.lo - 1088)
        assert rows[key.row] * unit == sum(map(Fraction, values))
    elif key.name[0] == "l":
        rows = exact.decode(lanes.sums.digits, lanes.sums.lo)
        unit = Fraction(2) ** (32 * lanes.sums.lo - 1088)
        squares = [v * v if isinstance(v, int) else float(v) * float(v) for v in values]
        assert rows[key.row] * unit == sum(map(Fraction, squares))
    elif key.name[0] == "s" and contributions:
        step = max(step for step, _ in contributions)
        last = [value for at, value in contributions if at == step][-1]
        fields = lanes.maxes[key.field : key.field + key.reduction.maxes].tolist()
        assert fields[-2:] == [step, -step]
        again = Taker(REGISTRY)
        slot = Slot([(again.take({"s0": last}), step)])  # type: ignore[list-item]
        fold([slot], again.snapshotter.table)
        assert slot.lanes is not None
        assert fields == slot.lanes.maxes.tolist()


def test_lanes_grow_with_the_table() -> None:
    """A key that came later has contributed nothing to a window that was folded before."""
    taker = Taker(REGISTRY)
    table = taker.snapshotter.table
    first = taker.take({"c0": 1, "m0": 2.0})
    assert first is not None
    slot = Slot([(first, 0)])
    fold([slot], table)
    lanes = slot.lanes
    assert lanes is not None
    later = taker.take({"d0": 3.0, "h0": 0.5, "c0": 10})
    assert later is not None
    slot.pending.append((later, 0))
    fold([slot], table)
    key = table.get("c0")
    assert key is not None
    assert slot.lanes is not None
    assert slot.lanes.total(key) == 11
    grown = lanes.grown(table.extent())
    assert grown.total(key) == 1
    assert [grown.total(table.keys[i]) for i in range(2, len(table))] == [None, None]
    assert grown.grown(table.extent()) is grown


def test_a_ratio_of_a_wide_integer_and_nan_is_no_number() -> None:
    """The pair counts as a NaN, however large its numerator is."""
    taker = Taker()
    slot = Slot([(taker.take({"r": dm.Ratio(10**400, float("nan"))}), 0)])
    fold([slot], taker.snapshotter.table)
    assert slot.lanes is not None
    assert slot.lanes.counters[0, Counter.NAN] == 1
