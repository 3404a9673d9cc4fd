"""Sinks and disks that fail: training and the other sinks go on, and what is lost is counted."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import distmetrics as dm
from distmetrics.record import Record
from distmetrics.sinks import Run
from distmetrics.sinks.append import AppendFile
from distmetrics.spool.merge import merge
from distmetrics.testing import MemorySink, run_ranks_in_process
from distmetrics.worker import writer as writer_module
from tests.faults import work
from tests.faults.ranks import Life, ranks
from tests.faults.train import logger_of
from tests.sinks.wandb_log import read_wandb, wandb_files
from tests.sinks.wandb_server import wandb_server

STEPS = 60


class Bad:
    """A sink with a fault.

    Args:
        fault: called for each record after the first ones.
        after: how many records it takes before.
    """

    name = "bad"

    def __init__(self, fault: Any, after: int = 3) -> None:
        self._fault = fault
        self._after = after
        self.taken: list[int] = []
        self.reached = 0

    def open(self, run: Run) -> None:
        """Nothing is opened."""

    def write(self, record: Record) -> None:
        if len(self.taken) + self.reached >= self._after:
            self.reached += 1
            self._fault(self.reached)
        self.taken.append(record.window)

    def close(self) -> None:
        """Nothing is held."""


def _train(run_dir: Path, sinks: list[Any], steps: int = STEPS) -> tuple[dict[str, Any], float]:
    """Two ranks train with these sinks; rank 0's counters, and how long a call took at most."""
    found: list[tuple[dict[str, Any], float]] = []

    def train() -> None:
        rank = dm.get_rank()
        slowest = 0.0
        logger = logger_of(run_dir, sinks=sinks if rank == 0 else [])
        for step in range(steps):
            given = work.outputs(rank, step)
            began = time.monotonic()
            logger.log(given, step=step)
            slowest = max(slowest, time.monotonic() - began)
        logger.flush(wait=True)
        counters = logger.stats()
        logger.close(timeout=3)
        if rank == 0:
            found.append((counters, slowest))

    run_ranks_in_process(train, 2)
    return found[0]


def _check(run_dir: Path, memory: MemorySink, steps: int = STEPS) -> None:
    """The other sinks have every record."""
    work.check_rows(work.rows_of(run_dir), work.labels(steps), 2)
    work.check_rows(memory.records, work.labels(steps), 2)


# --- sinks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ConnectionError("no network"), SystemExit(1), MemoryError()])
def test_a_sink_that_raises_costs_nobody_else_a_record(
    tmp_path: Path, error: BaseException
) -> None:
    """Whatever it raises is said once, and counted; records after it are tried again."""

    def fault(times: int) -> None:
        if times <= 3:
            raise error

    bad, memory = Bad(fault), MemorySink()
    with pytest.warns(dm.DistmetricsWarning, match="'bad' failed in writing step") as said:
        counters, _ = _train(tmp_path / "run", [bad, memory])
    assert len(said) == 1
    assert counters["sink_errors"] == counters["sinks"]["bad"]["errors"] == 3
    assert bad.reached > 3
    assert len(bad.taken) == len(work.labels(STEPS)) - 3
    _check(tmp_path / "run", memory)


