"""Making a logger: options that are wrong, ranks that disagree, run directories that are taken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue, NotInitialized, RunDirError
from distmetrics.testing import MemorySink, run_ranks_in_process
from tests.logger.ranks import records

# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"registry": {"loss": "average"}}, InvalidType, "registry= is a Registry or None, not"),
        ({"every": 0}, InvalidValue, "every= is at least 1, not 0"),
        ({"every": -5}, InvalidValue, "every= is at least 1"),
        ({"every": 1.5}, InvalidType, "every= is a whole number of steps or None"),
        ({"every": True}, InvalidType, "every= is a whole number"),
        ({"every": "10"}, InvalidType, "every= is a whole number"),
        ({"errors": "ignore"}, InvalidValue, "errors= is one of 'raise', 'warn', not 'ignore'"),
        ({"on_step_regress": True}, InvalidValue, "on_step_regress= is one of 'warn', 'error'"),
        ({"peer_timeout": 0}, InvalidValue, "peer_timeout="),
        ({"peer_timeout": "60"}, InvalidValue, "peer_timeout="),
        ({"start_timeout": -1}, InvalidValue, "start_timeout="),
        ({"notice_after": float("nan")}, InvalidValue, "notice_after="),
        ({"sinks": ["tensorbord"]}, InvalidValue, "did you mean 'tensorboard'"),
        ({"sinks": ["tensorboard"]}, InvalidValue, "there is no run directory"),
        ({"sinks": [MemorySink]}, InvalidType, "is a class"),
        ({"peer_timeout": float("inf")}, InvalidValue, "peer_timeout="),
        ({"run_dir": 3}, InvalidType, "run_dir= is a path or None, not int 3"),
        ({"run_dir": b"x"}, InvalidType, "run_dir= is a path or None, not bytes"),
        ({"run_dir": ""}, InvalidValue, "run_dir='' names no directory .*not set"),
        ({"run_dir": " "}, InvalidValue, "run_dir=' ' names no directory"),
        ({"run_dir": "~nobody-of-this-name/x"}, InvalidValue, "run_dir='~nobody-of-this-name/x'"),
        ({"run_dir": "x", "spool_dir": ""}, InvalidValue, "spool_dir='' names no directory"),
        ({"run_dir": "x", "spool": "no"}, InvalidType, "spool= is True or False, not str 'no'"),
        ({"handle_sigterm": "yes"}, InvalidType, "handle_sigterm= is True or False, not str"),
        ({"run_dir": "x", "record_contributions": 1}, InvalidType, "record_contributions= is True"),
        ({"run_dir": "x", "resume": 1}, InvalidValue, "resume= is one of True, False, 'auto'"),
        ({"errors": np.ones(2)}, InvalidValue, "errors= is one of 'raise', 'warn', not array"),
        ({"mesh": "x"}, InvalidType, "mesh= is a .*DeviceMesh.*, not str 'x'"),
        ({"run_dir": "x", "spool_dir": 3}, InvalidType, "spool_dir= is a path"),
        ({"config": ["lr"]}, InvalidType, "config= is a dict or None, not list"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_wrong_option_is_an_error_on_every_rank(
    options: dict[str, Any], error: type[Exception], said: str, world_size: int
) -> None:
    """The message names the option, what came and what is accepted; no rank waits for another."""

    def rank() -> None:
        with pytest.raises(error, match=said):
            dm.Logger(**options)

    run_ranks_in_process(rank, world_size, timeout=20)


def test_any_whole_number_of_steps_will_do() -> None:
    """NumPy's integers too, as a configuration may hold them."""
    every: Any = np.int64(2)

    def train(logger: dm.Logger) -> None:
        assert type(logger.every) is int
        for step in range(4):
            logger.log({"n": dm.Count(1)}, step=step)
        assert logger.child("val", every).every == 2

    assert [record.step for record in records(2, train, every=every)] == [1, 3]


# --- ranks that disagree ------------------------------------------------------------------------


def raised(*makes: Any) -> list[BaseException | None]:
    """What each rank gets when each makes its logger."""
    found: dict[int, BaseException | None] = {}

    def rank() -> None:
        try:
            logger = makes[dm.get_rank()]()
        except Exception as error:  # noqa: BLE001 - compared by the test
            found[dm.get_rank()] = error
        else:
            found[dm.get_rank()] = None
            logger.close()

    run_ranks_in_process(rank, len(makes), timeout=20)
    return [found[rank] for rank in range(len(makes))]


class Mesh:
    """What a logger uses of a device mesh."""

    def __init__(self, ranks: Any, *names: str) -> None:
        self.mesh = np.array(ranks)
        self.mesh_dim_names = names or None


def registry(**declared: str) -> dm.Registry:
    """A registry that declares keys by the name of their method."""
    made = dm.Registry()
    for key, method in declared.items():
        getattr(made, method)(key)
    return made


