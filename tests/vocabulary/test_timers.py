"""Timers and rates: seconds on their way to a key, and counts for each of them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.logger import clock
from distmetrics.testing import MemorySink, run_ranks_in_process


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock of which every look is one second after the one before."""
    seconds = itertools.count()
    monkeypatch.setattr(clock.time, "perf_counter", lambda: float(next(seconds)))


def logger_of(memory: MemorySink, registry: dm.Registry | None = None, **options: Any) -> dm.Logger:
    """A logger of one process."""
    return dm.Logger(registry, sinks=[memory], **options)


@pytest.mark.usefixtures("ticks")
def test_blocks_of_one_step_add_up_and_go_with_the_next_call() -> None:
    """Two blocks of a second each before a call are two seconds of its step."""
    memory = MemorySink()
    with logger_of(memory) as logger:
        for step in range(2):
            for _ in range(2):
                with logger.timer("data_s"):
                    pass
            logger.log({"loss": 1.0}, step=step)
    assert [record.values for record in memory.records] == [{"loss": 1.0, "data_s": 2.0}] * 2


@pytest.mark.usefixtures("ticks")
def test_what_comes_after_the_last_call_is_logged_at_the_end() -> None:
    """Seconds that no call took along belong to the window that is closed."""
    memory = MemorySink()
    registry = dm.Registry()
    registry.total("s")
    with logger_of(memory, registry) as logger:
        val = logger.child("val")
        logger.log({"loss": 1.0}, step=3)
        with val.timer("s"):
            val.log({"loss": 2.0})
        val.flush()
        with logger.timer("s"):
            pass
    of = {record.logger: record for record in memory.records}
    assert {record.step for record in memory.records} == {3}
    assert of[None].values == {"loss": 1.0, "s": 1.0}
    assert of["val"].values["val/s"] > 0


@pytest.mark.usefixtures("ticks")
def test_pauses_do_not_count() -> None:
    """Time in `pause` within a timer is left out."""
    memory = MemorySink()
    with logger_of(memory) as logger:
        with logger.timer("s"), logger.pause():
            for _ in range(50):
                clock.time.perf_counter()
        logger.log({"loss": 1.0}, step=0)
    assert memory.records[0].values["s"] < 5


@pytest.mark.usefixtures("ticks")
def test_a_block_that_raises_is_counted() -> None:
    """Its seconds are logged, and the exception goes on."""
    memory = MemorySink()
    with logger_of(memory) as logger:
        with pytest.raises(KeyError), logger.timer("s"):
            raise KeyError
        logger.log({"loss": 1.0}, step=0)
    assert memory.records[0].values["s"] == 1.0


def test_a_key_that_takes_no_seconds_is_refused_on_entering() -> None:
    """A computed key, an unknown one of a strict registry, no text: errors before the block."""
    registry = dm.Registry(strict=True)
    registry.ratio("acc", "hits", "n")
    entered = False
    with dm.Logger(registry) as logger:
        for key in ("acc", "unknown", "", 3):
            with pytest.raises(dm.DistmetricsError), logger.timer(key):  # type: ignore[arg-type]
                entered = True
    assert not entered


def test_a_disabled_logger_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is run all the same."""
    monkeypatch.setenv("DISTMETRICS_DISABLED", "1")
    done = []
    with dm.Logger() as logger, logger.timer("s"):
        done.append(1)
    assert done


def rates(seconds: str | None = "step_s") -> dm.Registry:
    """Tokens for each second, of all devices and of each."""
    registry = dm.Registry()
    registry.rate("tok_s", of="tokens", seconds=seconds)
    registry.rate("tok_s_device", of="tokens", seconds=seconds, per_device=True)
    return registry


@pytest.mark.parametrize(
    ("seconds", "whole", "each"),
    [([2.0, 2.0, 2.0, 2.5], 160.0, 40.0), ([1.0, 1.0, 5.0, 1.0], 80.0, 20.0)],
)
def test_a_rate_divides_the_sum_by_the_slowest_ranks_seconds(
    seconds: list[float], whole: float, each: float
) -> None:
    """100 tokens on each of 4 ranks: the total for each second, and that of one device."""
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        with dm.Logger(rates(), sinks=[memory] if rank == 0 else []) as logger:
            logger.log({"tokens": 100, "step_s": seconds[rank]}, step=0)

    run_ranks_in_process(train, 4)
    values = memory.records[0].values
    assert (values["tok_s"], values["tok_s_device"]) == (whole, each)


def test_replicas_are_one_device_with_data_of_its_own() -> None:
    """Tensor-parallel peers hold the same tokens: these count once, and so does their device."""

    class Mesh:
        mesh_dim_names = ("data", "tensor")
        mesh = __import__("torch").tensor([[0, 1], [2, 3]])

    registry = dm.Registry()
    registry.rate("each", of="tokens", seconds="s", per_device=True, replicated_over=("tensor",))
    registry.count("tokens", replicated_over=("tensor",))
    memory = MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        sinks = [memory] if rank == 0 else []
        with dm.Logger(registry, sinks=sinks, mesh=Mesh()) as logger:  # type: ignore[arg-type]
            logger.log({"tokens": [5, 5, 7, 7][rank], "s": 2.0}, step=0)

    run_ranks_in_process(train, 4)
    assert memory.records[0].values["each"] == 12 / 2.0 / 2


@pytest.mark.usefixtures("ticks")
def test_a_timer_gives_a_rate_its_seconds() -> None:
    """The seconds of a rate may come from a timer in the same window."""
    memory = MemorySink()
    with logger_of(memory, rates(), every=2) as logger:
        for step in range(4):
            with logger.timer("step_s"):
                pass
            logger.log({"tokens": 10}, step=step)
    assert [record.values["tok_s"] for record in memory.records] == [10.0, 10.0]


@pytest.mark.usefixtures("ticks")
def test_a_rate_by_wall_time_leaves_pauses_out() -> None:
    """A hundred seconds of pause do not slow a rate."""
    memory = MemorySink()
    with logger_of(memory, rates(seconds=None)) as logger:
        for step in range(3):
            logger.log({"tokens": 1000}, step=step)
            with logger.pause():
                for _ in range(1000):
                    clock.time.perf_counter()
    assert all(record.values["tok_s"] > 100 for record in memory.records)
