"""The report as JSON, JUnit, table and page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.console import Console

from distmetrics.audit.compare import Report, compare
from distmetrics.audit.report.curves import POINTS, curves
from distmetrics.audit.report.junit import to_junit
from distmetrics.audit.report.numbers import strict_json
from distmetrics.audit.report.page import to_html
from distmetrics.audit.report.terminal import print_report
from tests.audit.series import runs

STEPS = 60
LOSS = 0.3 + 2 * np.exp(-np.arange(STEPS) / 20)
HOSTILE = 'a</script><script>alert("x")</script>\x07'


@pytest.fixture
def report() -> Report:
    """A report with a fault, a clean key, a hostile key, a missing one and a warning."""
    table = {
        "loss": {size: size * LOSS for size in (1, 2, 4)},
        "acc": dict.fromkeys((1, 2, 4), LOSS),
        HOSTILE: dict.fromkeys((1, 2, 4), LOSS),
        "extra": {4: LOSS},
    }
    data = runs(table)
    data[0].warnings.append("the last line is torn")
    return compare(data, failures={8: "exit code 1; <b>out of memory</b>"})


def test_json_keeps_the_contract(report: Report) -> None:
    """The fields that others build on are there, with their types, as strict JSON."""
    text = strict_json(report.to_dict())
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    assert found["world_sizes"] == [1, 2, 4]
    loss = found["keys"]["loss"]
    assert loss["verdict"] == "grows_with_ranks"
    assert loss["exponent"] == pytest.approx(1.0)
    assert loss["max_rel_diff"] == pytest.approx(0.75)
    assert loss["steps"] == STEPS
    assert loss["confidence"] > 0.99
    assert loss["remedy"].startswith("registry.average")
    assert found["keys"]["extra"]["max_rel_diff"] is None
    assert found["keys"]["acc"] | {"reason": "", "remedy": ""} == {
        "verdict": "identical",
        "exponent": 0.0,
        "max_rel_diff": 0.0,
        "steps": STEPS,
        "confidence": 1.0,
        "remedy": "",
        "reason": "",
        "factors": {},
        "notes": [],
    }


def test_junit_has_a_case_per_key(report: Report) -> None:
    """Faults are failures with their remedy, lost world sizes are errors; any key is legal XML."""
    suite = ET.fromstring(to_junit(report)).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "2", "1")
    failures = {case.get("name"): case.find("failure") for case in suite.iter("testcase")}
    assert failures["loss"] is not None
    assert "registry.average" in str(failures["loss"].text)
    assert failures["acc"] is None


def test_the_table_shows_faults_first(report: Report) -> None:
    """Worst first, with remedies, warnings and the result in words."""
    console = Console(record=True, width=120, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    print_report(report, console)
    console.file.close()
    text = console.export_text()
    assert text.index("missing") < text.index("grows_with_ranks") < text.index("identical")
    assert 'registry.average("loss")' in text
    assert "torn" in text
    assert "2 of 4 keys depend on the number of processes" in text
    assert "world size 8 has no run" in text


def test_many_quiet_keys_are_only_counted() -> None:
    """A long list of identical keys is folded, unless all are asked for."""
    table = {f"key{number}": {1: LOSS, 2: LOSS} for number in range(30)}
    found = compare(runs(table))
    texts = []
    for show_all in (False, True):
        console = Console(record=True, width=120, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
        print_report(found, console, show_all=show_all)
        console.file.close()
        texts.append(console.export_text())
    assert "30 identical" in texts[0]
    assert "key7" not in texts[0]
    assert "key7" in texts[1]


def test_the_page_is_self_contained_and_escaped(report: Report) -> None:
    """Nothing is loaded from anywhere, and no key can end a script."""
    page = to_html(report)
    head = page[: page.index("<script>")]
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", head)
    assert "<b>out of memory" not in page
    assert '<script>alert("x")' not in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    drawn = json.loads(data[1])
    assert [curve["world_size"] for curve in drawn["k1"]["curves"]] == [1, 2, 4]


def test_long_curves_are_thinned_without_losing_differences() -> None:
    """A single step that differs among many stays in the drawing."""
    long = np.sin(np.arange(10_000) / 500)
    other = long.copy()
    other[7777] += 1
    (run, second) = runs({"x": {1: long, 2: other}})
    drawn = curves("x", [run, second])
    assert len(drawn["steps"]) <= POINTS
    assert 7777 in drawn["steps"]
    assert drawn["steps"][0] == 0
    assert drawn["steps"][-1] == 9999


def test_curves_by_samples_stand_at_the_positions_of_the_axis() -> None:
    """Runs that share no steps are drawn over what they are compared by."""
    counts = {1: [32] * 40, 4: [128] * 10}
    loss = {1: np.repeat(LOSS[:10], 4), 4: LOSS[:10]}
    report = compare(runs({"n": counts, "loss": loss}), x="n")
    drawn = curves("loss", report.runs, report.x)
    assert drawn["steps"] == [128.0 * at for at in range(1, 11)]
    assert drawn["curves"][0]["values"] == pytest.approx(drawn["curves"][1]["values"])


def test_a_report_is_written_by_the_command(tmp_path: Path, report: Report) -> None:
    """What is not finite is a gap in a curve, so that the page stays valid JSON."""
    values = LOSS.copy()
    values[3] = np.nan
    (run, second) = runs({"x": {1: LOSS, 2: values}})
    drawn = curves("x", [run, second])
    assert drawn["curves"][1]["values"][3] is None
    (tmp_path / "page.html").write_text(to_html(report), encoding="utf-8")
