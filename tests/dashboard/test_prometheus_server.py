"""A real Prometheus that scrapes a real run, and the queries of the Grafana dashboard."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

import distmetrics as dm
from distmetrics.dashboard import Board, Subject, arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.grafana import queries, query, to_json
from distmetrics.sinks import PrometheusSink
from distmetrics.sinks.described import Description
from tests.dashboard.runs import ODD_KEYS, registry
from tests.dashboard.servers import PROMETHEUS, eventually, prometheus, series

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builders need Python 3.11")
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(180),
    pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (prometheus)"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the run is."""
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[str]:
    """A Prometheus that has scraped a run, which still goes on."""
    known = registry()
    for key in ODD_KEYS:
        known.declare("same", [key], {}, help='of "all" \\ kinds\nof text')
    sink = PrometheusSink(port=0)
    with dm.Logger(known, run_dir=place / "run", sinks=[sink]) as logger:
        val = logger.child("val")
        for step in range(5):
            odd = {key: position for position, key in enumerate(ODD_KEYS)}
            logger.log({"loss": 1.0, "head0_num_pairs": 3, "tokens_seen": 10, **odd}, step=step)
        val.log({"loss": 2.0})
        val.flush(step=4)
        logger.flush(wait=True)
        assert sink.address is not None
        with prometheus(place, sink.address) as url:
            eventually(lambda: series(url, "distmetrics_loss") or None)
            yield url


def found(url: str, expression: str) -> dict[str, float]:
    """Key to value of the series that a panel's query finds, for all runs."""
    return {
        one["metric"]["key"]: float(one["value"][1])
        for one in series(url, expression.replace("$run", ".*"))
    }


def board_of(place: Path, template: str | None = None) -> Board:
    """The board of the run."""
    subject = subject_of(place / "run")
    chosen = load_template(template) if template else automatic_template(subject)
    return arrange([chosen], subject)


def test_every_query_returns_the_series_meant(server: str, place: Path) -> None:
    """One series for each key of each panel, odd ones as well, with its value."""
    board = board_of(place)
    for panel in (panel for row in board.rows for panel in row.panels):
        for key, expression in zip(panel.keys, queries(panel), strict=True):
            assert list(found(server, expression)) == [key.name] * key.logged
    logged = [key for key in board.keys if key.logged]
    values = {key.name: found(server, query(key))[key.name] for key in logged}
    expected = {key: float(position) for position, key in enumerate(ODD_KEYS)}
    assert {key: values[key] for key in ODD_KEYS} == expected
    assert (values["loss"], values["val/loss"], values["tokens_seen"]) == (1.0, 2.0, 50.0)


def test_the_written_dashboards_queries_run(server: str, place: Path) -> None:
    """The queries in the file itself, of every ready template, are accepted; of the axis, too."""
    for name in ("training", "language-model", "detection", "health", "scaling-audit"):
        dashboard = json.loads(to_json(board_of(place, name)))
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                series(server, target["expr"].replace("$run", ".*"))
    board = board_of(place, "language-model")
    axis = board.rows[0].panels[1].axis.key
    assert axis is not None
    assert found(server, query(axis)) == {"tokens_seen": 50.0}


def test_a_registrys_patterns_find_their_keys(server: str) -> None:
    """Before the first run only patterns are known."""
    subject = Subject("registry", {}, {"*num_pairs": Description("count", "pairs")})
    (panel,) = arrange([load_template("detection")], subject).rows[0].panels[:1]
    (expression,) = queries(panel)
    assert found(server, expression) == {"head0_num_pairs": 3.0}


def test_an_empty_panel_finds_only_what_may_still_come(server: str, place: Path) -> None:
    """Its patterns are a valid expression, and match nothing of this run."""
    panels = [panel for row in board_of(place, "health").rows for panel in row.panels]
    empty = [panel for panel in panels if not panel.keys]
    assert empty
    for panel in empty:
        assert all(found(server, expression) == {} for expression in queries(panel))


def test_types_and_help_reach_prometheus(server: str) -> None:
    """Totals are counters there, and texts arrive whole."""
    answer = json.load(urlopen(f"{server}/api/v1/metadata", timeout=20))["data"]
    # Prometheus asks for OpenMetrics, where a counter's name is that of its samples less "_total".
    assert answer["distmetrics_tokens_seen"][0]["type"] == "counter"
    assert answer["distmetrics_loss"][0] == {
        "type": "gauge",
        "help": "cross entropy of a sample [nats]",
        "unit": "",
    }
    assert answer["distmetrics_under_score"][0]["help"] == 'of "all" \\ kinds\nof text'


def test_the_exposition_has_no_fault() -> None:
    """Prometheus' own checker finds nothing to say of the format and the names."""
    checker = shutil.which("promtool")
    if checker is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    sink = PrometheusSink(port=0)
    with dm.Logger(registry(), sinks=[sink]) as logger:
        logger.log({"loss": 1.0, "tokens_seen": 3, "val/head0_num_pairs": 4}, step=0)
        logger.flush(wait=True)
        text = urlopen(f"http://{sink.address}/metrics", timeout=20).read()
    done = subprocess.run(
        [checker, "check", "metrics"], input=text, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
