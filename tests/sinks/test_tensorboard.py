"""Event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import logging
import math
import re
import shutil
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from distmetrics.sinks import TensorBoardSink
from tests.sinks.records import record, run
from tests.sinks.test_append import file_size_limit

Curve = list[tuple[int, float]]


@pytest.fixture(autouse=True)
def quiet_reader() -> Iterator[None]:
    """TensorBoard's reader warns of the very purge that is tested."""
    logger = logging.getLogger("tensorboard")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)


def read(folder: Path) -> EventAccumulator:
    """All events of one folder."""
    return EventAccumulator(str(folder), {"scalars": 0, "images": 0, "tensors": 0}).Reload()


def curve(folder: Path, tag: str) -> Curve:
    """A tag's steps and values, by TensorBoard's reader for scripts."""
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def served_curve(folder: Path, tag: str) -> Curve:
    """A tag's steps and values, by the reader of TensorBoard's pages."""
    events = plugin_event_accumulator.EventAccumulator(str(folder), {"tensors": 0}).Reload()
    return [(e.step, float(e.tensor_proto.float_val[0])) for e in events.Tensors(tag)]


def attempt(folder: Path, steps: list[int], number: int = 0, since: int | None = None) -> None:
    """One attempt's records: ``loss`` is ten times the attempt, and a fraction of the step."""
    sink = TensorBoardSink()
    sink.open(run(folder, attempt=number, resumed_from=since))
    for step in steps:
        sink.write(record(step, {"loss": value(number, step)}, attempt=number))
    sink.close()


def value(number: int, step: int) -> float:
    """A value that float32 holds exactly."""
    return 10 * number + step / 256


def event_files(folder: Path) -> list[str]:
    """The names of all event files below a folder."""
    return sorted(path.name for path in folder.rglob("events.out.tfevents.*"))


def float32(number: float) -> float:
    """The number as an event file holds it."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def test_one_event_a_record_in_one_file(tmp_path: Path) -> None:
    """All records of an attempt are in one event file, each with its step and its time."""
    attempt(tmp_path, [5, 3, 6])
    assert len(event_files(tmp_path)) == 1
    assert event_files(tmp_path) == event_files(tmp_path / "tensorboard")
    events = read(tmp_path / "tensorboard").Scalars("loss")
    assert [(e.step, e.value) for e in events] == [(s, value(0, s)) for s in (5, 3, 6)]
    assert [e.wall_time for e in events] == [1005.0, 1003.0, 1006.0]


def test_no_file_before_the_first_record(tmp_path: Path) -> None:
    """A sink that gets no record leaves neither a file nor a folder."""
    sink = TensorBoardSink()
    sink.open(run(tmp_path))
    sink.write(record(1, {}))  # a record without numbers is none for TensorBoard
    sink.close()
    assert list(tmp_path.iterdir()) == []


def test_values_are_float32(tmp_path: Path) -> None:
    """Integers and floats come back rounded to float32; NaN and infinities as they are."""
    values: dict[str, float] = {
        "count": 16777217,
        "third": 1 / 3,
        "big": 2**70,
        "bigger": 1e300,
        "huge": -(10**400),
        "nan": math.nan,
        "inf": math.inf,
        "neg": -math.inf,
        "bool": True,
    }
    sink = TensorBoardSink(tmp_path)
    sink.open(run())
    sink.write(record(1, values))
    sink.close()
    found = {tag: curve(tmp_path, tag)[0][1] for tag in values}
    assert math.isnan(found.pop("nan"))
    assert found == {
        "count": 16777216.0,
        "third": float32(1 / 3),
        "big": float(2**70),
        "bigger": math.inf,
        "huge": -math.inf,
        "inf": math.inf,
        "neg": -math.inf,
        "bool": 1.0,
    }


def test_odd_keys_are_tags_as_they_are(tmp_path: Path) -> None:
    """Dots, slashes, spaces, any letters and any length make tags of their own."""
    keys = ["a.b", "a/b", "a b", "a_b", "/a", "a/", "..", "ä", "損失", "k" * 300, '"\\\n', "a:b"]
    sink = TensorBoardSink(tmp_path)
    sink.open(run())
    sink.write(record(1, {key: number for number, key in enumerate(keys)}))
    sink.close()
    assert [curve(tmp_path, key) for key in keys] == [[(1, n)] for n in range(len(keys))]


def test_every_record_is_readable_at_once(tmp_path: Path) -> None:
    """A record is in the file when `write` returns, so that a killed process loses none."""
    sink = TensorBoardSink(tmp_path)
    sink.open(run())
    for step in range(3):
        sink.write(record(step))
        assert len(curve(tmp_path, "loss")) == step + 1
    sink.close()


@pytest.mark.parametrize("reader", [curve, served_curve])
def test_resume_hides_the_steps_it_writes_again(
    tmp_path: Path, reader: Callable[[Path, str], Curve]
) -> None:
    """Of two resumed runs each step is read once, with the value of the last that wrote it."""
    attempt(tmp_path, list(range(150)))
    attempt(tmp_path, list(range(100, 120)), number=1, since=100)
    attempt(tmp_path, list(range(110, 112)), number=2, since=110)
    steps = [(0, range(100)), (1, range(100, 110)), (2, range(110, 112))]
    expected = [(step, value(number, step)) for number, part in steps for step in part]
    assert reader(tmp_path / "tensorboard", "loss") == expected
    assert len(event_files(tmp_path)) == 3


def test_resume_without_a_first_step_hides_nothing(tmp_path: Path) -> None:
    """An attempt that writes nothing again leaves the others' events alone."""
    attempt(tmp_path, [0, 1])
    attempt(tmp_path, [2], number=1)
    assert [step for step, _ in served_curve(tmp_path / "tensorboard", "loss")] == [0, 1, 2]
    assert [step for step, _ in curve(tmp_path / "tensorboard", "loss")] == [0, 1, 2]


