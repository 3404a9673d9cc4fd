"""Rates by the wall clock: the slowest rank's time between the ends of windows, without pauses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.logger.clock import Clock
from tests.logger.ranks import records


class FakeTime:
    """A clock for each rank that goes on by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = dict.fromkeys(range(8), 100.0)
        monkeypatch.setattr("distmetrics.logger.clock.time.perf_counter", self.read)

    def read(self) -> float:
        """The rank's own time; workers read none."""
        return self.now[dm.get_rank()]

    def spend(self, seconds: float) -> None:
        """Let time pass on this rank."""
        self.now[dm.get_rank()] += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    """Time that passes only where a test says so."""
    return FakeTime(monkeypatch)


def rates() -> dm.Registry:
    """Tokens for each second, in all and for each device."""
    registry = dm.Registry()
    registry.rate("tokens/s", of="tokens")
    registry.rate("each", of="tokens", per_device=True)
    return registry


def test_a_window_takes_as_long_as_the_slowest_rank(clock: FakeTime) -> None:
    """From the end of the window before to its own end."""

    def train(logger: dm.Logger) -> None:
        for step in range(6):
            clock.spend(0.5 if dm.get_rank() == 1 else 0.25)
            logger.log({"tokens": 10}, step=step)

    found = records(2, train, rates, every=2)
    assert [record.values["tokens/s"] for record in found[1:]] == [40 / 1.0] * 2
    assert [record.values["each"] for record in found[1:]] == [20.0] * 2


def test_pauses_do_not_count(clock: FakeTime) -> None:
    """Time within `pause`, nested or not, is no training time; a checkpoint costs no tokens/s."""

    def train(logger: dm.Logger) -> None:
        for step in range(4):
            clock.spend(0.5)
            with logger.pause():
                clock.spend(1000)
                with logger.pause():
                    clock.spend(1000)
            logger.log({"tokens": 10}, step=step)

    found = records(2, train, rates)
    assert [record.values["tokens/s"] for record in found[1:]] == [40.0] * 3


@pytest.mark.parametrize("every", [None, 5])
def test_a_child_used_within_a_pause_is_at_work(clock: FakeTime, every: int | None) -> None:
    """An evaluation in a pause of the training has rates and timers of its own."""

    def train(logger: dm.Logger) -> None:
        for step in range(3):
            clock.spend(1)
            logger.log({"tokens": 10}, step=step)
            val = logger.child("val", every=every)
            with logger.pause():
                for _ in range(5):
                    with val.timer("seconds"):
                        clock.spend(2)
                    val.log({"tokens": 100})
                if every is None:
                    val.flush(step)

    registry = rates()
    registry.total("val/seconds")
    found = records(1, train, lambda: registry)
    assert [r.values["tokens/s"] for r in found if r.logger is None] == [10.0] * 3
    assert [r.values["val/seconds"] for r in found if r.logger] == [10.0, 20.0, 30.0]
    held = [r.values["val/tokens/s"] for r in found if r.logger]
    assert held[0] == 50.0
    assert all(0 < rate <= 50.0 for rate in held)


def test_a_pause_ends_with_an_error_inside_it(clock: FakeTime) -> None:
    """The clock goes on after an exception."""

    def pause(logger: dm.Logger) -> None:
        with logger.pause():
            clock.spend(7)
            raise KeyError("inside")

    def train(logger: dm.Logger) -> None:
        with pytest.raises(KeyError):
            pause(logger)
        for step in range(2):
            clock.spend(2)
            logger.log({"tokens": 10}, step=step)

    found = records(1, train, rates)
    assert found[1].values["tokens/s"] == 5.0


def test_a_rate_is_the_total_of_its_window_not_the_mean_of_its_steps(clock: FakeTime) -> None:
    """While the count itself is for each step."""

    def train(logger: dm.Logger) -> None:
        for step in range(8):
            clock.spend(0.5)
            logger.log({"tokens": 10}, step=step)

    found = records(1, train, rates, every=4)
    assert (found[1].values["tokens"], found[1].values["tokens/s"]) == (10, 20.0)


def test_a_window_without_tokens_has_no_rate(clock: FakeTime) -> None:
    """And one with a count of zero has a rate of zero."""

    def train(logger: dm.Logger) -> None:
        for step, outputs in enumerate(({"tokens": 1}, {"x": 1.0}, {"tokens": 0})):
            clock.spend(1)
            logger.log(outputs, step=step)

    found: list[dict[str, Any]] = [dict(r.values) for r in records(1, train, rates)]
    assert "tokens/s" not in found[1]
    assert found[2]["tokens/s"] == 0.0


def test_seconds_that_are_logged_beat_the_clock(clock: FakeTime) -> None:
    """The sum of a rank's own seconds in the window, of the slowest rank."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.rate("tokens/s", of="tokens", seconds="took")
        return made

    def train(logger: dm.Logger) -> None:
        for step, micro in itertools.product(range(2), range(2)):
            clock.spend(99)
            logger.log({"tokens": 10, "took": 0.5 + dm.get_rank()}, step=step)
            del micro

    (record,) = records(2, train, registry, every=2)
    assert record.values["tokens/s"] == 80 / (4 * 1.5)


def test_the_clock_stands_still_within_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while one is under way."""
    now = [10.0]
    monkeypatch.setattr("distmetrics.logger.clock.time.perf_counter", lambda: now[0])
    clock = Clock()
    start = clock.now()
    with clock.paused():
        now[0] += 5
        assert clock.now() == start
    now[0] += 2
    assert clock.now() == start + 2
