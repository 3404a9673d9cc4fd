from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb

from distmetrics.dashboard import Board, Subject, arrange, load_template, subject_of
from distmetrics.dashboard import wandb as target
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.errors import DistmetricsError
from distmetrics.sinks import WandbSink
from distmetrics.sinks.described import Description
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run
from tests.sinks.wandb_server import wandb_server

PLACE = target.Place("me", "p")


@pytest.fixture(autouse=True)
def settings_are_read_again() -> Iterator[None]:
    """W&B keeps the settings, and the account, that it found first."""
    wandb.teardown()
    yield
    wandb.teardown()


def plots(board: Board) -> dict[str, dict[str, Any]]:
    """The configurations of a workspace's line plots by their titles."""
    written = json.loads(target.to_json(target.workspace(board, PLACE)))
    sections = written["spec"]["section"]["panelBankConfig"]["sections"]
    return {
        panel["config"]["chartTitle"]: panel["config"]
        for section in sections
        for panel in section["panels"]
        if panel["viewType"] == "Run History Line Plot"
    }


def test_a_workspace_has_a_plot_for_each_panel_and_child(tmp_path: Path) -> None:
    """Keys of a child have steps of their own, so that they are a plot of their own."""
    subject = subject_of(write_run(tmp_path / "run"))
    found = plots(arrange([load_template("training")], subject))
    assert found["loss [nats]"]["metrics"] == ["loss"]
    assert found["val: loss [nats]"]["metrics"] == ["val/loss"]
    assert "xAxis" not in found["loss [nats]"]  # the step that the run defined for the key
    assert found["loss [nats]"]["yAxisTitle"] == "nats"


def test_a_chart_by_tokens_has_them_as_its_axis(tmp_path: Path) -> None:
    """The axis is the key itself, on the row of the value."""
    subject = subject_of(write_run(tmp_path / "run"))
    found = plots(arrange([load_template("language-model")], subject))
    assert found["loss [nats] by tokens_seen"]["xAxis"] == "tokens_seen"


def test_an_empty_chart_waits_for_its_keys() -> None:
    """A regular expression matches those that may still come."""
    board = arrange([load_template("training")], Subject("run", {"loss": Description()}))
    config = plots(board)["accuracy"]
    assert config["metricRegex"].startswith(r"^(?:.*\/)?acc$|")


def test_odd_keys_make_a_workspace(tmp_path: Path) -> None:
    """Every key is on a plot, under its own name."""
    subject = subject_of(write_odd_run(tmp_path / "run"))
    found = plots(arrange([automatic_template(subject)], subject))
    metrics = [name for config in found.values() for name in config["metrics"]]
    assert sorted(metrics) == sorted(ODD_KEYS)


def test_titles_that_wandb_refuses_are_changed() -> None:
    """A run's name may hold symbols; the name of a view may not."""
    board = arrange([load_template("training")], Subject("a+b 🚀", {"loss": Description()}))
    assert target.workspace(board, PLACE).name == "Training: a-b -"


def test_the_place_is_the_runs_own(tmp_path: Path) -> None:
    """Entity and project come from the run's W&B file unless they are given."""
    sink = WandbSink("offline", project="digits", entity="team")
    subject = subject_of(write_run(tmp_path / "run", steps=10, sinks=[sink]))
    assert target.place_of(subject) == ("team", "digits")
    assert target.place_of(subject, "me", "other") == ("me", "other")


def test_nothing_is_sent_without_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No account: no prompt, no network, no address."""
    monkeypatch.delenv("WANDB_MODE")
    subject = subject_of(write_run(tmp_path / "run", steps=10))
    assert (
        target.push(target.workspace(arrange([load_template("training")], subject), PLACE)) is None
    )


def test_a_workspace_is_sent_where_there_is_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server gets the view with its sections."""
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    subject = subject_of(write_run(tmp_path / "run", steps=10))
    made = target.workspace(arrange([load_template("training")], subject), PLACE)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        url = target.push(made)
        (view,) = server.views
    assert url is not None
    assert "/me/p" in url
    assert (view["entityName"], view["projectName"]) == ("me", "p")
    assert "val/loss" in view["spec"]


def test_a_server_that_refuses_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What W&B answers is in the message."""
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    subject = subject_of(write_run(tmp_path / "run", steps=10))
    made = target.workspace(arrange([load_template("training")], subject), PLACE)

    def refuse(_workspace: object) -> None:
        raise ConnectionError("no way")

    monkeypatch.setattr(type(made), "save", refuse)
    with pytest.raises(DistmetricsError, match="did not take the workspace: no way"):
        target.push(made)
