"""Any schedule of training events and collectives gives every contribution once, in its place."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.exchange.check import check
from tests.exchange.program import Schedule
from tests.exchange.schedules import schedules

HEALTH = [HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=HEALTH)
@given(schedules())
def test_every_contribution_reaches_its_row_once(schedule: Schedule) -> None:
    """Rows hold what the ranks logged for their window and key, whoever acts when."""
    check(schedule)


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=HEALTH)
@given(schedules(conflicts=True))
def test_conflicts_leave_the_other_keys_right(schedule: Schedule) -> None:
    """A key or child that ranks declare in two ways is told of once and set aside alone."""
    check(schedule)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@settings(max_examples=300, deadline=None, suppress_health_check=HEALTH)
@given(schedules() | schedules(conflicts=True))
def test_many_schedules(schedule: Schedule) -> None:
    """The same for many more schedules, new ones each time."""
    check(schedule)
