"""The schedules find bugs: each that is planted here makes some schedule fail."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.exchange import plants
from tests.exchange.check import check
from tests.exchange.plants import Plant
from tests.exchange.program import Schedule
from tests.exchange.schedules import schedules

COMMON = (
    plants.mix_two_windows,
    plants.mix_two_keys,
    plants.learn_in_any_order,
    plants.use_newer_watermarks,
    plants.promise_the_reached_step,
    plants.send_twice,
)
"""Bugs that show in many schedules."""


class FoundError(Exception):
    """A schedule has failed."""


@pytest.mark.parametrize("plant", COMMON, ids=lambda plant: plant.__name__)
def test_a_planted_bug_makes_a_schedule_fail(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that mix windows or keys, or that come twice, are seen."""
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
    @given(schedules())
    def run(schedule: Schedule) -> None:
        try:
            check(schedule)
        except Exception as error:
            raise FoundError from error

    with pytest.raises(FoundError):
        run()
