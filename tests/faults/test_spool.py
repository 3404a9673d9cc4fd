"""Spools: what is in them, what damage does, how long they live."""

from __future__ import annotations

import json
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import distmetrics as dm
from distmetrics.cli import main
from distmetrics.errors import RunDirError
from distmetrics.rundir import METRICS, lock
from distmetrics.spool import journal
from distmetrics.spool.journal import Journal
from distmetrics.spool.lines import from_line, to_line
from distmetrics.spool.merge import merge
from distmetrics.testing import run_ranks_in_process
from distmetrics.worker import backlog as backlog_module
from distmetrics.worker.writer import Writer
from tests.faults import work
from tests.faults.dead import dead_run, spools
from tests.faults.train import logger_of

STEPS = 40


# --- a run that is well -------------------------------------------------------------------------


def test_the_spool_stays_small_and_goes_with_a_clean_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are deleted once their windows are written; nothing is left after `close`."""
    monkeypatch.setattr(journal, "SEGMENT", 1 << 12)
    run_dir = tmp_path / "run"
    sizes = []

    def train() -> None:
        rank = dm.get_rank()
        with logger_of(run_dir) as logger:
            for step in range(600):
                logger.log(work.outputs(rank, step), step=step)
                if step % 100 == 99:
                    logger.flush(wait=True)
                    logger.flush(wait=True)
                    sizes.append(sum(p.stat().st_size for p in spools(run_dir / "spool", rank)))

    run_ranks_in_process(train, 2)
    assert max(sizes) < 1 << 16
    assert not (run_dir / "spool").exists()
    work.check_rows(work.rows_of(run_dir), work.labels(600), 2)


def test_the_training_thread_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spool and records are written by threads of the logger's own, flushes and all."""
    writers: set[str] = set()

    def noting(original: Any) -> Any:
        def noted(*args: Any) -> Any:
            writers.add(threading.current_thread().name)
            return original(*args)

        return noted

    for owner, name in ((Journal, "_write"), (Journal, "release"), (Writer, "write")):
        monkeypatch.setattr(owner, name, noting(getattr(owner, name)))
    with logger_of(tmp_path / "run") as logger:
        writers.clear()  # the first segment is begun where the logger is made
        for step in range(200):
            logger.log(work.outputs(0, step), step=step)
            if step % 10 == 9:
                logger.flush()
        logger.flush(wait=True)
        assert writers <= {"distmetrics", "distmetrics-spool"}
        assert writers


def test_no_spool_is_made_where_none_is_wanted(tmp_path: Path) -> None:
    """`spool=False`, and a logger without a run directory, write none and say -1."""
    run_dir = tmp_path / "run"
    with logger_of(run_dir, spool=False) as logger:
        logger.log({"seen": 1}, step=0)
        logger.flush(wait=True)
        assert logger.stats()["spooled_step"] == -1
        assert not (run_dir / "spool").exists()
    with dm.Logger() as logger:
        logger.log({"a": 1.0}, step=0)
        logger.flush(wait=True)
        assert logger.stats()["spooled_step"] == -1


def test_a_slow_peer_costs_the_others_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows beyond a bound are in the spool alone, and are read back when their turn comes."""
    monkeypatch.setattr(backlog_module, "IN_MEMORY", 32)
    run_dir = tmp_path / "run"
    steps = 800
    held: list[int] = []

    def train() -> None:
        rank = dm.get_rank()
        with logger_of(run_dir) as logger:
            if rank == 1:
                deadline = time.monotonic() + 30
                while not held:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            for step in range(steps):
                logger.log(work.outputs(rank, step), step=step)
            if rank == 0:
                logger.flush()
                streams = logger._core._parts.streams
                while logger.stats()["spooled_step"] < steps - 1:
                    time.sleep(0.01)
                windows = list(streams._backlogs[""]._windows.values())
                assert len(windows) == steps // work.EVERY
                held.append(sum(window is not None for window in windows))

    run_ranks_in_process(train, 2)
    assert 32 <= held[0] <= 32 + 2 * journal.BATCH
    work.check_rows(work.rows_of(run_dir), work.labels(steps), 2)


def test_windows_are_read_back_from_deleted_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spool's folder is deleted while windows wait there: none is missing from the records."""
    monkeypatch.setattr(backlog_module, "IN_MEMORY", 32)
    run_dir, spool_dir = tmp_path / "run", tmp_path / "spool"
    deleted: list[bool] = []

    def train() -> None:
        rank = dm.get_rank()
        with logger_of(run_dir, spool_dir=spool_dir / str(rank)) as logger:
            while rank == 1 and not deleted:
                time.sleep(0.01)
            for step in range(400):
                logger.log(work.outputs(rank, step), step=step)
            if rank == 0:
                while logger.stats()["spooled_step"] < 390:
                    time.sleep(0.01)
                for path in spools(spool_dir / "0", 0):
                    path.unlink()
                deleted.append(True)

    with pytest.warns(dm.DistmetricsWarning, match="was deleted; it is begun anew"):
        run_ranks_in_process(train, 2)
    work.check_rows(work.rows_of(run_dir), work.labels(400), 2)


