"""The schedules find bugs: each that is planted here makes some schedule fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from distmetrics.errors import InvalidValue
from tests.exchange import plants
from tests.exchange import test_regressions as cases
from tests.exchange.check import check
from tests.exchange.plants import Plant
from tests.exchange.program import Schedule
from tests.exchange.schedules import schedules

SCHEDULE: dict[Plant, Callable[[], None]] = {
    plants.use_newer_watermarks: cases.test_a_round_uses_nothing_newer_than_its_beginning,
    plants.forget_the_horizon: cases.test_windows_that_could_not_be_listed_are_waited_for,
    plants.promise_for_streams_not_made: cases.test_a_child_is_waited_for_where_it_is_not_made_yet,
    plants.send_the_first_limbs: cases.test_windows_of_other_sizes_share_a_round,
    plants.hold_nothing: cases.test_what_is_logged_during_a_collective_call_comes_after_it,
    plants.flush_late_steps_backwards: cases.test_late_steps_flushed_alone_make_one_row,
    plants.forget_the_order_of_calls: cases.test_of_equal_steps_the_last_call_counts,
    plants.close_where_promises_stand: cases.test_what_is_open_at_the_end_is_one_row,
    plants.promise_whatever_the_pace: cases.test_evaluations_that_count_epochs_are_not_split,
}
"""Bugs that show in few schedules, and one in which each does."""
COMMON = tuple(plant for plant in plants.PLANTS if plant not in SCHEDULE)
"""Bugs that show in many schedules."""


class FoundError(Exception):
    """A schedule has failed."""


@pytest.mark.parametrize("plant", COMMON, ids=lambda plant: plant.__name__)
def test_a_planted_bug_makes_a_schedule_fail(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that mix windows or keys, come twice, too early or not at all are seen."""
    plant(monkeypatch)

    @settings(
        max_examples=300,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(schedules(conflicts=plant is plants.keep_what_is_set_aside))
    def run(schedule: Schedule) -> None:
        try:
            check(schedule)
        except Exception as error:
            raise FoundError from error

    with pytest.raises(FoundError):
        run()


@pytest.mark.parametrize("plant", SCHEDULE, ids=lambda plant: plant.__name__)
def test_a_planted_bug_fails_its_schedule(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """What once went wrong is seen when it does again."""
    plant(monkeypatch)
    with pytest.raises((AssertionError, InvalidValue)):
        SCHEDULE[plant]()
