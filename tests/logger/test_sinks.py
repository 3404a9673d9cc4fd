"""Laws 7 and 12: sinks get every record once and in order, and cannot harm the training."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.sinks import Run
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.logger.ranks import records, warned


class Failing:
    """A sink that raises on some of its calls."""

    name = "failing"

    def __init__(self, where: str, calls: range = range(100)) -> None:
        self.where = where
        self.calls = calls
        self.taken: list[int] = []
        self._count = 0

    def _maybe(self, where: str) -> None:
        if where == self.where:
            self._count += 1
            if self._count in self.calls:
                raise ConnectionError("no route")

    def open(self, run: Run) -> None:
        self._maybe("open")

    def write(self, record: dm.Record) -> None:
        self._maybe("write")
        self.taken.append(record.step)

    def close(self) -> None:
        self._maybe("close")


class Hanging:
    """A sink that does not come back until it is released."""

    name = "hanging"
    close_timeout = 0.3

    def __init__(self, where: str) -> None:
        self.where = where
        self.released = threading.Event()

    def _maybe(self, where: str) -> None:
        if where == self.where:
            assert self.released.wait(60)

    def open(self, run: Run) -> None:
        self._maybe("open")

    def write(self, record: dm.Record) -> None:
        self._maybe("write")

    def close(self) -> None:
        self._maybe("close")


def log_ten(logger: dm.Logger) -> None:
    """Ten steps on every rank."""
    for step in range(10):
        logger.log({"n": dm.Count(1)}, step=step)


def run(world_size: int, *sinks: Any, train: Any = log_ten, **options: Any) -> dict[str, Any]:
    """Rank 0's `stats` after a run."""
    stats: dict[str, Any] = {}

    def rank() -> None:
        with dm.Logger(sinks=sinks if dm.get_rank() == 0 else (), **options) as logger:
            train(logger)
        if dm.get_rank() == 0:
            stats.update(logger.stats())

    run_ranks_in_process(rank, world_size)
    return stats


# --- law 7 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("world_size", [1, 3])
def test_sinks_see_each_record_once_and_in_order(world_size: int) -> None:
    """Windows come in order within a logger and within each child, to every sink alike."""
    taken: list[dm.Record] = []
    memory = MemorySink()

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for step in range(200):
            logger.log({"n": dm.Count(1)}, step=step)
            if step % 10 == 9:
                val.log({"n": dm.Count(1)})
                val.flush()

    run(world_size, memory, taken.append, train=train)
    for found in (memory.records, taken):
        assert [r.step for r in found if r.logger is None] == list(range(200))
        assert [r.step for r in found if r.logger == "val"] == list(range(9, 200, 10))
    assert taken == memory.records


def test_a_record_tells_of_the_run_it_is_from() -> None:
    """Time, world size and attempt stand in each."""
    before = time.time()
    (record,) = records(3, lambda logger: logger.log({"n": dm.Count(1)}, step=4))
    assert before <= record.time <= time.time()
    assert (record.world_size, record.attempt, record.missing_ranks) == (3, 0, ())


def test_sinks_are_made_and_opened_on_rank_0_only() -> None:
    """A factory of sinks is needed once; the others' loggers take the same calls."""
    opened: list[int] = []

    class Sink(MemorySink):
        def open(self, run: Run) -> None:
            super().open(run)
            opened.append(dm.get_rank())

    sinks = [Sink() for _ in range(4)]

    def rank() -> None:
        mine = sinks[dm.get_rank()]
        with dm.Logger(sinks=[mine]) as logger:
            log_ten(logger)
            logger.flush()
            assert (logger.sink("memory") is not None) is (dm.get_rank() == 0)

    run_ranks_in_process(rank, 4)
    assert len(opened) == 1
    assert [len(sink.records) for sink in sinks] == [10, 0, 0, 0]


def test_a_sink_is_told_of_the_run(tmp_path: Path) -> None:
    """Directory, name, registry, configuration and world size."""
    memory = MemorySink()
    registry = dm.Registry()
    run(2, memory, registry=registry, run_dir=tmp_path / "exp1", config={"lr": 0.1})
    assert memory.run is not None
    assert (memory.run.name, memory.run.directory) == ("exp1", tmp_path / "exp1")
    assert (memory.run.registry, memory.run.config) == (registry, {"lr": 0.1})
    assert (memory.run.world_size, memory.run.attempt) == (2, 0)


# --- law 12 -------------------------------------------------------------------------------------


def test_a_sink_that_fails_sometimes_gets_every_other_record() -> None:
    """The other sinks get all; the error is told once and counted."""
    failing, memory = Failing("write", range(3, 6)), MemorySink()
    with warned("sink 'failing' failed in writing step 2: ConnectionError: no route", times=1):
        stats = run(2, failing, memory)
    assert failing.taken == [0, 1, 5, 6, 7, 8, 9]
    assert len(memory.records) == 10
    assert stats["sink_errors"] == 3
    assert stats["sinks"]["failing"] == {"queued": 0, "written": 7, "dropped": 0, "errors": 3}
    assert (stats["written"], stats["written_step"]) == (17, 9)