def test_files_of_others_are_not_purged(tmp_path: Path) -> None:
    """A first attempt in a folder with another writer's events hides none of them."""
    attempt(tmp_path / "other", [5, 6])
    shutil.copytree(tmp_path / "other" / "tensorboard", tmp_path / "tensorboard")
    attempt(tmp_path, [0, 1])
    assert sorted(step for step, _ in curve(tmp_path / "tensorboard", "loss")) == [0, 1, 5, 6]


def test_later_attempts_sort_after_earlier_ones(tmp_path: Path) -> None:
    """Attempts within a second, or after one whose clock ran ahead, are read in their order."""
    attempt(tmp_path, [0, 1, 2])
    folder = tmp_path / "tensorboard"
    (first,) = folder.iterdir()
    ahead = re.sub(r"\d{10}", lambda stamp: str(int(stamp[0]) + 5000), first.name, count=1)
    first.rename(folder / ahead)
    attempt(tmp_path, [1, 2], number=1, since=1)
    assert event_files(folder)[0] == ahead
    assert curve(folder, "loss") == [(s, value(n, s)) for s, n in ((0, 0), (1, 1), (2, 1))]


def test_handle_writes_into_the_same_file(tmp_path: Path) -> None:
    """The handle is a SummaryWriter into the run's one event file, which outlives its close."""
    sink = TensorBoardSink()
    assert sink.handle is None
    sink.open(run(tmp_path))
    writer = sink.handle
    assert writer is not None
    assert sink.handle is writer
    writer.add_text("note", "hello", 1)
    sink.write(record(1))
    writer.close()
    writer.add_scalar("mine", 2.5, 2)
    sink.write(record(2))
    sink.close()
    assert len(event_files(tmp_path)) == 1
    tags: dict[str, Any] = read(tmp_path / "tensorboard").Tags()
    assert tags["tensors"] == ["note/text_summary"]
    assert tags["scalars"] == ["loss", "mine"]
    assert len(curve(tmp_path / "tensorboard", "loss")) == 2


def test_handle_may_be_used_by_other_threads(tmp_path: Path) -> None:
    """Events of several threads beside the sink are all readable."""
    sink = TensorBoardSink(tmp_path)
    sink.open(run())

    def draw(name: str) -> None:
        writer = sink.handle
        assert writer is not None
        for step in range(100):
            writer.add_scalar(name, step, step)

    threads = [threading.Thread(target=draw, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for step in range(100):
        sink.write(record(step))
    for thread in threads:
        thread.join()
    sink.close()
    assert len(event_files(tmp_path)) == 1
    assert [len(curve(tmp_path, tag)) for tag in ("a", "b", "c", "loss")] == [100] * 4


def test_full_disk_costs_only_the_records_that_did_not_fit(tmp_path: Path) -> None:
    """Records written while the disk was full raise; those before and after are readable."""
    sink = TensorBoardSink(tmp_path)
    sink.open(run())
    sink.write(record(1))
    (file,) = tmp_path.iterdir()
    with file_size_limit(file.stat().st_size + 10), pytest.raises(OSError, match="too large"):
        sink.write(record(2))
    sink.write(record(3))
    sink.close()
    assert [step for step, _ in curve(tmp_path, "loss")] == [1, 3]


def test_deleted_folder_costs_only_what_was_in_it(tmp_path: Path) -> None:
    """After the folder was deleted under the sink, later records are in a new one."""
    sink = TensorBoardSink()
    sink.open(run(tmp_path))
    sink.write(record(1))
    shutil.rmtree(tmp_path / "tensorboard")
    sink.write(record(2))
    sink.close()
    assert [step for step, _ in curve(tmp_path / "tensorboard", "loss")] == [2]


def test_without_a_place_it_says_so() -> None:
    """A sink with neither directory nor run directory names both ways to give one."""
    with pytest.raises(ValueError, match="run_dir"):
        TensorBoardSink().open(run())
    with pytest.raises(ValueError, match="not open"):
        TensorBoardSink().write(record(1))