def test_a_sink_that_hangs_for_ever_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue fills, what is beyond it is counted, and `close` leaves it behind."""
    monkeypatch.setattr(writer_module, "CAPACITY", 8)
    release = threading.Event()
    bad, memory = Bad(lambda _: release.wait()), MemorySink()
    with pytest.warns(dm.DistmetricsWarning) as said:
        counters, slowest = _train(tmp_path / "run", [bad, memory])
    texts = [str(one.message) for one in said]
    assert sum("cannot keep up" in text for text in texts) == 1
    assert sum("did not close within" in text for text in texts) == 1
    assert bad.reached == 1
    told = counters["sinks"]["bad"]
    assert told["dropped"] > 0
    assert told["written"] + told["queued"] + told["dropped"] == len(work.labels(STEPS))
    assert slowest < 1.0
    _check(tmp_path / "run", memory)
    release.set()


def test_a_slow_sink_gets_all_its_records_without_slowing_the_training(tmp_path: Path) -> None:
    """At 0.2 s a record it lags behind, and is waited for at the end."""
    bad, memory = Bad(lambda _: time.sleep(0.2), after=0), MemorySink()
    counters, slowest = _train(tmp_path / "run", [bad, memory], steps=16)
    assert slowest < 0.15
    assert counters["sinks"]["bad"]["dropped"] == 0
    assert bad.taken == work.labels(16)
    _check(tmp_path / "run", memory, 16)


def test_one_hung_sink_leaves_the_others_time_to_close(tmp_path: Path) -> None:
    """All close at the same time, so that a slow one after a hung one still ends well."""
    release, closed = threading.Event(), []

    class Hung(Bad):
        name = "hung"

        def close(self) -> None:
            release.wait()

    class Slow(Bad):
        name = "slow"

        def close(self) -> None:
            time.sleep(0.5)
            closed.append(True)

    logger = dm.Logger(sinks=[Hung(print, 99), Slow(print, 99)])
    logger.log({"a": 1.0}, step=0)
    with pytest.warns(dm.DistmetricsWarning, match="'hung' did not close"):
        logger.close(timeout=2)
    assert closed
    release.set()


# --- disks --------------------------------------------------------------------------------------


class FullDisk:
    """`AppendFile.append` fails as on a full disk, until there is room again."""

    def __init__(self) -> None:
        self.full = False
        self.refused = 0

    @property
    def patch(self) -> Any:
        append = AppendFile.append

        def limited(file: AppendFile, data: bytes) -> None:
            if self.full:
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            append(file, data)

        return mock.patch.object(AppendFile, "append", limited)


def _on_full_disk(run_dir: Path, memory: MemorySink, room_again: bool) -> list[dict[str, Any]]:
    """Train while the disk of metrics.jsonl is full in the middle, or to the end."""
    disk, counters = FullDisk(), []

    def train() -> None:
        rank = dm.get_rank()
        logger = logger_of(run_dir, sinks=[memory] if rank == 0 else [])
        for step in range(STEPS):
            logger.log(work.outputs(rank, step), step=step)
            if step in (19, 39):
                logger.flush(wait=True)
                if rank == 0:
                    disk.full = step == 19 or not room_again
                logger.flush(wait=True)
        logger.flush(wait=True)
        if rank == 0:
            counters.append(logger.stats())
        logger.close()

    with disk.patch:
        run_ranks_in_process(train, 2)
    assert disk.refused
    return counters


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path: Path) -> None:
    """Records wait in memory, go on to the other sinks, and are written once there is room."""
    memory = MemorySink()
    with pytest.warns(dm.DistmetricsWarning, match="No space left") as said:
        (counters,) = _on_full_disk(tmp_path / "run", memory, room_again=True)
    assert len(said) == 1
    assert counters["sinks"]["jsonl"]["errors"] > 0
    _check(tmp_path / "run", memory)
    assert not (tmp_path / "run" / "spool").exists()


def test_records_that_a_full_disk_never_took_are_merged_from_the_spools(tmp_path: Path) -> None:
    """Nothing is forgotten before it is written; the user is told what to do."""
    memory, run_dir = MemorySink(), tmp_path / "run"
    with pytest.warns(dm.DistmetricsWarning) as said:
        (counters,) = _on_full_disk(run_dir, memory, room_again=False)
    assert any("`distmetrics merge` writes those" in str(one.message) for one in said)
    assert counters["sinks"]["jsonl"]["queued"] == len(work.labels(STEPS)) - 10
    assert len(work.rows_of(run_dir)) == 10
    merge(run_dir)
    _check(run_dir, memory)


def test_memory_for_what_a_disk_does_not_take_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the bound the oldest records are lost, which is said and counted."""
    monkeypatch.setattr(writer_module, "KEPT", 4)
    memory, run_dir = MemorySink(), tmp_path / "run"
    with pytest.warns(dm.DistmetricsWarning) as said:
        (counters,) = _on_full_disk(run_dir, memory, room_again=True)
    assert any("is lost; further losses are counted" in str(one.message) for one in said)
    lost = counters["sinks"]["jsonl"]["dropped"]
    assert 0 < lost <= 10
    assert counters["dropped"] == lost
    assert len(work.rows_of(run_dir)) == len(work.labels(STEPS)) - lost
    work.check_rows(memory.records, work.labels(STEPS), 2)


