from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distmetrics.dashboard import Subject, arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.page import to_html
from distmetrics.errors import InvalidValue
from distmetrics.sinks.described import Description
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run


class Page(HTMLParser):
    """The elements of a page as a browser's parser finds them, and its text outside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.attributes: list[tuple[str, str | None]] = []
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the element."""
        self.tags.append(tag)
        self.attributes += attrs
        self._script = tag in ("script", "style")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a script."""
        self._script = False

    def handle_data(self, data: str) -> None:
        """Note text and scripts."""
        if not self._script:
            self.text += data
        elif self.scripts:
            self.scripts[-1] += data


def page_of(*runs: Path, template: str | None = None) -> Page:
    """The page of some runs."""
    subject = subject_of(*runs)
    chosen = load_template(template) if template else automatic_template(subject)
    return Page(to_html(arrange([chosen], subject), subject))


def unpacked(page: Page, run: int, key: str) -> list[NDArray[np.float64]]:
    """The steps, times and values of a key as the page holds them."""
    data, values = json.loads(page.scripts[1]), json.loads(page.scripts[2])
    places = data["runs"][run]["series"][key]
    arrays = [gzip.decompress(base64.b64decode(values[place])) for place in places]
    return [np.frombuffer(one, "<f8") for one in arrays]


def test_the_page_holds_every_value_exactly(tmp_path: Path) -> None:
    """Steps, times and values are those of metrics.jsonl, in float64."""
    run = write_run(tmp_path / "run")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "loss" in row["values"]]
    steps, times, values = unpacked(page_of(run), 0, "loss")
    assert steps.tolist() == [row["step"] for row in rows]
    assert times.tolist() == [row["time"] for row in rows]
    assert values.tolist() == [row["values"]["loss"] for row in rows]


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """Nothing on it has an address, and its policy forbids the browser to load anything."""
    page = page_of(write_run(tmp_path / "run", steps=10))
    sources = [value for name, value in page.attributes if name in ("src", "href")]
    assert sources == ["data:,"]
    policy = next(value for name, value in page.attributes if value and "default-src" in value)
    assert "default-src 'none'" in policy
    assert "http" not in policy


def test_units_and_help_stand_on_the_panels(tmp_path: Path) -> None:
    """Whoever looks at a chart is told what it shows."""
    page = page_of(write_run(tmp_path / "run", steps=10), template="training")
    assert "loss [nats]" in page.text
    assert "loss: cross entropy of a sample [nats]" in page.text


def test_an_empty_chart_is_shown_as_such(tmp_path: Path) -> None:
    """The panel says which keys it waits for."""
    page = page_of(write_run(tmp_path / "run", steps=10), template="language-model")
    assert re.search(r"no key matches\s*ppl, perplexity", page.text)
    assert "chart 'perplexity' is empty" in page.text


def test_keys_units_and_help_texts_are_escaped(tmp_path: Path) -> None:
    """A key that is a script makes no script, a help text that is an image no image."""
    odd = page_of(write_odd_run(tmp_path / "odd"))
    plain = page_of(write_run(tmp_path / "plain", steps=10))
    assert odd.tags.count("script") == plain.tags.count("script") == 4
    assert odd.tags.count("img") == odd.tags.count("b") == 0
    assert not any(name == "onerror" for name, _ in odd.attributes)
    assert all(key in odd.text for key in ODD_KEYS)
    data = json.loads(odd.scripts[1])
    assert set(data["runs"][0]["series"]) == set(ODD_KEYS)


def test_several_runs_are_laid_over_each_other(tmp_path: Path) -> None:
    """Each run has a name of its own and its number of ranks."""
    runs = [write_run(tmp_path / name / "run", steps=10) for name in ("a", "b")]
    page = page_of(*runs, template="scaling-audit")
    labels = [run["label"] for run in json.loads(page.scripts[1])["runs"]]
    assert labels == ["a/run, 1 rank", "b/run, 1 rank"]


def test_a_foreign_run_has_a_page_too(tmp_path: Path) -> None:
    """A table of another tool is drawn, with no registry to ask."""
    path = tmp_path / "log.csv"
    path.write_text("step,train/loss,note\n0,1.5,a\n1,0.5,b\n", encoding="utf-8")
    steps, values = unpacked_foreign(page_of(path, template="training"))
    assert (steps, values) == ([0.0, 1.0], [1.5, 0.5])


def unpacked_foreign(page: Page) -> tuple[list[float], list[float]]:
    """Steps and values of a run without times."""
    data: dict[str, Any] = json.loads(page.scripts[1])
    steps, times, values = data["runs"][0]["series"]["train/loss"]
    assert times is None
    packed = json.loads(page.scripts[2])
    arrays = [gzip.decompress(base64.b64decode(packed[place])) for place in (steps, values)]
    first, second = (np.frombuffer(one, "<f8").tolist() for one in arrays)
    return first, second


def test_a_registry_has_no_page() -> None:
    """Without values there is nothing to draw, and the message says what to give."""
    subject = Subject("registry", {"loss": Description()})
    with pytest.raises(InvalidValue, match="give a run directory"):
        to_html(arrange([load_template("training")], subject), subject)
