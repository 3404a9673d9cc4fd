"""The page of HTML in a real browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from distmetrics.dashboard import arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.page import to_html
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run
from tests.dashboard.servers import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    with chromium() as found:
        yield found


def write_page(folder: Path, *runs: Path, template: str | None = None) -> Path:
    """The page of some runs, in a file."""
    subject = subject_of(*runs)
    chosen = load_template(template) if template else automatic_template(subject)
    path = folder / "page.html"
    path.write_text(to_html(arrange([chosen], subject), subject), encoding="utf-8")
    return path


@contextmanager
def shown(browser: Browser, path: Path, **options: Any) -> Iterator[Page]:
    """The page, once its first charts are drawn; an error on it, or a request, fails the test."""
    page = browser.new_page(viewport={"width": 1400, "height": 6000}, **options)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: problems.append(request.url))
    try:
        page.goto(f"file://{path}")
        settled(page)
        yield page
        # blob: is the page's own memory
        others = [one for one in problems if not one.startswith(("file://", "data:", "blob:"))]
        assert others == []
    finally:
        page.close()


def settled(page: Page) -> None:
    """Waits until every chart near the window is drawn."""
    page.wait_for_selector("html[data-ready]", state="attached", timeout=60_000)
    page.evaluate(
        "async () => { while (working || waiting.size)"
        " await new Promise(done => setTimeout(done, 20)); }"
    )


def charts(page: Page) -> list[dict[str, Any]]:
    """What is drawn: each chart's title, curves and axes."""
    found: list[dict[str, Any]] = page.evaluate(
        """() => [...document.querySelectorAll(".chart")].map(chart => ({
            title: chart.parentElement.querySelector("h3").textContent,
            curves: (chart.data || []).map(one => ({
                name: one.name, x: [...one.x], y: [...one.y], mode: one.mode, fill: one.fill})),
            drawn: chart.querySelectorAll("path.js-line, path.point").length,
            x: chart.layout && chart.layout.xaxis.title.text,
            log: chart.layout && chart.layout.yaxis.type === "log",
        }))"""
    )
    return found


def chart(page: Page, title: str) -> dict[str, Any]:
    """The chart with a title."""
    (found,) = [one for one in charts(page) if one["title"] == title]
    return found


def test_every_panel_is_filled(browser: Browser, tmp_path: Path) -> None:
    """Each chart has its keys' curves, drawn, with the logged values."""
    run = write_run(tmp_path / "run")
    with shown(browser, write_page(tmp_path, run, template="training")) as page:
        found = charts(page)
    assert [one["title"] for one in found] == [
        "loss [nats]",
        "accuracy",
        "learning rate",
    ]
    assert all(one["drawn"] >= len(one["curves"]) > 0 for one in found)
    loss = found[0]["curves"][0]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    expected = [row["values"]["loss"] for row in rows if "loss" in row["values"]]
    assert (loss["name"], loss["y"]) == ("loss", expected)


def test_odd_keys_are_drawn_and_harm_nothing(browser: Browser, tmp_path: Path) -> None:
    """A key that is a script does not run; each key has its curve under its own name."""
    with shown(browser, write_page(tmp_path, write_odd_run(tmp_path / "run"))) as page:
        assert "broken" not in page.title()
        found = charts(page)
        names = page.locator(".panel h3").all_text_contents()
    assert {f"{key} [a<b]" for key in ODD_KEYS} == set(names)
    assert all(one["drawn"] for one in found)
    curves = {one["title"]: one["curves"][0]["y"] for one in found}
    for place, key in enumerate(ODD_KEYS):
        assert curves[f"{key} [a<b]"] == [place + step for step in range(6)]


def test_axes_can_be_chosen(browser: Browser, tmp_path: Path) -> None:
    """By step, by time, by a key that runs on, and the values logarithmic."""
    path = write_page(tmp_path, write_run(tmp_path / "run"), template="language-model")
    with shown(browser, path) as page:
        tokens = chart(page, "loss [nats] by tokens_seen")
        assert tokens["x"] == "tokens_seen [tokens]"
        assert tokens["curves"][0]["x"][:2] == [4096, 8192]
        page.select_option("#axis", "time")
        settled(page)
        assert chart(page, "loss [nats]")["x"] == "time since the start [s]"
        page.select_option("#axis", "tokens_seen")
        page.select_option("#scale", "log")
        settled(page)
        loss = chart(page, "loss [nats]")
        assert loss["log"]
        # The child's step 9 lies at the end of the window that ends there.
        assert loss["curves"][1]["x"][0] == 10 * 2048


