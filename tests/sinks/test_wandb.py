"""Rows of W&B runs, read back from the files of offline runs and from a server on loopback."""

from __future__ import annotations

import inspect
import math
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from distmetrics.errors import DistmetricsWarning
from distmetrics.record import Record, Value
from distmetrics.sinks import WandbSink
from distmetrics.sinks.wandb_account import has_credentials
from distmetrics.sinks.wandb_file import await_end
from tests.sinks.records import record, run
from tests.sinks.wandb_log import WandbLog, read_wandb, wandb_files
from tests.sinks.wandb_server import wandb_server

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"
"""A server that refuses connections."""


def write(directory: Path, records: list[Record], **fields: Any) -> WandbSink:
    """A closed sink that wrote `records`."""
    sink = WandbSink()
    sink.open(run(directory, **fields))
    for row in records:
        sink.write(row)
    sink.close()
    return sink


def one_log(directory: Path) -> WandbLog:
    """The content of the only run in a run directory."""
    (file,) = wandb_files(directory)
    return read_wandb(file)


def without_clock(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the columns of W&B's own."""
    return {key: value for key, value in row.items() if not key.startswith("_")}


def run_script(
    script: str, directory: Path, **variables: str | None
) -> subprocess.CompletedProcess[str]:
    """The script, which may use `directory`, in a process with a home of its own."""
    done = subprocess.run(
        [sys.executable, "-c", prelude(directory) + inspect.cleandoc(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment(directory, **variables),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done


def prelude(directory: Path) -> str:
    """What scripts begin with."""
    return (
        inspect.cleandoc(
            f"""
        import os, sys
        from pathlib import Path
        from distmetrics.sinks import IsolatedSink, WandbSink
        from tests.sinks.records import record, run
        directory = Path({str(directory)!r})
        before = dict(os.environ)
        """
        )
        + "\n"
    )


def environment(directory: Path, **variables: str | None) -> dict[str, str]:
    """This process's variables without W&B's and without a user's account, and `variables`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    own = {"HOME": str(directory), "PYTHONPATH": str(REPOSITORY), "WANDB_ERROR_REPORTING": "false"}
    given = {key: value for key, value in variables.items() if value is not None}
    return {**kept, **own, **given}


def test_each_record_is_a_row(tmp_path: Path) -> None:
    """Each record is one row with its step, its time and its values, lower steps included."""
    write(tmp_path, [record(5), record(3), record(6)])
    log = one_log(tmp_path)
    assert [without_clock(row) for row in log.rows] == [
        {"step": step, "loss": step / 2} for step in (5, 3, 6)
    ]
    assert [row["_timestamp"] for row in log.rows] == [1005.0, 1003.0, 1006.0]
    assert [row["_step"] for row in log.rows] == [0, 1, 2]
    assert (log.name, log.exit_code) == ("example", 0)


def test_step_is_the_axis_of_every_key(tmp_path: Path) -> None:
    """Each key's x-axis is the key step, a child's the step of the child; steps are no charts."""
    child = record(7, {"val/loss": 0.5, "val/a.b": 1.0}, logger="val")
    write(tmp_path, [record(5, {"loss": 1.0, "lr": 0.1}), child, record(8, {"loss": 1.0})])
    log = one_log(tmp_path)
    assert log.step_metrics == {
        "loss": "step",
        "lr": "step",
        "val/loss": "val/step",
        "val/a\\.b": "val/step",
    }
    assert log.hidden == {"step", "val/step"}
    assert without_clock(log.rows[1]) == {"val/step": 7, "val/loss": 0.5, "val/a.b": 1}


def test_values_are_kept(tmp_path: Path) -> None:
    """NaN, infinities, floats and integers beyond 2**53 come back as they were."""
    values: dict[str, Value] = {
        "count": 16777217,
        "large": 2**53 + 1,
        "huge": 10**400,
        "third": 1 / 3,
        "tiny": 5e-324,
        "inf": math.inf,
        "neg": -math.inf,
        "nan": math.nan,
    }
    write(tmp_path, [record(1, values)])
    row = without_clock(one_log(tmp_path).rows[0])
    assert math.isnan(row.pop("nan"))
    assert row == {
        "step": 1,
        "count": 16777217,
        "large": 2**53 + 1,
        "huge": math.inf,
        "third": 1 / 3,
        "tiny": 5e-324,
        "inf": math.inf,
        "neg": -math.inf,
    }


def test_odd_keys_are_columns_of_their_own(tmp_path: Path) -> None:
    """Dots, slashes, spaces, stars, any letters and any length make columns as they are."""
    keys = ["a.b", "a/b", "a b", "a_b", "a*", "*", "a*b", "..", "ä", "損失", "k" * 300, '"\\\n']
    write(tmp_path, [record(1, {key: number for number, key in enumerate(keys)})])
    row = without_clock(one_log(tmp_path).rows[0])
    assert row == {"step": 1, **{key: number for number, key in enumerate(keys)}}


def test_keys_named_as_a_column_get_one_of_their_own(tmp_path: Path) -> None:
    """A key that is called as a column of W&B or of the sink neither loses nor hides a value."""
    keys = ["step", "step_", "attempt", "_step", "_timestamp", "_runtime", "", "_", "stepper"]
    write(tmp_path, [record(1, {key: 100 + n for n, key in enumerate(keys)}, attempt=2)])
    (row,) = one_log(tmp_path).rows
    assert {key: row[f"{key}_"] for key in keys[:-1]} == {
        k: 100 + n for n, k in enumerate(keys[:-1])
    }
    assert (row["step"], row["attempt"], row["_step"], row["_timestamp"]) == (1, 2, 0, 1001.0)
    assert row["stepper"] == 108


def test_resumed_run_goes_on_under_its_id(tmp_path: Path) -> None:
    """A second attempt uses the first one's run and says in each row which attempt it is."""
    first = write(tmp_path, [record(step) for step in range(3)])
    state = first.state()
    second = write(tmp_path, [record(2, attempt=1)], attempt=1, resumed_from=2, state=state)
    assert second.state() == state
    logs = [read_wandb(file) for file in wandb_files(tmp_path)]
    assert [log.run_id for log in logs] == [state["id"]] * 2
    rows = [without_clock(row) for log in logs for row in log.rows]
    assert rows[2:] == [{"step": 2, "loss": 1}, {"step": 2, "loss": 1, "attempt": 1}]


def test_options_go_to_wandb(tmp_path: Path) -> None:
    """Name, id, config and settings given by the user are used."""
    import wandb

    for settings in ({"run_notes": "hello"}, wandb.Settings(run_notes="hello")):
        sink = WandbSink("offline", id="mine", name="fine", settings=settings)
        sink.open(run(tmp_path / type(settings).__name__, config={"lr": 0.1}))
        assert sink.handle is not None
        assert sink.handle.notes == "hello"
        sink.close()
        log = one_log(tmp_path / type(settings).__name__)
        assert (log.run_id, log.name, log.config["lr"]) == ("mine", "fine", 0.1)


def test_handle_logs_beside(tmp_path: Path) -> None:
    """The handle is the run itself, for what is no metric."""
    sink = WandbSink()
    assert sink.handle is None
    sink.open(run(tmp_path))
    sink.write(record(1))
    assert sink.handle is not None
    sink.handle.log({"note": "hello"})
    sink.write(record(2))
    sink.close()
    rows = [without_clock(row) for row in one_log(tmp_path).rows]
    assert rows == [{"step": 1, "loss": 0.5}, {"note": "hello"}, {"step": 2, "loss": 1}]


def test_a_run_of_the_users_own_is_used_and_left_open(tmp_path: Path) -> None:
    """Records go into a run that the user began, which the sink does not finish."""
    import wandb

    (tmp_path / "own").mkdir()
    with wandb.init(dir=tmp_path / "own", mode="offline", reinit="create_new") as mine:
        sink = WandbSink(run=mine)
        assert not sink.needs_directory
        sink.open(run())
        sink.write(record(1))
        sink.close()
        mine.log({"after": 1})
    (file,) = wandb_files(tmp_path / "own")
    assert await_end(file, 0, 30.0)  # W&B's service writes the last block when it gets to it
    rows = [without_clock(row) for row in one_log(tmp_path / "own").rows]
    assert rows == [{"step": 1, "loss": 0.5}, {"after": 1}]


def test_two_runs_of_one_process_are_apart(tmp_path: Path) -> None:
    """Two sinks at once write two runs, each with its own records."""
    sinks = [WandbSink(), WandbSink()]
    for number, sink in enumerate(sinks):
        sink.open(run(tmp_path / str(number)))
    for number, sink in enumerate(sinks):
        sink.write(record(number))
    for sink in sinks:
        sink.close()
    for number in range(2):
        (row,) = one_log(tmp_path / str(number)).rows
        assert row["step"] == number


def test_without_a_place_it_says_so() -> None:
    """A sink with neither dir nor run directory names both ways to give one."""
    with pytest.raises(ValueError, match="run_dir"):
        WandbSink().open(run())
    with pytest.raises(ValueError, match="not open"):
        WandbSink().write(record(1))


def test_unknown_mode_is_refused_at_once() -> None:
    """A mode that W&B does not know is an error where the sink is made."""
    with pytest.raises(ValueError, match=r"'of-line'.*'offline'"):
        WandbSink("of-line")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "host", "netrc", "expected"),
    [
        (None, "api.wandb.ai", None, False),
        ("0" * 40, "api.wandb.ai", None, True),
        (None, "api.wandb.ai", "machine api.wandb.ai login user password 0123", True),
        (None, "api.forge.coreweave.com", "machine api.wandb.ai login user password 0123", True),
        (None, "api.wandb.ai", "machine example.org login user password 0123", False),
        (None, "127.0.0.1:8080", "machine 127.0.0.1:8080 login user password 0123", True),
        (None, "127.0.0.1:8080", "machine api.wandb.ai login user password 0123", False),
        (None, "api.wandb.ai", "machine machine machine", False),
    ],
)
def test_account_is_found_where_wandb_keeps_it(
    key: str | None,
    host: str,
    netrc: str | None,
    expected: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An API key in the settings or in netrc counts, another host's or a broken file does not."""
    import wandb

    file = tmp_path / "netrc"
    if netrc is not None:
        file.write_text(netrc)
    monkeypatch.setenv("NETRC", str(file))
    settings = wandb.Settings(api_key=key, base_url=f"https://{host}")
    assert has_credentials(settings) is expected


WRITE_ONE = """
    sink = WandbSink(init_timeout=30)
    sink.open(run(directory))
    sink.write(record(4))
    sink.close()
    assert dict(os.environ) == before, set(os.environ.items()) ^ set(before.items())
    """
IMPATIENT = WRITE_ONE.replace("init_timeout=30", "init_timeout=1")


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, marks=pytest.mark.heavy),
        {"WANDB_SILENT": "", "WANDB_MODE": "", "WANDB_NAME": ""},
    ],
)
def test_offline_without_an_account_and_without_a_word(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    """Without a key the run is offline; nothing is printed, and no variable is left or lost."""
    done = run_script(WRITE_ONE, tmp_path, **variables)
    assert (done.stdout, done.stderr) == ("", "")
    assert without_clock(one_log(tmp_path).rows[0]) == {"step": 4, "loss": 2}


def test_never_a_prompt_on_a_terminal(tmp_path: Path) -> None:
    """On a terminal, without a key, nothing is asked and nothing is printed."""
    script = inspect.cleandoc(WRITE_ONE) + "\nprint(os.isatty(0), os.isatty(1), os.isatty(2))"
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", prelude(tmp_path) + script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(tmp_path),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        printed = _read_terminal(ours, until=time.monotonic() + 60)
        assert child.wait(timeout=30) == 0, printed
    finally:
        child.kill()
        child.wait()
        os.close(ours)
    assert printed.decode().split() == ["True", "True", "True"]
    assert wandb_files(tmp_path)[0].parent.name.startswith("offline-run-")


def _read_terminal(file: int, until: float) -> bytes:
    """What the other side prints until it closes the terminal."""
    content = b""
    while select.select([file], [], [], max(0.0, until - time.monotonic()))[0]:
        try:
            content += os.read(file, 4096)
        except OSError:  # Linux says so when the last process has left
            return content
    raise AssertionError(f"still printing: {content!r}")


def test_rows_reach_a_server_when_a_key_is_configured(tmp_path: Path) -> None:
    """With a key the run is online: its rows arrive at the server, and are in the file too."""
    with wandb_server() as server:
        run_script(WRITE_ONE, tmp_path, WANDB_API_KEY="0" * 40, WANDB_BASE_URL=server.url)
        assert [without_clock(row) for row in server.rows] == [{"step": 4, "loss": 2}]
    (file,) = wandb_files(tmp_path)
    assert file.parent.name.startswith("run-")
    assert len(read_wandb(file).rows) == 1


@pytest.mark.parametrize(
    ("key", "mode", "says"),
    [
        pytest.param("0" * 40, None, "did not accept the run", marks=pytest.mark.heavy),
        pytest.param(None, "online", "no API key is configured", marks=pytest.mark.heavy),
    ],
)
def test_online_that_cannot_be_becomes_offline(
    tmp_path: Path, key: str | None, mode: str | None, says: str
) -> None:
    """A server out of reach, or online without a key, warns and keeps the run offline."""
    done = run_script(
        IMPATIENT, tmp_path, WANDB_API_KEY=key, WANDB_MODE=mode, WANDB_BASE_URL=NOWHERE
    )
    assert DistmetricsWarning.__name__ in done.stderr
    assert says in done.stderr
    offline = [file for file in wandb_files(tmp_path) if "offline-run" in file.parent.name]
    assert [len(read_wandb(file).rows) for file in offline] == [1]


def test_offline_wins_over_a_configured_key(tmp_path: Path) -> None:
    """WANDB_MODE=offline keeps a run offline whatever key there is."""
    done = run_script(
        WRITE_ONE,
        tmp_path,
        WANDB_API_KEY="0" * 40,
        WANDB_MODE="offline",
        WANDB_BASE_URL=NOWHERE,
    )
    assert (done.stdout, done.stderr) == ("", "")
    assert len(one_log(tmp_path).rows) == 1


def test_killed_service_costs_only_its_own_records(tmp_path: Path) -> None:
    """With W&B's service killed under it, an isolated sink counts errors and ends in time."""
    done = run_script(
        """
        import psutil
        sink = IsolatedSink(WandbSink(finish_timeout=2), lambda message: print(message[:40]))
        sink.open(run(directory))
        sink.write(record(1))
        assert sink.drain(30)
        for child in psutil.Process().children(recursive=True):
            child.kill()
            child.wait(10)
        for step in range(2, 5):
            sink.write(record(step))
        assert sink.close(20)
        counts = sink.stats()
        assert counts["written"] + counts["errors"] in (4, 5), counts
        assert counts["errors"] >= 1, counts
        """,
        tmp_path,
    )
    assert done.stdout.startswith("sink 'wandb' failed in ")
    assert done.stdout.count("\n") == 1