def test_windows_that_the_disk_does_not_give_back_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged line costs the part of one rank in its windows, which is said; the rest goes on."""
    monkeypatch.setattr(backlog_module, "IN_MEMORY", 32)
    run_dir = tmp_path / "run"
    damaged: list[bool] = []
    counters: dict[int, Any] = {}

    def train() -> None:
        rank = dm.get_rank()
        logger = logger_of(run_dir)
        while rank == 1 and not damaged:
            time.sleep(0.01)
        for step in range(400):
            logger.log(work.outputs(rank, step), step=step)
        if rank == 0:
            while logger.stats()["spooled_step"] < 390:
                time.sleep(0.01)
            (path,) = spools(run_dir / "spool", 0)
            content = bytearray(path.read_bytes())
            content[-20_000] ^= 1
            path.write_bytes(bytes(content))
            damaged.append(True)
        logger.close()
        counters[rank] = logger.stats()

    with pytest.warns(dm.DistmetricsWarning, match="cannot be read back from its spool"):
        run_ranks_in_process(train, 2)
    assert 0 < counters[0]["dropped"] <= journal.BATCH
    assert counters[1]["dropped"] == 0
    rows = work.rows_of(run_dir)
    assert [row.window for row in rows] == work.labels(400)


# --- merge --------------------------------------------------------------------------------------


def test_a_merge_gives_the_rows_of_the_run(tmp_path: Path) -> None:
    """The same bits, running totals of ints and floats too; a second merge has nothing to do."""
    run_dir = tmp_path / "run"
    lines = dead_run(run_dir, 3, STEPS)
    assert len(merge(run_dir).written) == len(work.labels(STEPS))
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 3)
    strip = [{**json.loads(line), "time": 0} for line in lines]
    again = (run_dir / METRICS).read_bytes().splitlines()
    assert [{**json.loads(line), "time": 0} for line in again] == strip
    assert merge(run_dir).written == []


@pytest.mark.parametrize("kept", [0, 1, 7, 19])
def test_a_merge_goes_on_after_the_rows_that_are_there(tmp_path: Path, kept: int) -> None:
    """Those written before, and a torn one after them, are neither lost nor doubled."""
    run_dir = tmp_path / "run"
    lines = dead_run(run_dir, 2, STEPS)
    torn = lines[kept][:-9] if kept < len(lines) else b""
    (run_dir / METRICS).write_bytes(b"".join(lines[:kept]) + torn)
    assert len(merge(run_dir).written) == len(lines) - kept
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 2)


def test_a_torn_last_line_of_a_spool_is_ignored(tmp_path: Path) -> None:
    """The windows of the lines before are merged; those after wait for the rank."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, STEPS)
    (path,) = spools(run_dir / "spool", 1)
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:-1]) + content[-1][:-3])
    merged = merge(run_dir)
    work.check_rows(work.rows_of(run_dir), [row.window for row in merged.written], 2)
    assert len(merged.written) < len(work.labels(STEPS))
    assert len(merged.waiting) == 1
    assert merged.waiting[0].endswith("for rank 1")


def _line_with(path: Path, kind: str, number: int = 0) -> int:
    """The index of a line of a segment, by its kind."""
    lines = path.read_bytes().splitlines(keepends=True)
    found = [i for i, line in enumerate(lines) if (from_line(line) or {}).get("kind") == kind]
    return found[number]


