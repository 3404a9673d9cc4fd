"""Any schedule of training events and collectives gives every contribution once, in its place."""

from __future__ import annotations

from hypothesis import given, settings

from tests.exchange.check import check
from tests.exchange.program import Schedule
from tests.exchange.schedules import schedules


@settings(max_examples=300, deadline=None, derandomize=True)
@given(schedules())
def test_every_contribution_reaches_its_row_once(schedule: Schedule) -> None:
    """Rows hold what the ranks logged for their window and key, whoever acts when."""
    check(schedule)
