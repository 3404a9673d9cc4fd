from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import distmetrics as dm
from distmetrics.cli import main
from distmetrics.dashboard import subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.subject import without_bins
from tests.dashboard.runs import registry, write_run

GRAFANA = pytest.mark.skipif(
    find_spec("grafana_foundation_sdk") is None, reason="Grafana's builders need Python 3.11"
)


def call(*arguments: object) -> Result:
    """What `distmetrics` with some arguments did."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run."""
    return write_run(tmp_path / "run", steps=10)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("html", "dashboard.html"),
        pytest.param("grafana", "dashboard.grafana.json", marks=GRAFANA),
        ("wandb", "dashboard.wandb.json"),
        ("tensorboard", "tensorboard/layout"),
    ],
)
def test_one_command_makes_a_dashboard_of_a_run(run: Path, target: str, name: str) -> None:
    """Without any option: all keys, in the run's directory."""
    result = call("dashboard", target, run)
    assert result.exit_code == 0, result.output
    assert f"Wrote {run / name}" in result.output
    assert (run / name).exists()


@pytest.mark.parametrize("target", ["tensorboard", pytest.param("grafana", marks=GRAFANA), "wandb"])
def test_a_registry_alone_makes_a_dashboard(tmp_path: Path, target: str) -> None:
    """Before the first run there are its names and patterns."""
    path = tmp_path / "metrics.toml"
    path.write_text(registry().to_toml(), encoding="utf-8")
    out = tmp_path / "out"
    result = call("dashboard", target, path, "--template", "training", "--out", out)
    assert result.exit_code == 0, result.output
    assert out.exists()


def test_a_registry_has_no_directory_for_a_layout(tmp_path: Path) -> None:
    """The message says what to give."""
    path = tmp_path / "metrics.toml"
    path.write_text(registry().to_toml(), encoding="utf-8")
    result = call("dashboard", "tensorboard", path)
    assert result.exit_code == 2
    assert "--out" in result.output


def test_empty_charts_are_reported(run: Path) -> None:
    """What a template asks for and the run lacks is said, and the rest is written."""
    result = call("dashboard", "wandb", run, "--template", "language-model")
    assert result.exit_code == 0
    assert "! Language model: chart 'perplexity' is empty" in result.stderr
    assert json.loads((run / "dashboard.wandb.json").read_text(encoding="utf-8"))["spec"]


def test_templates_can_be_put_together(run: Path) -> None:
    """Several templates, among them the automatic one, make one dashboard."""
    names = ("registry", "training", "health")
    options = [part for name in names for part in ("--template", name)]
    assert call("dashboard", "html", run, *options).exit_code == 0
    page = (run / "dashboard.html").read_text(encoding="utf-8")
    assert "<h1>Metrics and Training and Health: run</h1>" in page


def test_a_dashboard_in_the_run_directory_is_no_run(run: Path) -> None:
    """The run can be read, and shown, as before."""
    before = call("show", run).output
    for target in ("html", "wandb", "tensorboard"):
        call("dashboard", target, run)
    assert call("show", run).output == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dashboard", "html", "RUN", "--template", "trainig"), "'training'"),
        (("dashboard", "html", "none"), "does not exist"),
        (("dashboard", "html", "EMPTY"), "holds no run"),
        (("dashboard", "html", "RUN", "--out", "RUN"), "cannot be written"),
        (("show",), "--registry"),
        (("show", "EMPTY"), "holds no run"),
    ],
)
def test_mistakes_are_messages(
    run: Path, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """No traceback, and the place is named."""
    empty = tmp_path / "empty"
    empty.mkdir()
    places = {"RUN": run, "EMPTY": empty}
    result = call(*(places.get(argument, argument) for argument in arguments))
    assert result.exit_code != 0
    assert says in result.output
    assert not isinstance(result.exception, OSError)


def test_show_sums_a_run_up(run: Path) -> None:
    """Groups, last values and curves."""
    output = call("show", run).output
    assert "cross entropy of a" in output
    assert "matching" in output


def test_a_layout_of_foreign_events_lies_beside_them(tmp_path: Path) -> None:
    """TensorBoard is started on the folder of events as before."""
    folder = write_run(tmp_path / "run", steps=10, sinks=["tensorboard"]) / "tensorboard"
    result = call("dashboard", "tensorboard", folder, "--template", "training")
    assert f"Wrote {folder / 'layout'}" in result.output
    assert f"tensorboard --logdir {folder}\n" in result.output
    assert "holds no events" not in result.output


def test_a_run_without_events_is_told(run: Path) -> None:
    """A layout alone shows nothing."""
    assert "holds no events yet" in call("dashboard", "tensorboard", run).stderr


def test_the_kinds_with_many_keys_are_a_chart_each(tmp_path: Path) -> None:
    """Per rank, quantiles and bins; tools that take histograms whole get no bins."""
    registry = dm.Registry()
    registry.per_rank("memory", unit="GiB")
    registry.quantiles("wait", qs=[0.5, 0.99], unit="s")
    registry.histogram("length", edges=[0, 1, 2], help="of a sample", group="data")
    with dm.Logger(registry, run_dir=tmp_path / "run") as logger:
        logger.log({"memory": 1.0, "wait": [0.1, 0.2], "length": [0.5, 1.5, 1.7]}, step=0)
    subject = subject_of(tmp_path / "run")
    assert subject.keys["length[1]"].help == "of a sample, from 1 to 2"
    assert subject.keys["wait/p99"].help == "quantile 99%"
    assert subject.keys["memory/argmax"].unit == "rank"
    charts = {
        chart.title: len(chart.keys)
        for section in automatic_template(subject).sections
        for chart in section.charts
    }
    assert charts == {"length": 7, "memory": 3, "memory/argmax": 1, "wait": 2}
    assert not any(key.startswith("length") for key in without_bins(subject).keys)
