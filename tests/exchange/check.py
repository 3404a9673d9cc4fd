"""Whether what a schedule came to is what the oracle owes."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from distmetrics.exchange.message import Row
from distmetrics.exchange.schema import COLLECTIVE, prefix_of
from distmetrics.record import Record
from distmetrics.window.labels import step_of
from tests.exchange.driver import Driver, conflicts_of, driven, held
from tests.exchange.oracle import Expected, RowId, Values, sums
from tests.exchange.program import Schedule

ROUND = re.compile(r"MG?(SMG?)?")
"""The collectives of a round: a header, an exchange where a flag is up, the lanes, doubts."""


def check(schedule: Schedule) -> Driver:
    """Run a schedule and compare rows, records, calls and rounds with what is owed."""
    with driven(schedule) as driver:
        for kinds in driver.kinds:
            assert ROUND.fullmatch(kinds), f"a round of the collectives {kinds}"
        owed = _owed(driver)
        _check_rows(driver, owed)
        _check_order(driver.rows)
        _check_records(driver, owed)
        _check_conflicts(driver)
    return driver


ASIDE = {"x0"}
"""Keys that may be set aside, since they are declared in two ways."""


def _owed(driver: Driver) -> dict[RowId, Expected]:
    clashing = driver.schedule.clashing
    return {
        row_id: row
        for row_id, row in driver.oracle.rows.items()
        if row.given and row_id[0] not in clashing
    }


def _check_rows(driver: Driver, owed: dict[RowId, Expected]) -> None:
    found: dict[RowId, Row] = {}
    for row in driver.rows:
        if row.stream.name.startswith(COLLECTIVE):
            continue
        row_id = (row.stream.name, row.label, row.late)
        assert row_id not in found, f"row {row_id} comes twice"
        found[row_id] = row
        if row.stream.name in driver.schedule.clashing:
            continue
        mine = _without(held(row), ASIDE)
        expected = owed.get(row_id, Expected(None))
        theirs = _without(sums(expected.given), ASIDE)
        assert _summed(mine) == _summed(theirs), f"row {row_id}: {mine} is not {theirs}"
        if expected.given:
            steps = sorted(expected.steps)
            assert tuple(row.steps) == (steps[0], steps[-1], len(steps)), f"steps of {row_id}"
    missing = [row_id for row_id in owed if row_id not in found]
    assert not missing, f"rows {missing[:4]} are missing"


def _without(found: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key not in keys}


def _summed(found: dict[str, tuple[int, int, int]]) -> dict[str, tuple[int, ...]]:
    """What the lanes add up: extremes and `same` only count."""
    kept: dict[str, tuple[int, ...]] = {}
    for key, (total, weight, count) in found.items():
        if key[0] in "ct":
            kept[key] = (total, count)
        elif key[0] == "a":
            kept[key] = (total, weight, count)
        else:
            kept[key] = (count,)
    return kept


def _check_order(rows: list[Row]) -> None:
    """Law 7: windows in order, the late steps before the window that they travel with."""
    last: dict[str, tuple[int, float]] = {}
    for row in rows:
        at = (row.label, float("inf") if row.late is None else row.late)
        assert at > last.get(row.stream.name, (-1, 0.0)), f"{row.stream.name!r} {at} comes too late"
        last[row.stream.name] = at


def _check_records(driver: Driver, owed: dict[RowId, Expected]) -> None:
    """Rank 0's sink has the record of each row, with values of a single process."""
    values = Values()
    expected: list[tuple[Any, ...]] = []
    for row in driver.rows:
        name = row.stream.name
        one = owed.get((name, row.label, row.late))
        if one is None:
            continue
        steps = sorted(one.steps)
        numbers = values.of(name, one, ASIDE)
        if numbers:
            expected.append(
                (name or None, steps[-1], steps[0], step_of(row.label), row.late, numbers)
            )
    found = []
    for record in driver.ranks[0].memory.records:
        if record.logger not in driver.schedule.clashing:
            told = _told(record)
            if told[-1]:
                found.append(told)
    assert found == expected


def _told(record: Record) -> tuple[Any, ...]:
    prefix = f"{record.logger}/" if record.logger else ""
    hidden = {prefix + key for key in ASIDE}
    numbers = {key: value for key, value in record.values.items() if key not in hidden}
    late = record.step if record.late else None
    return (record.logger, record.step, record.first_step, record.window, late, numbers)


def _check_conflicts(driver: Driver) -> None:
    """A conflict is told once, on every rank alike; only where there is one."""
    told = [conflicts_of(rank) for rank in driver.ranks]
    assert all(texts == told[0] for texts in told)
    owed = Counter(
        f"key '{prefix_of(name)}x0'"
        for name, sides in driver.oracle.sides("x0").items()
        if len(sides) == 2 and name not in driver.schedule.clashing
    )
    owed.update(
        f"child '{name}'"
        for name, ranks in driver.oracle.made().items()
        if name in driver.schedule.clashing and len({rank % 2 for rank in ranks}) == 2
    )
    found = Counter(" ".join(text.split()[:2]) for text in told[0])
    for name in driver.schedule.clashing:
        found.pop(f"key '{name}/x0'", None)  # it may be seen before the child is set aside
    assert found == owed
