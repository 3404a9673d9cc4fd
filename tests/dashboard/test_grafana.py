from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from distmetrics.dashboard import Subject, arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.grafana import to_json
from distmetrics.dashboard.grafana_schema import check
from distmetrics.errors import InvalidValue
from distmetrics.sinks.described import Description
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builders need Python 3.11")


def dashboard_of(run: Path, template: str | None = None) -> dict[str, Any]:
    """The dashboard of a run, parsed."""
    subject = subject_of(run)
    chosen = load_template(template) if template else automatic_template(subject)
    made: dict[str, Any] = json.loads(to_json(arrange([chosen], subject)))
    return made


def panel_of(dashboard: dict[str, Any], title: str) -> dict[str, Any]:
    """The panel with a title."""
    (panel,) = [panel for panel in dashboard["panels"] if panel["title"] == title]
    assert isinstance(panel, dict)
    return panel


def test_a_panel_has_a_query_for_each_key(tmp_path: Path) -> None:
    """Queries name the metrics of the Prometheus sink, for the chosen runs."""
    panel = panel_of(dashboard_of(write_run(tmp_path / "run"), "training"), "loss [nats]")
    assert [target["expr"] for target in panel["targets"]] == [
        'distmetrics_loss{run=~"$run"}',
        'distmetrics_val_x2f_loss{run=~"$run"}',
    ]
    assert panel["fieldConfig"]["defaults"]["unit"] == "suffix: nats"
    assert "cross entropy of a sample" in panel["description"]


def test_a_chart_by_tokens_is_drawn_over_its_key(tmp_path: Path) -> None:
    """The axis is the first query, and all queries are joined to one table."""
    dashboard = dashboard_of(write_run(tmp_path / "run"), "language-model")
    panel = panel_of(dashboard, "loss [nats] by tokens_seen")
    assert panel["type"] == "trend"
    assert panel["options"]["xField"] == panel["targets"][0]["legendFormat"] == "tokens_seen"
    assert panel["targets"][0]["expr"].startswith("distmetrics_tokens_seen_total{")
    assert [one["id"] for one in panel["transformations"]] == ["joinByField", "organize"]


def test_a_spread_fills_the_band_between_its_curves() -> None:
    """The smallest and the largest rank enclose the others."""
    keys = {"memory/min": Description(), "memory/max": Description()}
    board = arrange([load_template("health")], Subject("run", keys))
    panel = panel_of(json.loads(to_json(board)), "memory, smallest to largest rank")
    (override,) = panel["fieldConfig"]["overrides"]
    assert override["matcher"]["options"] == "memory/max"
    assert override["properties"] == [{"id": "custom.fillBelowTo", "value": "memory/min"}]


def test_odd_keys_make_a_dashboard(tmp_path: Path) -> None:
    """Every key has a query of its own."""
    dashboard = dashboard_of(write_odd_run(tmp_path / "run"))
    queries = {
        target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])
    }
    assert len(queries) == len(ODD_KEYS)


def plant(dashboard: dict[str, Any], path: str, value: Any) -> str:
    """The dashboard with one entry changed, as JSON."""
    *way, last = path.split(".")
    part: Any = dashboard
    for step in way:
        part = part[int(step) if step.isdigit() else step]
    part[last] = value
    return json.dumps(dashboard)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("title", 3, "title"),
        ("uid", "with space", "uid"),
        ("panels.1.title", None, "panels.1"),
        ("panels.1.targets", [], "panels.1"),
        ("panels.1.targets.0.expr", "", "expr"),
        ("panels.1.targets.1.refId", "A", "two queries of one name"),
        ("panels.1.gridPos.w", 25, "gridPos.w"),
        ("panels.1.gridPos.x", 20, "right of the grid"),
        ("panels.3.gridPos.y", 1, "overlap"),
        ("panels.1.nonsense", 1, "nonsense"),
        ("panels.1.id", 1, "one id"),
        ("templating", {"list": []}, "variables"),
    ],
)
def test_the_schema_refuses_what_the_builders_let_through(
    tmp_path: Path, path: str, value: Any, says: str
) -> None:
    """Wrong types, names, places and queries are found before the file is written."""
    dashboard = dashboard_of(write_run(tmp_path / "run", steps=10), "training")
    with pytest.raises(InvalidValue, match=says):
        check(plant(dashboard, path, value))
