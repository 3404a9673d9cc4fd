"""What others have written is data, and what this run writes stays where it belongs."""

from __future__ import annotations

import json
import os
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import distmetrics as dm
from distmetrics.cli import main
from distmetrics.record import Record
from distmetrics.rundir import METRICS, without_secrets
from distmetrics.spool.merge import merge, read_rows
from tests.faults import work
from tests.faults.dead import dead_run, spools
from tests.faults.train import logger_of

ODD = ["../../evil", "/etc/evil", "a/../../evil", "..", "~/evil", "a\\..\\evil", "con:aux|*?"]


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("name", ODD)
def test_no_name_leads_out_of_the_run_directory(tmp_path: Path, name: str) -> None:
    """Neither a key's nor a child's; both come back as they are."""
    home = tmp_path / "home"
    home.mkdir()
    run_dir = home / "deep" / "run"
    child = name.strip("/")
    with dm.Logger(run_dir=run_dir, sinks=["tensorboard"], record_contributions=True) as logger:
        logger.log({name: 1.0}, step=0)
        logger.child(child, every=1).log({"k": 2.0}, step=0)
    assert _files(home) - {str(path.relative_to(home)) for path in run_dir.rglob("*")} == {
        "deep",
        "deep/run",
    }
    values = [row.values for row in read_rows(run_dir / METRICS)]
    assert values == [{name: 1.0}, {f"{child}/k": 2.0}]


def test_a_sinks_name_is_no_path(tmp_path: Path) -> None:
    """It stands in messages, in the counters and in run.json, and nowhere else."""

    class Sink:
        name = "../../evil"

        def open(self, run: Any) -> None:
            """Nothing is opened."""

        def write(self, record: Record) -> None:
            """Nothing is written."""

        def close(self) -> None:
            """Nothing is held."""

        def state(self) -> dict[str, Any]:
            return {"id": "x"}

    run_dir = tmp_path / "a" / "b" / "run"
    with dm.Logger(run_dir=run_dir, sinks=[Sink()]) as logger:
        logger.log({"k": 1.0}, step=0)
    assert _files(tmp_path) == {
        "a",
        "a/b",
        "a/b/run",
        "a/b/run/.lock",
        "a/b/run/metrics.jsonl",
        "a/b/run/run.json",
    }


def test_secrets_of_the_environment_and_the_configuration_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json and the records hold no keys; the settings of the training are all there."""
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 2)
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")
    monkeypatch.setenv("SOME_SETTING", "ordinary-setting")
    config = {
        "num_tokens": 1000,
        "tokenizer": "gpt2",
        "keys": ["loss"],
        "wandb": {"api_key": "abc", "project": "p", "url": "x"},
        "command": ["--key", "0123456789abcdef" * 2],
        "hub": {"token": "hf_verysecret"},
        "db_password": "hunter2",
    }
    run_dir = tmp_path / "run"
    with dm.Logger(run_dir=run_dir, config=config, sinks=["tensorboard"]) as logger:
        logger.log({"k": 1.0}, step=0)
    text = (run_dir / "run.json").read_text()
    for secret in ("0123456789abcdef", "hf_verysecret", "abc", "hunter2", "ordinary-setting"):
        assert secret not in text, secret
    kept = json.loads(text)["config"]
    assert kept["num_tokens"] == 1000
    assert kept["tokenizer"] == "gpt2"
    assert kept["keys"] == ["loss"]
    assert kept["wandb"]["project"] == "p"
    assert config["db_password"] == "hunter2"


def test_secrets_are_known_by_their_names() -> None:
    """Words that only contain one are left alone."""
    kept = {"max_tokens": 5, "token_budget": 3, "monkey": "a", "passes": 2, "keyword": "x"}
    assert without_secrets(kept) == kept
    for name in ("api_key", "apikey", "AWS_SECRET_KEY", "secret", "auth-token", "passwd"):
        assert without_secrets({name: "text"}) == {name: "(hidden)"}


class _Boom:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


def test_pickles_in_a_run_directory_are_not_opened(tmp_path: Path) -> None:
    """Wherever they lie, and whatever reads: merging, replaying, showing, resuming."""
    run_dir, mark = tmp_path / "run", tmp_path / "boom"
    dead_run(run_dir, 2, 10)
    planted = pickle.dumps(_Boom(mark))
    (path,) = spools(run_dir / "spool", 0)
    for name in ("metrics.pkl", "state.pt", "spool/x.rank00002.0000.000000.spool"):
        (run_dir / name).write_bytes(planted)
    (path.parent / path.name.replace("rank00000", "rank00007")).write_bytes(planted)
    with path.open("ab") as file:
        file.write(planted + b"\n")
    merge(run_dir)
    runner = CliRunner()
    shown = runner.invoke(main, ["replay", str(run_dir), "--sink", "tensorboard"])
    assert shown.exit_code == 0, shown.output
    with logger_of(run_dir, resume=True) as logger:
        logger.log({"seen": 1}, step=99)
    assert not mark.exists()


def test_a_damaged_description_is_an_error_that_says_so(tmp_path: Path) -> None:
    """It is no crash in the middle of something."""
    run_dir = tmp_path / "run"
    dead_run(run_dir, 1, 10)
    for content in (b"", b"[1]", b"\x80\x04.", b'{"attempts": 3}', b'{"id": {}}'):
        (run_dir / "run.json").write_bytes(content)
        with pytest.raises(dm.errors.RunDirError, match=r"run\.json"):
            merge(run_dir)


def test_directories_follow_the_umask(tmp_path: Path) -> None:
    """They are made as the user's other directories are."""
    before = os.umask(0o077)
    try:
        with logger_of(tmp_path / "deep" / "run") as logger:
            logger.log({"seen": 1}, step=0)
            logger.flush(wait=True)
            folders = [tmp_path / "deep", tmp_path / "deep/run", tmp_path / "deep/run/spool"]
            modes = [stat.S_IMODE(folder.stat().st_mode) for folder in folders]
    finally:
        os.umask(before)
    assert modes == [0o700] * 3
    assert work.rows_of(tmp_path / "deep" / "run")
