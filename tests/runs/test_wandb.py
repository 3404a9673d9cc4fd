"""Reading W&B offline runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from distmetrics.errors import RunDirError
from distmetrics.runs import RunData, open_run


def write(folder: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    """An offline run with these rows, written by wandb; returns its `.wandb` file."""
    import wandb

    folder.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    before = set(folder.rglob("*.wandb"))
    run = wandb.init(dir=folder, mode="offline", settings=settings, **options)
    for row in rows:
        run.log(row)
    run.finish()
    wandb.teardown()  # waits for wandb's own process, which writes the file
    (found,) = {path.resolve() for path in folder.rglob("*.wandb")} - {
        path.resolve() for path in before
    }
    return found


def values_of(run: RunData, key: str) -> dict[int, float]:
    """Step to value of one key."""
    series = run.series[key]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `.wandb` file of a run of 300 rows with a step key of its own and a nested key."""
    folder = tmp_path_factory.mktemp("wandb-run")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
            patch.setenv(name, str(folder / name.lower()))
        rows = [
            {
                "step": 10 * number,
                "loss": 1 / (number + 3),
                "n": 16,
                "text": "no number",
                "val": {"acc": number / 8},
            }
            for number in range(300)
        ]
        return write(folder, rows, config={"world_size": 4, "lr": 0.1})


def test_rows_are_read_with_their_step_key(offline: Path) -> None:
    """The ordinary key `step` is the step; values keep float64."""
    run = open_run(offline)
    assert values_of(run, "loss") == {10 * number: 1 / (number + 3) for number in range(300)}
    assert run.series["n"].integer
    assert run.precision == "float64"
    assert run.config["lr"] == 0.1
    assert run.world_size == 4
    assert any("text" in warning for warning in run.warnings)
    assert not {"_step", "_timestamp", "_runtime", "step"} & set(run.series)


def test_the_folder_of_a_run_is_read(offline: Path) -> None:
    """A folder that holds the run, through links too, gives the same."""
    folder = next(path for path in offline.parents if path.name == "wandb")
    assert len(open_run(folder).series["loss"]) == 300


@pytest.mark.parametrize("part", [0.3, 0.6, 0.98])
def test_a_torn_file_keeps_its_good_records(offline: Path, tmp_path: Path, part: float) -> None:
    """All whole rows before a torn end are read, with a warning."""
    torn = tmp_path / "run-torn.wandb"
    data = offline.read_bytes()
    torn.write_bytes(data[: int(len(data) * part)])
    run = open_run(torn, world_size=2)
    found = values_of(run, "loss")
    assert 0.2 * 300 * part < len(found) <= 300
    assert found == {10 * number: 1 / (number + 3) for number in range(len(found))}
    assert "middle of a record" in run.warnings[0]


def test_a_flipped_byte_ends_the_file(offline: Path, tmp_path: Path) -> None:
    """A record whose checksum is wrong is not believed."""
    bad = tmp_path / "run-bad.wandb"
    data = bytearray(offline.read_bytes())
    data[len(data) // 2] ^= 0xFF
    bad.write_bytes(bytes(data))
    run = open_run(bad)
    assert 0 < len(run.series["loss"]) < 300
    assert run.warnings


def test_garbage_is_an_error(tmp_path: Path) -> None:
    """A `.wandb` file that is none holds no history."""
    (tmp_path / "run-x.wandb").write_bytes(b"garbage")
    with pytest.raises(RunDirError, match="no history"):
        open_run(tmp_path)


def test_without_a_step_key_the_internal_step_counts(tmp_path: Path) -> None:
    """W&B's own step is used where the rows have none; NaN stays NaN."""
    path = write(tmp_path, [{"x": 1.5}, {"x": float("nan")}, {"x": 2.5}])
    found = values_of(open_run(path), "x")
    assert list(found) == [0, 1, 2]
    assert found[0] == 1.5
    assert found[1] != found[1]


def test_resumed_sessions_of_one_run_are_joined(tmp_path: Path) -> None:
    """A second folder with the same run id continues the run; its rows count where both do."""
    first = write(tmp_path / "a", [{"step": step, "x": 0.0} for step in range(5)], id="same")
    second = write(tmp_path / "b", [{"step": step, "x": 1.0} for step in (3, 4, 5)], id="same")
    folder = tmp_path / "both"
    folder.mkdir()
    shutil.copy(first, folder / "offline-run-1.wandb")
    shutil.copy(second, folder / "offline-run-2.wandb")
    found = values_of(open_run(folder), "x")
    assert found == {0: 0.0, 1: 0.0, 2: 0.0, 3: 1.0, 4: 1.0, 5: 1.0}


def test_one_run_per_process_is_warned_of(tmp_path: Path) -> None:
    """Of several runs the one with the most rows is taken, and the others are named."""
    write(tmp_path, [{"step": step, "x": 0.0} for step in range(5)], id="rank0")
    write(tmp_path, [{"step": 0, "x": 1.0}], id="rank1")
    run = open_run(tmp_path)
    assert values_of(run, "x") == dict.fromkeys(range(5), 0.0)
    assert "rank1" in run.warnings[0]
