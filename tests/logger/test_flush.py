"""`flush` and `reduce`: what they close, what they return, and whom they wait for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.testing import run_ranks_in_process
from tests.logger.ranks import records, values, warned

# --- flush --------------------------------------------------------------------------------------


def test_a_flush_ends_the_window_everywhere() -> None:
    """The flushed part and the rest of a window are two records, whose steps do not overlap."""

    def train(logger: dm.Logger) -> None:
        for step in range(8):
            logger.log({"n": dm.Count(1)}, step=step)
            if step == 5:
                logger.flush()

    found = records(2, train, every=4)
    assert [(r.first_step, r.step, r.window) for r in found] == [(0, 3, 3), (4, 5, 5), (6, 7, 7)]
    assert values(found) == [{"n": 2}] * 3


def test_a_rank_that_did_not_flush_adds_its_part_to_the_rest() -> None:
    """Nothing is lost or counted twice where only some ranks flush inside a window."""

    def train(logger: dm.Logger) -> None:
        for step in range(4):
            logger.log({"total": dm.Total(1)}, step=step)
            if step == 1 and dm.get_rank() == 0:
                logger.flush()

    found = records(2, train, every=4)
    assert [(r.window, r.values["total"]) for r in found] == [(1, 2), (3, 8)]


def test_a_flush_through_a_step_leaves_later_ones_open() -> None:
    """`flush(step)` closes windows through the step given, and promises nothing more below it."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=0)
        logger.flush(4)
        logger.log({"n": dm.Count(1)})

    assert [record.step for record in records(2, train)] == [0, 5]


def test_a_flush_of_nothing_is_no_record() -> None:
    """Before the first step, and twice in a row."""

    def train(logger: dm.Logger) -> None:
        logger.flush()
        assert logger.flush(wait=True) == {}
        logger.log({"n": dm.Count(1)})
        logger.flush()
        logger.flush()

    assert values(records(2, train)) == [{"n": 2}]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_waiting_flush_returns_the_last_values_on_every_rank(world_size: int) -> None:
    """The same dict on all ranks, and what sinks got."""
    returned: dict[int, Any] = {}

    def train(logger: dm.Logger) -> None:
        for step in range(3):
            logger.log({"loss": dm.Average([float(step)] * (dm.get_rank() + 1))}, step=step)
        returned[dm.get_rank()] = logger.flush(wait=True)

    found = records(world_size, train)
    assert all(found_values == {"loss": 2.0} for found_values in returned.values())
    assert len(returned) == world_size
    assert found[-1].values == {"loss": 2.0}


def test_ranks_with_different_numbers_of_steps_go_on_together_after_a_waiting_flush() -> None:
    """Every step is reduced, and steps that count themselves go on alike from the highest."""

    def train(logger: dm.Logger) -> None:
        for _ in range(3 if dm.get_rank() == 0 else 5):
            logger.log({"n": dm.Count(1)})
        assert logger.flush(wait=True) == {"n": 1}
        logger.log({"n": dm.Count(1)})
        assert logger.flush(wait=True) == {"n": 2}

    found = records(2, train)
    assert [(r.step, r.values["n"]) for r in found] == [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 1),
        (4, 1),
        (5, 2),
    ]


def test_a_waiting_flush_may_stop_the_training_early() -> None:
    """All ranks see the same value, so that they take the same decision."""
    stopped = {}

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for step in range(20):
            logger.log({"loss": dm.Average(1.0)}, step=step)
            val.log({"loss": dm.Average(10.0 - step + dm.get_rank())})
            if val.flush(wait=True)["val/loss"] < 6:  # type: ignore[index]
                stopped[dm.get_rank()] = step
                break

    records(3, train)
    assert set(stopped.values()) == {6}
    assert len(stopped) == 3


def test_a_waiting_flush_names_the_ranks_that_did_not_come() -> None:
    """After `peer_timeout` the error names them, the step and a key; the run goes on."""
    failed = threading.Event()

    def train(logger: dm.Logger) -> None:
        logger.log({"m": dm.Count(1)}, step=7)
        if dm.get_rank() == 1:
            assert failed.wait(20)
        else:
            with pytest.raises(dm.PeerTimeoutError) as caught:
                logger.flush(wait=True)
            text = str(caught.value)
            assert "flush(wait=True) at step 7 (keys 'm'): rank 1 (last steps: rank 1: 7)" in text
            assert "peer_timeout=1 s; every rank must call it" in text
            assert caught.value.ranks == (1,)
            failed.set()
        assert logger.flush(wait=True) == {"m": 2}

    assert values(records(2, train, peer_timeout=1)) == [{"m": 2}]


def test_a_rank_that_comes_in_time_is_waited_for() -> None:
    """The others are told of it after `notice_after`, and get the value."""
    said = threading.Event()

    def train(logger: dm.Logger) -> None:
        notices = logger._core.notices
        say = notices.say
        notices.say = lambda text: (say(text), said.set())  # type: ignore[method-assign]
        logger.log({"m": dm.Count(1)}, step=7)
        if dm.get_rank() == 1:
            assert said.wait(20)
        assert logger.flush(wait=True) == {"m": 2}

    with warned(r"flush\(wait=True\) waits for rank 1 \(last steps: rank 1: 7\)", times=1):
        records(2, train, notice_after=0.05)