def replicated() -> dm.Registry:
    """A registry with a key that is replicated over a dimension of a mesh."""
    made = dm.Registry()
    made.count("tokens", replicated_over=("tensor",))
    return made


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"every": 1}, {"every": 2}, "every=1 on rank 0 and every=2 on rank 2"),
        ({"run_dir": None}, {"run_dir": "runs/x"}, "run_dir=None on rank 0 and run_dir='runs/x'"),
        ({"resume": "auto", "run_dir": "a"}, {"run_dir": "a"}, "resume='auto' on rank 0"),
        (
            {"registry": registry(n="count")},
            {"registry": registry(n="total")},
            r"'n' is count\(\) in rank 0 and total\(\) in rank 2",
        ),
        (
            {"registry": registry(n="count")},
            {"registry": registry()},
            r"'n' is count\(\) in rank 0 and not declared in rank 2",
        ),
        (
            {"registry": dm.Registry(strict=True)},
            {"registry": dm.Registry()},
            "strict= is True in rank 0 and False in rank 2",
        ),
        (
            {"mesh": Mesh([[0, 1, 2]], "data", "tensor")},
            {"mesh": Mesh([[0], [1], [2]], "data", "tensor")},
            "mesh=.*on rank 2; pass the whole mesh",
        ),
        ({"mesh": Mesh([0, 1, 2], "data")}, {}, "mesh=.* on rank 0 and mesh=None on rank 2"),
        (
            {"mesh": Mesh([0, 1, 2], "tensor"), "registry": replicated()},
            {"registry": replicated()},
            "key 'tokens' is replicated over 'tensor', but there is no mesh.*on rank 2",
        ),
        ({}, {"mesh": Mesh([0, 1, 2])}, r"mesh= has no names.*\(on rank 2\)"),
        ({}, {"mesh": Mesh([0, 1, 5], "data")}, r"one of the 3 ranks.*\(on rank 2\)"),
        ({}, {"mesh": Mesh([0, 1, 1], "data")}, r"once \(on rank 2\)"),
        ({}, {"mesh": Mesh([0, 1, 2], "data", "tensor")}, r"1 dimensions and the names"),
    ],
    ids=str,
)
def test_ranks_that_make_different_loggers_all_get_the_same_error(
    first: dict[str, Any], second: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """The message names what differs, both values and the ranks; nobody goes on alone."""

    def made(options: dict[str, Any]) -> Any:
        where = options.get("run_dir")
        return lambda: dm.Logger(**options | ({"run_dir": where} if where else {}))

    os.chdir(tmp_path)
    errors = raised(made(first), made(first), made(second))
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        assert isinstance(error, InvalidValue)
        with pytest.raises(InvalidValue, match=said):
            raise error
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(autouse=True)
def _back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that changes the working directory leaves it as it was."""
    monkeypatch.chdir(Path.cwd())


def test_two_loggers_made_in_different_order_are_an_error_on_every_rank(tmp_path: Path) -> None:
    """They would reduce each other's values; made in the same order they live side by side."""
    a, b = {"run_dir": tmp_path / "a"}, {"run_dir": tmp_path / "b", "every": 5}

    def both(first: dict[str, Any], second: dict[str, Any]) -> Any:
        def make() -> Any:
            one = dm.Logger(**first)
            two = dm.Logger(**second)
            one.log({"n": dm.Count(1)}, step=0)
            two.log({"n": dm.Count(10)}, step=0)
            one.close()
            return two

        return make

    errors = raised(both(a, b), both(b, a))
    assert all("ranks make different loggers: run_dir=" in str(error) for error in errors)
    assert raised(both(a, b), both(a, b)) == [None, None]
    for name, count in (("a", 2), ("b", 20)):
        (line,) = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        assert dm.Record.from_json(line).values == {"n": count}


def test_a_rank_that_makes_no_logger_is_named() -> None:
    """The others give up after `start_timeout`."""

    def rank() -> None:
        if dm.get_rank() != 1:
            with pytest.raises(dm.PeerTimeoutError, match=r"rank 1 did not come within 0\.5 s"):
                dm.Logger(start_timeout=0.5)

    run_ranks_in_process(rank, 3)


# --- run directories ----------------------------------------------------------------------------


def test_a_run_directory_holds_the_records_and_what_is_needed_to_read_them(tmp_path: Path) -> None:
    """One run.json and one metrics.jsonl, whatever the number of ranks; no environment in it."""
    os.environ["WANDB_API_KEY"] = "secret" * 7
    try:
        records(
            3,
            lambda logger: logger.log({"n": 1}, step=0),
            registry=lambda: registry(n="count"),
            run_dir=tmp_path / "deep" / "run",
            config={"lr": 0.1, "layers": (1, 2), "bad": float("nan"), 3: {"x": Path("y")}},
        )
    finally:
        del os.environ["WANDB_API_KEY"]
    folder = tmp_path / "deep" / "run"
    description = json.loads((folder / "run.json").read_text())
    assert description["world_size"] == 3
    assert description["registry"] == [{"pattern": "n", "reduction": "count"}]
    assert description["config"] == {"lr": 0.1, "layers": [1, 2], "bad": "nan", "3": {"x": "y"}}
    assert "secret" not in (folder / "run.json").read_text()
    (line,) = (folder / "metrics.jsonl").read_text().splitlines()
    assert dm.Record.from_json(line).values == {"n": 3}


def test_a_directory_that_holds_a_run_is_refused_on_every_rank(tmp_path: Path) -> None:
    """The old run stays as it was."""
    run = tmp_path / "run"
    records(1, lambda logger: logger.log({"n": dm.Count(1)}), run_dir=run)
    before = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    errors = raised(*[lambda: dm.Logger(run_dir=run)] * 3)
    assert all(isinstance(error, RunDirError) for error in errors)
    assert all("holds a run already" in str(error) for error in errors)
    assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_a_directory_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    """Even where it does not hold a run yet; it is free again once that process is gone."""
    script = (
        "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        errors = raised(*[lambda: dm.Logger(run_dir=tmp_path)] * 2)
        process.communicate(timeout=20)
    assert all("is written to by another process" in str(error) for error in errors)
    assert raised(*[lambda: dm.Logger(run_dir=tmp_path)] * 2) == [None, None]


def test_a_path_that_can_be_no_directory_is_refused(tmp_path: Path) -> None:
    """A file in the way is an error on every rank."""
    (tmp_path / "file").write_text("")
    errors = raised(*[lambda: dm.Logger(run_dir=tmp_path / "file" / "run")] * 2)
    assert all(isinstance(e, RunDirError) and "cannot be used" in str(e) for e in errors)


def test_a_configuration_that_cannot_be_written_is_an_error_on_every_rank(tmp_path: Path) -> None:
    """The others do not wait for rank 0."""
    errors = raised(*[lambda: dm.Logger(run_dir=tmp_path, config={"x": "\ud800"})] * 2)
    assert all(isinstance(error, RunDirError) for error in errors)
    assert str(errors[0]) == str(errors[1])


def test_files_stay_in_their_directory_where_the_process_moves(tmp_path: Path) -> None:
    """A relative path means the working directory at the time the logger is made."""
    os.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with dm.Logger(run_dir="run", sinks=["tensorboard"]) as logger:
        os.chdir("elsewhere")
        logger.log({"n": dm.Count(1)}, step=0)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_home_directory_may_be_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` is the user's home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with dm.Logger(run_dir="~/run") as logger:
        logger.log({"n": dm.Count(1)}, step=0)
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_without_a_run_directory_there_are_no_files(tmp_path: Path) -> None:
    """Nothing is left behind in the working directory."""
    os.chdir(tmp_path)
    records(2, lambda logger: logger.log({"n": dm.Count(1)}, step=0))
    assert list(tmp_path.iterdir()) == []


# --- launched processes -------------------------------------------------------------------------


def test_launched_processes_without_a_group_are_told_to_set_one_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Never one writer for each process."""
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(NotInitialized, match=r"rank 1 of 2 .*dm.setup_distributed\(\)"):
        dm.Logger()


@pytest.mark.parametrize("value", ["1", "true", "yes", "anything"])
def test_disabled_loggers_do_nothing(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every call returns at once, checks nothing and leaves no file, thread or group behind."""
    monkeypatch.setenv("DISTMETRICS_DISABLED", value)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    memory = MemorySink()
    threads = threading.active_count()
    with dm.Logger(run_dir=tmp_path / "run", sinks=[memory, "tensorboard"], every=2) as logger:
        val = logger.child("val")
        for step in range(4):
            logger.log({"n": object(), 3: 4}, step=step)  # type: ignore[dict-item]
            val.log({"n": 1})
        assert logger.flush() is None
        assert logger.flush(wait=True) == {}
        assert val.flush(wait=True) == {}
        assert logger.reduce({"n": 1}) == {}
        assert logger.latest == {}
        assert logger.sink("tensorboard") is None
        assert logger.stats()["written"] == 0
        with logger.pause():
            pass
        assert threading.active_count() == threads
    logger.close()
    assert memory.records == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["", "0", "false", "No", " off "])
def test_a_variable_that_says_no_disables_nothing(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a value that means yes turns loggers off."""
    monkeypatch.setenv("DISTMETRICS_DISABLED", value)
    assert len(records(1, lambda logger: logger.log({"n": dm.Count(1)}))) == 1


def test_one_sink_needs_no_list(tmp_path: Path) -> None:
    """A name, an object or a function may stand alone; what is none of them is named."""
    seen: list[int] = []
    memory = MemorySink()
    for sink in (memory, lambda record: seen.append(record.step)):
        with dm.Logger(sinks=sink) as logger:
            logger.log({"n": dm.Count(1)}, step=3)
    assert (len(memory.records), seen) == (1, [3])
    with dm.Logger(run_dir=tmp_path, sinks="tensorboard") as logger:
        logger.log({"n": dm.Count(1)}, step=3)
    assert (tmp_path / "tensorboard").is_dir()
    with pytest.raises(InvalidType, match="3 of type int is no sink"):
        dm.Logger(sinks=3)  # type: ignore[arg-type]
