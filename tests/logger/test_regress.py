"""Steps lower than an earlier one are kept under their own step."""

from __future__ import annotations

import pytest

import distmetrics as dm
from distmetrics.errors import InvalidValue
from tests.logger.ranks import records, values, warned


def rows(found: list[dm.Record]) -> list[tuple[int, bool, int]]:
    """Step, lateness and count of each record."""
    return [(record.step, record.late, record.values["n"]) for record in found]  # type: ignore[misc]


def log_steps(*steps: int) -> object:
    """Training code that counts 1 at each step."""

    def train(logger: dm.Logger) -> None:
        for step in steps:
            logger.log({"n": dm.Count(1)}, step=step)

    return train


def test_a_lower_step_is_a_record_of_its_own_and_warned_of_once() -> None:
    """It is reduced with the window of now, and its record is late and bears the step given."""
    with warned("step 3 comes after step 5: it is logged under its own step", times=2):
        found = records(2, log_steps(5, 3, 3, 4, 6))  # type: ignore[arg-type]
    assert rows(found) == [(3, True, 4), (4, True, 2), (5, False, 2), (6, False, 2)]


def test_rows_of_flushed_windows_stay_in_the_order_of_the_calls() -> None:
    """Each flush ends a row, also that of a lower step."""

    def train(logger: dm.Logger) -> None:
        for step in (5, 3, 6):
            logger.log({"n": dm.Count(1)}, step=step)
            logger.flush(step)

    with warned("step 3 comes after step 5"):
        found = records(2, train)
    assert rows(found) == [(5, False, 2), (3, True, 2), (6, False, 2)]


def test_a_lower_step_of_the_open_window_is_no_late_one() -> None:
    """Within its window a step may come in any order."""
    with warned("step 1 comes after step 3"):
        found = records(2, log_steps(0, 3, 1, 2), every=4)  # type: ignore[arg-type]
    assert rows(found) == [(3, False, 2)]


def test_a_lower_step_may_be_an_error() -> None:
    """With on_step_regress='error' the call raises, names both steps and logs nothing."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=4)
        with pytest.raises(InvalidValue, match="step 3 comes after step 4"):
            logger.log({"n": dm.Count(1)}, step=3)
        logger.log({"n": dm.Count(1)}, step=4)

    assert rows(records(2, train, on_step_regress="error")) == [(4, False, 4)]


def test_a_lower_step_may_be_accepted() -> None:
    """With on_step_regress='accept' nothing is said."""
    found = records(2, log_steps(4, 3), on_step_regress="accept")  # type: ignore[arg-type]
    assert rows(found) == [(3, True, 2), (4, False, 2)]


def test_a_lower_step_does_not_become_the_latest() -> None:
    """`latest` keeps the value of the higher step, and shows keys that only the lower one has."""
    seen = {}

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=5)
        logger.flush(5)
        logger.log({"n": dm.Count(7), "old": dm.Count(2)}, step=3)
        logger.flush(3, wait=True)
        seen[dm.get_rank()] = logger.latest

    with warned("step 3"):
        found = records(2, train)
    assert values(found) == [{"n": 2}, {"n": 14, "old": 4}]
    assert seen[0] == seen[1] == {"n": 2, "old": 4}