def test_smoothing_lies_over_the_curve(browser: Browser, tmp_path: Path) -> None:
    """Both are drawn, and a constant stays what it is."""
    run = write_run(tmp_path / "run")
    with shown(browser, write_page(tmp_path, run, template="training")) as page:
        page.fill("#smoothing", "0.9")
        settled(page)
        raw, smooth = chart(page, "learning rate")["curves"]
        loss = chart(page, "loss [nats]")["curves"]
    assert raw["y"] == pytest.approx([0.1] * 20)
    assert smooth["y"] == pytest.approx([0.1] * 20)
    assert loss[1]["y"] != loss[0]["y"]
    assert np.ptp(np.diff(loss[1]["y"])) < np.ptp(loss[0]["y"])


def test_runs_are_laid_over_each_other_and_can_be_hidden(browser: Browser, tmp_path: Path) -> None:
    """Each run has a curve; a box takes it away."""
    runs = [write_run(tmp_path / name, shift=shift) for name, shift in (("a", 0.0), ("b", 1.0))]
    with shown(browser, write_page(tmp_path, *runs, template="scaling-audit")) as page:
        names = [one["name"] for one in chart(page, "loss [nats]")["curves"]]
        assert names == ["a, 1 rank", "b, 1 rank"]
        page.uncheck("#runs input >> nth=0")
        settled(page)
        assert [one["name"] for one in chart(page, "loss [nats]")["curves"]] == ["b, 1 rank"]


def test_light_and_dark(browser: Browser, tmp_path: Path) -> None:
    """As the system says, until one is chosen."""
    path = write_page(tmp_path, write_run(tmp_path / "run"), template="training")
    with shown(browser, path, color_scheme="dark") as page:
        back = "getComputedStyle(document.body).backgroundColor"
        assert page.evaluate(back) == "rgb(13, 17, 23)"
        page.select_option("#theme", "light")
        settled(page)
        assert page.evaluate(back) == "rgb(255, 255, 255)"


def test_finding_hides_the_other_panels(browser: Browser, tmp_path: Path) -> None:
    """By title or key."""
    path = write_page(tmp_path, write_run(tmp_path / "run"), template="training")
    with shown(browser, path) as page:
        page.fill("#find", "val/acc")
        assert page.locator(".panel:visible h3").all_text_contents() == ["accuracy"]


def test_values_that_are_no_numbers_are_told(browser: Browser, tmp_path: Path) -> None:
    """The curve has a gap, and its name says how many values are missing."""
    path = tmp_path / "log.csv"
    path.write_text("step,loss\n0,1\n1,nan\n2,3\n", encoding="utf-8")
    with shown(browser, write_page(tmp_path, path)) as page:
        (curve,) = chart(page, "loss")["curves"]
    assert curve["name"] == "loss (1 not finite)"


def write_long_run(folder: Path, rows: int, keys: int) -> Path:
    """A run of many rows, written as the logger would."""
    folder.mkdir()
    values = np.cumsum(np.random.default_rng(0).normal(size=(rows, keys)), axis=0)
    values[rows // 2, 0] = 1e6  # one peak that no drawing may lose
    names = [f"key{number}" for number in range(keys)]
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for step, row in enumerate(values.tolist()):
            line = {"step": step, "first_step": step, "window": step, "time": 1e9 + step}
            line |= {"world_size": 4, "attempt": 0, "values": dict(zip(names, row, strict=True))}
            file.write(json.dumps(line) + "\n")
    return folder


@pytest.mark.heavy
def test_a_long_run_is_usable_within_three_seconds(browser: Browser, tmp_path: Path) -> None:
    """100,000 rows of 20 keys; zooming in shows every point, and no peak is lost.

    What counts is the time that the page itself computes: the machine may be busy with others.
    """
    path = write_page(tmp_path, write_long_run(tmp_path / "run", 100_000, 20))
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page.goto(f"file://{path}")
    settled(page)
    metrics = session.send("Performance.getMetrics")["metrics"]
    seconds = next(one["value"] for one in metrics if one["name"] == "TaskDuration")
    whole = chart(page, "key0")["curves"][0]
    page.evaluate(
        "Plotly.relayout(document.querySelector('.chart'),"
        " {'xaxis.range[0]': 49990, 'xaxis.range[1]': 50010})"
    )
    settled(page)
    near = chart(page, "key0")["curves"][0]
    page.close()
    assert seconds < 3.0
    assert len(whole["x"]) <= 3000
    assert max(whole["y"]) == 1e6
    assert set(range(49990, 50011)) <= set(near["x"])
    assert len(near["x"]) < 30
