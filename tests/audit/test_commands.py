"""The command line of the audit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from distmetrics.audit.commands import audit

LOSS = 0.3 + 2 * np.exp(-np.arange(40) / 10)


def write(folder: Path, size: int, factor: float, name: str = "loss") -> Path:
    """A run directory with one key."""
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"world_size": size}))
    rows = (
        {"step": step, "first_step": step, "window": step, "values": {name: factor * value}}
        for step, value in enumerate(LOSS.tolist())
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def call(*arguments: object) -> Result:
    """What `distmetrics audit` does with these arguments."""
    return CliRunner().invoke(audit, [str(argument) for argument in arguments])


def test_a_fault_exits_with_1_and_all_reports_are_written(tmp_path: Path) -> None:
    """JSON, JUnit and the page stand where they were asked for."""
    paths = [write(tmp_path / f"w{size}", size, size) for size in (1, 2, 4)]
    out = tmp_path / "out"
    done = call(
        "compare", *paths, "--json", out / "a.json", "--junit", out / "a.xml", "--html",
        out / "a.html",
    )  # fmt: skip
    assert done.exit_code == 1, done.output
    assert "grows_with_ranks" in done.output
    assert json.loads((out / "a.json").read_text())["keys"]["loss"]["verdict"] == "grows_with_ranks"
    assert (out / "a.xml").read_text().startswith("<?xml")
    assert (out / "a.html").read_text().startswith("<!DOCTYPE html>")


def test_clean_runs_exit_with_0(tmp_path: Path) -> None:
    """Equal runs pass."""
    paths = [write(tmp_path / f"w{size}", size, 1) for size in (1, 2)]
    done = call("compare", *paths)
    assert done.exit_code == 0, done.output
    assert "No logging fault in 1 keys" in done.output


def test_the_tolerance_can_be_set(tmp_path: Path) -> None:
    """A difference of one part in a thousand passes a tolerance of a hundredth."""
    paths = [write(tmp_path / f"w{size}", size, 1 + 0.001 * (size - 1)) for size in (1, 2)]
    assert call("compare", *paths).exit_code == 1
    assert call("compare", *paths, "--rtol", "0.01").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "absent"],
        ["compare", "w1"],
        ["compare", "w1", "w2", "--x", "samples"],
        ["compare", "w1", "w2", "--rtol", "7"],
        ["compare"],
        ["explain", "loss", "w1"],
        ["run", "--world-sizes", "1,2", "--", "absent.py"],
        ["run", "--world-sizes", "2", "--", "absent.py"],
        ["run", "--world-sizes", "a,b", "--", "absent.py"],
    ],
)
def test_what_cannot_be_done_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    """Missing files, one run only, an absent axis: a message, not a traceback."""
    monkeypatch.chdir(tmp_path)
    for size in (1, 2):
        write(tmp_path / f"w{size}", size, 1)
    done = call(*arguments)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)


def test_tables_are_compared_with_given_world_sizes(tmp_path: Path) -> None:
    """CSV files of another tool, as 1=path and 2=path."""
    for size in (1, 2):
        text = "step,loss\n" + "".join(f"{at},{value / size}\n" for at, value in enumerate(LOSS))
        (tmp_path / f"{size}.csv").write_text(text)
    done = call("compare", f"1={tmp_path / '1.csv'}", f"2={tmp_path / '2.csv'}")
    assert done.exit_code == 1, done.output
    assert "shrinks_with_ranks" in done.output


NAN = LOSS.copy()
NAN[20] = np.nan
APART = LOSS * (1 + np.linspace(0, 0.1, 40) ** 2)


@pytest.mark.parametrize(
    ("key", "other", "verdict", "code", "strict"),
    [
        ("loss", LOSS, "identical", 0, 0),
        ("loss", LOSS * (1 + 1e-9), "close", 0, 0),
        ("loss", APART, "drift", 0, 1),
        ("loss", NAN, "nonfinite", 1, 1),
        ("loss", None, "missing", 1, 1),
        ("loss", LOSS[:8] * [1.1, 0.8, 1.3, 1.02, 0.9, 1.05, 0.85, 1.2], "undecided", 1, 1),
        ("loss", LOSS * 2, "grows_with_ranks", 1, 1),
        ("step_time", LOSS * 1.3 + np.sin(LOSS), "expected_scaling", 0, 0),
    ],
)
def test_exit_codes_follow_the_verdict(
    tmp_path: Path, key: str, other: np.ndarray | None, verdict: str, code: int, strict: int
) -> None:
    """Each fault fails the audit, drift a strict one only, what is expected none."""
    columns = {1: LOSS, 2: LOSS if other is None else other}
    for size, values in columns.items():
        name = "other" if other is None and size == 2 else key
        rows = (f"{at},{value!r},1.0\n" for at, value in enumerate(values.tolist()))
        (tmp_path / f"{size}.csv").write_text(f"step,{name},lr\n" + "".join(rows))
    paths = [f"{size}={tmp_path / f'{size}.csv'}" for size in columns]
    done = call("compare", *paths, "--json", tmp_path / "a.json")
    found = json.loads((tmp_path / "a.json").read_text())["keys"]
    assert found[key]["verdict"] == verdict, done.output
    assert done.exit_code == code, done.output
    assert call("compare", *paths, "--strict").exit_code == strict


def test_a_remedy_is_one_line(tmp_path: Path) -> None:
    """What is to be copied is not broken, however narrow the terminal."""
    name = f"loss/{'long_' * 25}"
    paths = [write(tmp_path / f"w{size}", size, size, name) for size in (1, 2, 4)]
    done = call("compare", *paths)
    assert any(
        line.startswith(f'    registry.average("{name}")  #') for line in done.output.splitlines()
    )


def test_explain_takes_a_value_apart(tmp_path: Path) -> None:
    """Who contributed what, and which formula gives what was logged."""
    folder = write(tmp_path / "run", 2, 1.0)
    for rank, (value, weight) in enumerate([(1.0, 3), (2.0, 2)]):
        row = {"step": 39, "window": 39, "key": "loss", "value": value, "weight": weight}
        (folder / f"contributions-rank{rank}.jsonl").write_text(json.dumps(row) + "\n")
    done = call("explain", "loss", folder)
    assert done.exit_code == 0, done.output
    assert "weighted mean over all ranks: 1.4" in done.output
    assert "mean of the ranks' means: 1.5" in done.output


def test_an_event_file_is_compared_as_float32(tmp_path: Path) -> None:
    """A count beyond float32 agrees with its event file; with another JSONL it does not."""
    from torch.utils.tensorboard import SummaryWriter

    big = 16777217
    for name, count in (("a", big), ("b", big - 1)):
        row = {"step": 0, "first_step": 0, "window": 0, "world_size": 2, "values": {"n": count}}
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    writer = SummaryWriter(str(tmp_path / "events"))
    writer.add_scalar("n", big, 0)
    writer.close()
    done = call("compare", tmp_path / "a", f"2={tmp_path / 'events'}")
    assert done.exit_code == 0, done.output
    assert "float32" in done.output
    assert call("compare", tmp_path / "a", tmp_path / "b").exit_code == 1
