"""Several threads of one rank may log to one logger."""

from __future__ import annotations

import threading
from collections.abc import Callable

import distmetrics as dm
from tests.logger.ranks import records


def at_once(*calls: Callable[[], object]) -> None:
    """Run the calls in threads that begin together, and wait for them."""
    barrier = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def run(call: Callable[[], object]) -> None:
        try:
            barrier.wait(20)
            call()
        except BaseException as error:  # noqa: BLE001 - raised by the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    if errors:
        raise errors[0]


def test_what_threads_log_is_complete() -> None:
    """Four threads with keys of their own and a shared one, on each of two ranks."""

    def train(logger: dm.Logger) -> None:
        def work(k: int) -> Callable[[], None]:
            def log() -> None:
                for step in range(100):
                    logger.log({f"k{k}": dm.Total(1), "all": dm.Total(1)}, step=step)

            return log

        at_once(*map(work, range(4)))

    found = records(2, train, every=10, on_step_regress="accept")
    last: dict[str, object] = {}
    for record in found:
        last |= record.values
    assert last == {"all": 800, **{f"k{k}": 200 for k in range(4)}}


def test_threads_that_ask_for_a_child_get_the_same_one() -> None:
    """And none of what they log to it is lost."""

    def train(logger: dm.Logger) -> None:
        def log() -> None:
            logger.child("val").log({"n": dm.Count(1)})

        at_once(*[log] * 8)
        logger.child("val").flush(0)

    (record,) = records(2, train)
    assert record.values == {"val/n": 16}


def test_flushing_beside_logging_splits_nothing_wrongly() -> None:
    """Each value is in exactly one record, whenever another thread flushes."""

    def train(logger: dm.Logger) -> None:
        def log() -> None:
            for step in range(200):
                logger.log({"n": dm.Total(1)}, step=step)

        def flush() -> None:
            for _ in range(50):
                logger.flush()

        at_once(log, flush)

    found = records(2, train, every=7, on_step_regress="accept")
    assert found[-1].values == {"n": 400}
