"""Law 6: whatever the ranks log and when, nothing hangs, nothing is lost, nobody waits."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch.distributed as dist
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.testing import MemorySink, run_ranks, run_ranks_in_process


def rows(found: list[dm.Record]) -> list[tuple[int, dict[str, Any]]]:
    """Step and values of each record."""
    return [(record.step, dict(record.values)) for record in found]


def on_processes(
    world_size: int, train: Any, every: int = 1, **options: Any
) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a run on Gloo processes; `train` gets the logger and the rank."""

    def rank() -> list[tuple[int, dict[str, Any]]]:
        memory = MemorySink()
        sinks = [memory] if dm.get_rank() == 0 else []
        with dm.Logger(sinks=sinks, every=every, **options) as logger:
            train(logger, dm.get_rank())
        return rows(memory.records)

    return run_ranks(rank, world_size, timeout=40)[0]


def test_ranks_that_log_nothing_or_one_thing_hold_nobody_up_for_good() -> None:
    """A rank that never logs, one that only logs first, and one that ends early."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(6):
            if rank == 0 or (rank == 2 and step == 0) or (rank == 3 and step < 3):
                logger.log({f"of{rank}": dm.Count(1), "n": dm.Count(1)}, step=step)

    assert on_processes(4, train) == [
        (0, {"of0": 1, "n": 3, "of2": 1, "of3": 1}),
        (1, {"of0": 1, "n": 2, "of3": 1}),
        (2, {"of0": 1, "n": 2, "of3": 1}),
        *((step, {"of0": 1, "n": 1}) for step in range(3, 6)),
    ]


def test_a_rank_that_closes_early_is_waited_for_by_nobody() -> None:
    """The rows that follow have the values of the others, and come while they train."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(3 if rank == 0 else 2):
            logger.log({"m": dm.Count(1)}, step=step)

    assert on_processes(2, train) == [(0, {"m": 2}), (1, {"m": 2}), (2, {"m": 1})]


def test_a_key_on_one_rank_only_is_its_value() -> None:
    """With the roles of the ranks changing from step to step."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(3):
            logger.log({"m": dm.Average(0.1)} if step % 2 == rank else {}, step=step)
            assert logger.flush(wait=True) == {"m": 0.1}

    assert on_processes(2, train) == [(step, {"m": 0.1}) for step in range(3)]


def test_training_threads_never_wait_for_a_rank_that_pauses() -> None:
    """One rank logs a thousand steps while the other does nothing; all are reduced afterwards."""

    def train(logger: dm.Logger, rank: int) -> None:
        if rank == 0:
            began = time.monotonic()
            for step in range(1000):
                logger.log({"n": dm.Count(1)}, step=step)
            assert time.monotonic() - began < 10
            assert logger.stats()["waited_s"] == 0
            dist.barrier()
        else:
            dist.barrier()  # until the other is done
            for step in range(1000):
                logger.log({"n": dm.Count(1)}, step=step)

    assert on_processes(2, train, every=10) == [(s, {"n": 2}) for s in range(9, 1000, 10)]


def test_workers_stay_out_of_the_way_of_the_trainings_collectives() -> None:
    """Collectives of the training and of the logger do not mix, and outlive its groups."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(50):
            logger.log({"n": dm.Count(1), "step": dm.Maximum(step)}, step=step)
            value = dist.get_rank() + step
            got: list[Any] = [None, None]
            dist.all_gather_object(got, value)
            assert got == [step, step + 1]
        dist.destroy_process_group()
        logger.log({"n": dm.Count(1), "step": dm.Maximum(50)}, step=50)

    assert on_processes(2, train) == [(s, {"n": 2, "step": s}) for s in range(51)]


def test_logging_on_the_main_rank_only_needs_no_care() -> None:
    """`log` inside a rank check is local; the others' steps go on."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(4):
            logger.log({"n": dm.Count(1)}, step=step)
            if dm.is_main_process():
                logger.log({"extra": dm.Count(1)}, step=step)

    assert on_processes(3, train) == [(s, {"n": 3, "extra": 1}) for s in range(4)]


def test_a_silent_rank_that_promises_lets_records_come() -> None:
    """After `log({}, step=s)` of a rank, records below `s` are written while all train on."""
    written = threading.Event()

    def rank() -> None:
        sinks = [lambda record: written.set() if record.step == 4 else None]
        with dm.Logger(sinks=sinks) as logger:
            if dm.get_rank() == 0:
                for step in range(6):
                    logger.log({"n": dm.Count(1)}, step=step)
            else:
                logger.log({}, step=5)
            assert written.wait(20)

    run_ranks_in_process(rank, 3)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_every_value_is_in_exactly_one_record(data: st.DataObject) -> None:
    """Random ranks log random keys at random steps, flush and close: the totals are complete."""
    world_size = data.draw(st.integers(1, 4))
    every = data.draw(st.sampled_from([1, 2, 3, 5]))
    action = st.one_of(
        st.tuples(st.just("log"), st.integers(0, 12), st.sampled_from("abc")),
        st.tuples(st.just("flush"), st.none(), st.none()),
        st.tuples(st.just("promise"), st.integers(0, 12), st.none()),
    )
    plans = data.draw(
        st.lists(st.lists(action, max_size=8), min_size=world_size, max_size=world_size)
    )
    memory = MemorySink()

    def rank() -> None:
        mine = dm.get_rank()
        sinks = [memory] if mine == 0 else []
        with dm.Logger(sinks=sinks, every=every, on_step_regress="accept") as logger:
            for position, (kind, step, key) in enumerate(plans[mine]):
                if kind == "log":
                    identity = 1 << (8 * mine + position)
                    logger.log({f"{key}/ids": dm.Total(identity), key: dm.Count(1)}, step=step)
                elif kind == "flush":
                    logger.flush()
                else:
                    logger.log({}, step=step)

    run_ranks_in_process(rank, world_size)
    for key in "abc":
        logged = [
            (rank, position)
            for rank, plan in enumerate(plans)
            for position, (kind, _, name) in enumerate(plan)
            if kind == "log" and name == key
        ]
        identities = sum(1 << (8 * rank + position) for rank, position in logged)
        totals = [r.values[f"{key}/ids"] for r in memory.records if f"{key}/ids" in r.values]
        assert (totals[-1] if totals else 0) == identities
    steps = [record.window for record in memory.records if not record.late]
    assert steps == sorted(steps)


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_a_long_uneven_run_on_processes_loses_nothing() -> None:
    """Four ranks with different lengths, keys and pauses: every count adds up."""

    def train(logger: dm.Logger, rank: int) -> None:
        for step in range(rank, 4000, rank + 1):
            logger.log({"all": dm.Total(1), f"of{rank}": dm.Total(1)}, step=step)
            if step % 997 == 0:
                logger.flush()

    found = on_processes(4, train, every=7, on_step_regress="accept")
    last: dict[str, int] = {}
    for _, found_values in found:
        last |= found_values
    counts = {f"of{rank}": len(range(rank, 4000, rank + 1)) for rank in range(4)}
    assert last == counts | {"all": sum(counts.values())}