@pytest.mark.parametrize("where", ["open", "write", "close"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_sink_that_always_fails_harms_nothing(where: str, direct: bool, tmp_path: Path) -> None:
    """Neither the file nor the other sinks nor the training notice, but for one warning."""
    failing, memory = Failing(where), MemorySink()
    failing.direct = direct  # type: ignore[attr-defined]
    with warned("sink 'failing' failed in (opening|writing|closing)", times=1):
        stats = run(2, failing, memory, run_dir=tmp_path / "run")
    assert len(memory.records) == 10
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 10
    assert stats["sinks"]["failing"]["errors"] >= 1


@pytest.mark.parametrize("direct", [False, True])
def test_a_sink_that_would_leave_the_process_harms_nothing(direct: bool) -> None:
    """`SystemExit`, and errors that cannot be shown, are caught as any other."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    class Leaving(MemorySink):
        name = "leaving"

        def write(self, record: dm.Record) -> None:
            raise SystemExit(3) if record.step else Mute

    leaving, memory = Leaving(), MemorySink()
    leaving.direct = direct
    with warned("sink 'leaving' failed in writing step 0: .*Mute, whose message cannot", times=1):
        stats = run(1, leaving, memory)
    assert len(memory.records) == 10
    assert stats["sinks"]["leaving"]["errors"] == 10


@pytest.mark.parametrize("where", ["open", "write"])
def test_a_sink_that_hangs_holds_nobody_up(where: str) -> None:
    """Training, other sinks and collective calls go on while it hangs."""
    hanging, memory = Hanging(where), MemorySink()

    def train(logger: dm.Logger) -> None:
        log_ten(logger)
        began = time.monotonic()
        assert logger.flush(wait=True) == {"n": 2}
        assert time.monotonic() - began < 5
        if dm.get_rank() == 0:
            assert len(memory.records) == 10
            hanging.released.set()

    run(2, hanging, memory, train=train)


def test_a_sink_that_hangs_at_the_end_is_left_behind() -> None:
    """`close` is bounded in time, and says so."""
    hanging = Hanging("close")
    with warned(r"sink 'hanging' did not close within .* s", times=1):
        run(2, hanging)
    hanging.released.set()


def test_a_slow_sink_loses_nothing_that_its_queue_can_hold() -> None:
    """It gets all records, later."""

    class Slow(MemorySink):
        name = "slow"
        direct = False

        def write(self, record: dm.Record) -> None:
            time.sleep(0.002)
            super().write(record)

    slow = Slow()
    run(2, slow)
    assert [record.step for record in slow.records] == list(range(10))


def test_a_function_that_changes_a_record_changes_it_for_itself_only() -> None:
    """What one sink does to its record does not reach the others."""
    memory = MemorySink()

    def meddle(record: dm.Record) -> None:
        record.values["n"] = 99  # type: ignore[index]

    def meddle_too(record: dm.Record) -> None:
        record.values.clear()  # type: ignore[attr-defined]

    def train(logger: dm.Logger) -> None:
        log_ten(logger)
        assert logger.flush(wait=True) == logger.latest == {"n": 1}

    run(1, meddle, memory, meddle_too, train=train)
    assert [record.values["n"] for record in memory.records] == [1] * 10


# --- a sink's own handle ------------------------------------------------------------------------


def test_the_handle_of_a_sink_is_there_before_the_first_record(tmp_path: Path) -> None:
    """A picture may be logged before any number; on other ranks there is no handle."""

    def train(logger: dm.Logger) -> None:
        writer = logger.sink("tensorboard")
        assert (writer is None) is (dm.get_rank() > 0)
        if writer is not None:
            writer.add_text("note", "hello", 0)
        assert logger.sink("unknown") is None
        log_ten(logger)

    stats = run(2, "tensorboard", train=train, run_dir=tmp_path / "run")
    assert stats["sinks"]["tensorboard"]["written"] == 10
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_asking_for_handles_beside_the_first_records_opens_sinks_once() -> None:
    """The worker writes to no sink that is still being opened by another thread."""
    opened: list[str] = []

    class Careful:
        name = "careful"
        direct = True
        handle = "handle"

        def open(self, run: Run) -> None:
            time.sleep(0.05)
            opened.append("open")

        def write(self, record: dm.Record) -> None:
            assert opened == ["open"]

        def close(self) -> None:
            opened.append("close")

    def train(logger: dm.Logger) -> None:
        threads = [threading.Thread(target=logger.sink, args=("careful",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        log_ten(logger)
        for thread in threads:
            thread.join()

    stats = run(1, Careful(), train=train)
    assert opened == ["open", "close"]
    assert stats["sinks"]["careful"] == {"queued": 0, "written": 10, "dropped": 0, "errors": 0}


def test_stats_of_a_run_without_sinks_are_zero() -> None:
    """All counters are there on every rank."""

    def train(logger: dm.Logger) -> None:
        log_ten(logger)
        logger.flush(wait=True)
        stats = logger.stats()
        assert stats["rounds"] > 0
        for name in ("written", "dropped", "sink_errors", "bad_values", "queued"):
            assert stats[name] == 0, name

    run(2, train=train)


def test_a_fault_of_the_worker_itself_stops_no_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is warned of once, with its traceback in the log; calls that need it raise."""

    def broken(*_: Any) -> None:
        raise ArithmeticError("a fault")

    def train(logger: dm.Logger) -> None:
        monkeypatch.setattr(logger._core._parts.worker.results, "add", broken)
        log_ten(logger)
        with pytest.raises(ArithmeticError):
            logger.flush(wait=True)
        log_ten(logger)

    with warned("the logger's worker ended: ArithmeticError: a fault; the training goes on"):
        run(1, train=train, on_step_regress="accept")
    (logged,) = [record for record in caplog.records if "worker failed" in record.message]
    assert logged.exc_info is not None