def _flip(path: Path, index: int) -> dict[str, Any]:
    """Damage a line by one bit; what it was."""
    lines = path.read_bytes().splitlines(keepends=True)
    line = bytearray(lines[index])
    line[len(line) // 2] ^= 1
    path.write_bytes(b"".join([*lines[:index], bytes(line), *lines[index + 1 :]]))
    value = from_line(lines[index])
    assert value is not None
    return value


@pytest.fixture
def small_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few windows a line, so that a line is a small part of a spool."""
    from distmetrics.worker import spool

    monkeypatch.setattr(spool, "BATCH", 3)


def _remove(path: Path, number: int) -> dict[str, Any]:
    """Take a line away; what it said."""
    lines = path.read_bytes().splitlines(keepends=True)
    said = from_line(lines.pop(number))
    assert said is not None
    path.write_bytes(b"".join(lines))
    return said


@pytest.mark.usefixtures("small_lines")
@pytest.mark.parametrize("damage", [_flip, _remove])
def test_windows_of_a_damaged_line_are_not_taken_for_empty(tmp_path: Path, damage: Any) -> None:
    """What is before it is merged; `partial` writes the rest and names the rank where it lacks."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, STEPS)
    (path,) = spools(run_dir / "spool", 1)
    gone = damage(path, _line_with(path, "windows", 2))["labels"]
    labels = [label >> 12 for label in gone]
    merged = merge(run_dir)
    first = [label for label in work.labels(STEPS) if label < labels[0]]
    work.check_rows(merged.written, first, 2)
    assert merged.waiting
    rest = merge(run_dir, partial=True).written
    assert [row.window for row in rest] == [w for w in work.labels(STEPS) if w >= labels[0]]
    assert [row.window for row in rest if row.missing_ranks] == labels
    assert {row.missing_ranks for row in rest if row.missing_ranks} == {(1,)}
    want = work.expected(work.labels(STEPS), 2)
    for row in rest:
        if not row.missing_ranks:
            assert row.values["loss"] == want[row.window]["loss"]


@pytest.mark.usefixtures("small_lines")
def test_keys_that_are_damaged_give_no_wrong_numbers(tmp_path: Path) -> None:
    """Windows that cannot be understood without them count as missing."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, STEPS)
    (path,) = spools(run_dir / "spool", 0)
    _flip(path, _line_with(path, "keys"))
    assert merge(run_dir).written == []
    rows = merge(run_dir, partial=True).written
    assert rows
    assert all(row.missing_ranks == (0,) for row in rows)


def test_a_rank_without_a_spool_is_named(tmp_path: Path) -> None:
    """Nothing is merged without it; `partial` writes what there is and says whose part lacks."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 3, STEPS)
    for path in spools(run_dir / "spool", 2):
        path.unlink()
    merged = merge(run_dir)
    assert merged.written == []
    assert merged.waiting == ["20 windows (1 to 39) wait for rank 2"]
    rows = merge(run_dir, partial=True).written
    assert [row.window for row in rows] == work.labels(STEPS)
    assert {row.missing_ranks for row in rows} == {(2,)}
    want = work.expected(work.labels(STEPS), 2)  # of the other two
    assert [row.values["loss"] for row in rows] == [w["loss"] for w in want.values()]


def test_spools_of_other_folders_are_merged_by_command(tmp_path: Path) -> None:
    """`spool_dir` puts each node's spool on its own disk; `merge --spool` takes all of them."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 3, STEPS, lambda rank: tmp_path / f"node{rank % 2}")
    assert not (run_dir / "spool").exists()
    runner = CliRunner()
    few = runner.invoke(main, ["merge", str(run_dir), "--spool", str(tmp_path / "node0")])
    assert few.exit_code == 0
    assert "0 rows written" in few.output
    folders = [str(tmp_path / "node0"), "--spool", str(tmp_path / "node1")]
    done = runner.invoke(main, ["merge", str(run_dir), "--spool", *folders])
    assert f"{len(work.labels(STEPS))} rows written" in done.output
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 3)


def test_runs_may_share_a_folder_for_their_spools(tmp_path: Path) -> None:
    """Each merge takes its own run's."""
    shared = tmp_path / "scratch"
    dead_run(tmp_path / "one", 2, 10, lambda _: shared)
    dead_run(tmp_path / "two", 2, 20, lambda _: shared)
    merge(tmp_path / "one", [shared])
    work.check_rows(work.rows_of(tmp_path / "one"), work.labels(10), 2)
    merge(tmp_path / "two", [shared])
    work.check_rows(work.rows_of(tmp_path / "two"), work.labels(20), 2)


def test_a_run_that_is_written_to_is_not_merged(tmp_path: Path) -> None:
    """The lock of the run directory keeps a merge out."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 1, 10)
    held = lock(run_dir)
    with pytest.raises(RunDirError, match="written to by another process"):
        merge(run_dir)
    held.close()
    assert merge(run_dir).written


def test_lines_of_a_spool_are_data(tmp_path: Path) -> None:
    """A line with a right checksum and nonsense in it is left out, and nothing in it is run."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 2, STEPS)
    (path,) = spools(run_dir / "spool", 1)
    nonsense: list[dict[str, Any]] = [
        {"kind": "windows"},
        {"kind": "windows", "stream": "", "labels": [1], "steps": [], "seconds": [], "late": []},
        {"kind": "keys", "stream": "", "first": 0, "keys": [["x", {"reduction": "os.system"}]]},
        {"kind": "__import__('os')", "stream": ""},
        {"kind": ["watermarks"], "marks": 3},
    ]
    with path.open("ab") as file:
        for value in nonsense:
            file.write(to_line(value))
        file.write(b"\x80\x04cos\nsystem\n(S'touch /tmp/x'\ntR.\n")
    merge(run_dir)
    work.check_rows(work.rows_of(run_dir), work.labels(STEPS), 2)


def test_files_follow_the_umask(tmp_path: Path) -> None:
    """A spool and the records are as readable as the user's other files."""
    import os

    before = os.umask(0o027)
    try:
        run_dir = tmp_path / "run"
        dead_run(run_dir, 1, 10)
        merge(run_dir)
    finally:
        os.umask(before)
    for path in [*run_dir.glob("*.json*"), *(run_dir / "spool").iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o640, path