def _limited(life: Life, run_dir: Path, limit: int) -> dict[str, Any]:
    """Train where no file may grow beyond a limit: writes fail as on a full disk, for real."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    logger = logger_of(run_dir)
    for step in range(400):
        logger.log(work.outputs(life.rank, step), step=step)
        if step % 40 == 39:
            logger.flush(wait=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    logger.flush(wait=True)
    logger.close()
    return logger.stats()


def test_a_real_limit_on_files_tears_no_line(tmp_path: Path) -> None:
    """metrics.jsonl and the spool hit it; when it is lifted all records are there, in order."""
    run_dir = tmp_path / "run"
    with ranks(2, _limited, run_dir, 30_000) as started:
        counters = [rank.result() for rank in started]
        texts = [said.data for rank in started for said in rank.heard if said.what == "warned"]
    assert counters[0]["sinks"]["jsonl"]["errors"] > 0
    assert any("metrics" in text or "'jsonl' failed in writing" in text for text in texts)
    assert any("the spool" in text and "is tried again" in text for text in texts)
    work.check_rows(work.rows_of(run_dir), work.labels(400), 2)
    assert not (run_dir / "spool").exists()


def test_a_run_directory_that_is_deleted_stops_nothing(tmp_path: Path) -> None:
    """The other sinks get all records; what comes later goes to a new one, which can be resumed."""
    run_dir, memory = tmp_path / "run", MemorySink()

    def train() -> None:
        rank = dm.get_rank()
        logger = logger_of(run_dir, sinks=[memory] if rank == 0 else [])
        for step in range(STEPS):
            logger.log(work.outputs(rank, step), step=step)
            if step == 29:
                logger.flush(wait=True)
                if rank == 0:
                    shutil.rmtree(run_dir)
                logger.flush(wait=True)
        logger.close()

    with pytest.warns(dm.DistmetricsWarning, match="was deleted; it is begun anew"):
        run_ranks_in_process(train, 2)
    work.check_rows(memory.records, work.labels(STEPS), 2)
    rows = work.rows_of(run_dir)
    work.check_rows(rows, work.labels(STEPS)[15:], 2)
    assert not merge(run_dir).written  # run.json is there again, too

    def go_on() -> None:
        with logger_of(run_dir, resume=True) as logger:
            for step in range(STEPS, STEPS + 10):
                logger.log(work.outputs(dm.get_rank(), step), step=step)

    run_ranks_in_process(go_on, 2)
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS + 10)[15:], 2)


def test_an_existing_file_in_place_of_the_spool_is_no_harm(tmp_path: Path) -> None:
    """A spool that cannot be made is said; records are written all the same."""
    run_dir = tmp_path / "run"
    (tmp_path / "taken").write_text("a file")
    with (
        pytest.warns(dm.DistmetricsWarning, match="spool .* cannot be made"),
        logger_of(run_dir, spool_dir=tmp_path / "taken") as logger,
    ):
        for step in range(10):
            logger.log(work.outputs(0, step), step=step)
    work.check_rows(work.rows_of(run_dir), work.labels(10), 1)


# --- W&B ----------------------------------------------------------------------------------------


def test_a_stalled_server_of_wandb_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the run and then says nothing more: training goes on, and `close` is bounded."""
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        sink = dm.sinks.WandbSink(finish_timeout=2)
        logger = dm.Logger(run_dir=tmp_path / "run", sinks=[sink])
        assert logger.sink("wandb") is not None  # the run has begun
        server.answers.clear()
        slowest = 0.0
        for step in range(200):
            began = time.monotonic()
            logger.log({"x": float(step)}, step=step)
            slowest = max(slowest, time.monotonic() - began)
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dm.DistmetricsWarning)  # of what was not uploaded
            logger.close()
        assert time.monotonic() - began < 20
    assert slowest < 1.0
    assert len(work.rows_of(tmp_path / "run")) == 200
    (file,) = wandb_files(tmp_path / "run")
    assert len(read_wandb(file).rows) == 200  # `wandb sync` sends them


def test_an_empty_wandb_silent_is_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B itself takes the empty variable for a mistake; the run is there, with all its rows."""
    monkeypatch.setenv("WANDB_SILENT", "")
    run_dir = tmp_path / "run"
    with logger_of(run_dir, sinks=["wandb"]) as logger:
        for step in range(10):
            logger.log(work.outputs(0, step), step=step)
    told = logger.stats()["sinks"]["wandb"]
    assert told == {"queued": 0, "written": 5, "dropped": 0, "errors": 0}
    assert os.environ["WANDB_SILENT"] == ""
    (file,) = wandb_files(run_dir)
    want = work.expected(work.labels(10), 1)
    assert [row["loss"] for row in read_wandb(file).rows] == [w["loss"] for w in want.values()]
