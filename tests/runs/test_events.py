"""Reading TensorBoard event files."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from torch.utils.tensorboard import SummaryWriter

from distmetrics.errors import RunDirError
from distmetrics.runs import RunData, open_run


def write(folder: Path, points: dict[str, list[tuple[int, float]]], **options: object) -> Path:
    """An event file with these points, written by PyTorch's own writer; returns the folder."""
    writer = SummaryWriter(str(folder), **options)  # type: ignore[arg-type]
    for tag, values in points.items():
        for step, value in values:
            writer.add_scalar(tag, value, step)
    writer.close()
    return folder


def values_of(run: RunData, key: str) -> dict[int, float]:
    """Step to value of one key."""
    series = run.series[key]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def event_file(folder: Path) -> Path:
    """The one event file of a folder."""
    (found,) = [path for path in folder.iterdir() if "tfevents" in path.name]
    return found


def test_simple_values_are_read_as_float32(tmp_path: Path) -> None:
    """The file holds float32, and the run says so."""
    folder = write(tmp_path, {"loss": [(0, 1 / 3), (1, 0.25)], "n": [(0, 16777217)]})
    run = open_run(folder, world_size=2)
    assert run.precision == "float32"
    assert values_of(run, "loss") == {0: pytest.approx(1 / 3, rel=1e-7), 1: 0.25}
    assert values_of(run, "n") == {0: 16777216.0}


def test_tensor_scalars_keep_float64(tmp_path: Path) -> None:
    """Scalars of the new style are tensors, with double precision if they were written so."""
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("single", 1 / 3, 0, new_style=True)
    writer.add_scalar("double", 1 / 3, 0, new_style=True, double_precision=True)
    writer.close()
    run = open_run(tmp_path)
    assert values_of(run, "double") == {0: 1 / 3}
    assert run.series["double"].precision == "float64"
    assert run.series["single"].precision == "float32"


def test_several_files_of_one_run_are_one_series(tmp_path: Path) -> None:
    """A run that was resumed has one point per step, the later file's where both have it."""
    write(tmp_path, {"x": [(step, 0.0) for step in range(8)]}, filename_suffix=".a")
    first = event_file(tmp_path)
    first.rename(tmp_path / "events.out.tfevents.1000.host")
    write(tmp_path, {"x": [(step, 1.0) for step in range(5, 7)]}, filename_suffix=".b")
    run = open_run(tmp_path)
    assert values_of(run, "x") == dict.fromkeys(range(5), 0.0) | {5: 1.0, 6: 1.0, 7: 0.0}
    assert any("several event files" in warning for warning in run.warnings)


def test_a_purge_mark_removes_the_later_steps_of_earlier_files(tmp_path: Path) -> None:
    """`purge_step` of the resumed run takes away what the lost attempt wrote from there on."""
    write(tmp_path, {"x": [(step, 0.0) for step in range(10)]})
    event_file(tmp_path).rename(tmp_path / "events.out.tfevents.1000.host")
    write(tmp_path, {"x": [(6, 1.0), (7, 1.0)]}, purge_step=6)
    run = open_run(tmp_path)
    assert values_of(run, "x") == dict.fromkeys(range(6), 0.0) | {6: 1.0, 7: 1.0}
    assert run.warnings == []


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_file_keeps_its_good_records(tmp_path: Path, cut: int) -> None:
    """All records before a torn end are read, with a warning."""
    write(tmp_path, {"x": [(step, float(step)) for step in range(50)]})
    path = event_file(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    run = open_run(tmp_path)
    found = values_of(run, "x")
    assert len(found) >= 46
    assert found == {step: float(step) for step in range(len(found))}
    assert "middle of a record" in run.warnings[0]


def test_a_flipped_bit_ends_the_file_with_a_warning(tmp_path: Path) -> None:
    """A record whose checksum is wrong is not believed, nor what follows."""
    write(tmp_path, {"x": [(step, float(step)) for step in range(50)]})
    path = event_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))
    run = open_run(tmp_path)
    assert 10 < len(values_of(run, "x")) < 40
    assert "damaged" in run.warnings[0]


def test_garbage_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    """A file with the name of an event file but none of its contents holds no scalar."""
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"nonsense" * 100)
    with pytest.raises(RunDirError, match="no scalar"):
        open_run(tmp_path)


def test_folders_below_are_prefixes(tmp_path: Path) -> None:
    """`add_scalars` writes folders of its own, whose tags keep apart."""
    write(tmp_path, {"loss": [(0, 1.0)]})
    write(tmp_path / "sub", {"loss": [(0, 2.0)]})
    run = open_run(tmp_path)
    assert values_of(run, "loss") == {0: 1.0}
    assert values_of(run, "sub/loss") == {0: 2.0}


def test_a_single_folder_below_is_the_run(tmp_path: Path) -> None:
    """Where the one event file lies deeper, its tags have no prefix."""
    write(tmp_path / "runs" / "exp", {"loss": [(0, 1.0)]})
    assert values_of(open_run(tmp_path), "loss") == {0: 1.0}


def test_other_summaries_are_left_out_and_named(tmp_path: Path) -> None:
    """Histograms and texts are no scalars."""
    import torch

    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("x", math.nan, 0)
    writer.add_histogram("weights", torch.arange(4.0), 0)
    writer.add_text("note", "hello", 0)
    writer.close()
    run = open_run(tmp_path)
    assert math.isnan(values_of(run, "x")[0])
    assert list(run.series) == ["x"]
    assert "weights" in run.warnings[0]


def test_session_starts_of_the_first_file_purge_nothing_of_itself(tmp_path: Path) -> None:
    """A start mark concerns what was written before, in other files."""
    mark = Event(step=3, session_log=SessionLog(status=SessionLog.START))
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("x", 1.0, 5)
    writer._get_file_writer().add_event(mark)  # type: ignore[no-untyped-call]
    writer.add_scalar("x", 2.0, 6)
    writer.close()
    assert values_of(open_run(tmp_path), "x") == {5: 1.0, 6: 2.0}