def test_waiting_is_counted() -> None:
    """`stats` tells how long the training thread has waited for others."""

    def train(logger: dm.Logger) -> None:
        assert logger.stats()["waited_s"] == 0
        logger.log({"m": dm.Count(1)})
        logger.flush(wait=True)
        assert 0 < logger.stats()["waited_s"] < 20

    records(2, train)


# --- reduce -------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_reduce_gives_every_rank_the_same_values_and_writes_nothing(world_size: int) -> None:
    """Keys may differ between ranks; nested values and weights work as in `log`."""
    returned: dict[int, Any] = {}

    def train(logger: dm.Logger) -> None:
        rank = dm.get_rank()
        outputs = {"n": dm.Count(1), "in": {"loss": torch.tensor(float(rank))}}
        if rank == world_size - 1:
            outputs["last"] = dm.Maximum(rank)
        returned[rank] = logger.reduce(outputs, weight=rank + 1)

    assert records(world_size, train) == []
    weights = range(1, world_size + 1)
    mean = sum(rank * w for rank, w in enumerate(weights)) / sum(weights)
    expected = {"n": world_size, "in/loss": mean, "last": world_size - 1}
    assert all(found == expected for found in returned.values())


def test_calls_of_reduce_do_not_add_up() -> None:
    """Each call stands for itself, also beside a window that is open."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(100)}, step=0)
        for i in range(4):
            assert logger.reduce({"n": dm.Count(i)}) == {"n": 3 * i}
            assert logger.reduce({}) == {}

    assert values(records(3, train)) == [{"n": 300}]


def test_a_wrong_value_on_one_rank_is_its_error_and_the_others_time_out() -> None:
    """Afterwards the ranks' calls match again, and nothing of the failed call is left over."""
    barrier = threading.Barrier(2)

    def train(logger: dm.Logger) -> None:
        value: Any = 1
        if dm.get_rank() == 1:
            with pytest.raises(InvalidType, match="'n'"):
                logger.reduce({"n": dm.Count("many")})
        else:
            with pytest.raises(dm.PeerTimeoutError, match=r"reduce.*rank 1"):
                logger.reduce({"n": dm.Count(50)})
        barrier.wait(20)
        for value in (1, 2):
            assert logger.reduce({"n": dm.Count(value)}) == {"n": 2 * value}

    records(2, train, peer_timeout=1)


def test_reduce_needs_every_rank() -> None:
    """Ranks that do something else meanwhile are named."""
    barrier = threading.Barrier(3)

    def train(logger: dm.Logger) -> None:
        if dm.get_rank() == 0:
            with pytest.raises(dm.PeerTimeoutError, match=r"reduce \(keys 'n'\): ranks 1 and 2"):
                logger.reduce({"n": dm.Count(1)})
        barrier.wait(20)

    records(3, train, peer_timeout=1)


def test_a_rank_that_has_closed_is_not_waited_for() -> None:
    """Values are those of the ranks that are left, which are warned once that it is missing."""
    closed = threading.Event()

    def rank() -> None:
        logger = dm.Logger()
        logger.log({"n": dm.Count(1)}, step=0)
        if dm.get_rank() == 1:
            closer = threading.Thread(target=logger.close)
            closer.start()
            closed.set()
            closer.join(20)
        else:
            assert closed.wait(20)
            while logger.reduce({"n": dm.Count(1)}) != {"n": 1}:
                pass
            logger.log({"n": dm.Count(5)}, step=1)
            assert logger.flush(wait=True) == {"n": 5}
            logger.close()

    with warned("reduce: rank 1 has closed its logger: the values are those of the other", times=1):
        run_ranks_in_process(rank, 2)


def test_wrong_options_are_errors() -> None:
    """Steps and values are checked as in `log`."""

    def train(logger: dm.Logger) -> None:
        with pytest.raises(InvalidValue, match=r"step=0\.5"):
            logger.flush(0.5)  # type: ignore[arg-type]
        with pytest.raises(InvalidType, match="outputs are a dict"):
            logger.reduce(3)  # type: ignore[arg-type]

    records(1, train)


def test_a_call_of_reduce_stands_for_itself() -> None:
    """A total is that of this call, and what takes no time has no rate by the clock."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.total("seen")
        made.ratio("accuracy", "correct", "seen")
        made.rate("by_clock", of="seen")
        made.rate("by_key", of="seen", seconds="took")
        return made

    def train(logger: dm.Logger) -> None:
        for _ in range(3):
            found = logger.reduce({"seen": 4, "correct": 1, "took": 0.5})
            assert found == {
                "seen": 8,
                "correct": 2,
                "took": 0.5,
                "accuracy": 0.25,
                "by_key": 16.0,
            }

    records(2, train, registry)
