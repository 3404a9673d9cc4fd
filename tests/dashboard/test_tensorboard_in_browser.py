"""The layout in a real TensorBoard, asked by its own routes and looked at in a browser."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from distmetrics.dashboard import arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.tensorboard import FOLDER, write_layout
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run
from tests.dashboard.servers import chromium, eventually, get, tensorboard

if TYPE_CHECKING:
    from playwright.sync_api import Locator

pytestmark = [pytest.mark.heavy, pytest.mark.browser, pytest.mark.timeout(240)]


def with_layout(run: Path, *templates: str) -> Path:
    """The run with a layout; its folder for TensorBoard."""
    subject = subject_of(run)
    chosen = [load_template(name) for name in templates] or [automatic_template(subject)]
    write_layout(arrange(chosen, subject), run / FOLDER, subject.config)
    return run / "tensorboard"


def charts_of(url: str) -> Iterator[dict[str, Any]]:
    """The charts of TensorBoard's page of custom scalars."""
    layout = eventually(lambda: get(f"{url}/data/plugin/custom_scalars/layout") or None)
    for category in layout["category"]:
        yield from category["chart"]


def test_every_chart_finds_its_keys(tmp_path: Path) -> None:
    """Each expression of the layout finds one tag with all its values, odd keys as well."""
    folder = with_layout(write_odd_run(tmp_path / "run", sinks=["tensorboard"]))
    found: dict[str, int] = {}
    with tensorboard(folder) as url:
        for chart in charts_of(url):
            for expression in chart["multiline"]["tag"]:
                answer = get(f"{url}/data/plugin/custom_scalars/scalars", run=".", tag=expression)
                assert answer["regex_valid"]
                found |= {tag: len(values) for tag, values in answer["tag_to_events"].items()}
    assert found == dict.fromkeys(ODD_KEYS, 6)


def test_descriptions_and_hyperparameters_are_served(tmp_path: Path) -> None:
    """TensorBoard's default loader passes on help, unit and configuration."""
    folder = with_layout(write_run(tmp_path / "run", sinks=["tensorboard"]))
    with tensorboard(folder) as url:
        tags = eventually(lambda: get(f"{url}/data/plugin/scalars/tags").get("."))
        experiment = get(f"{url}/data/plugin/hparams/experiment", request="{}")
    assert "cross entropy of a sample [nats]" in tags["loss"]["description"]
    names = {one["name"] for one in experiment["hparamInfos"]}
    assert names == {"lr", "model.width", "model.name"}
    assert "val/loss" in {one["name"]["tag"] for one in experiment["metricInfos"]}


def test_the_panels_are_filled(tmp_path: Path) -> None:
    """On the page of custom scalars each chart has a line for each key."""
    folder = with_layout(write_run(tmp_path / "run", sinks=["tensorboard"]), "training")
    with tensorboard(folder) as url, chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 1400})
        page.goto(f"{url}/#custom_scalars")
        for text in ("loss [nats]", "accuracy", "learning rate", "gradient norm"):
            page.get_by_text(text, exact=True).wait_for(timeout=60_000)
        eventually(lambda: page.get_by_text("Matches (2)").count() == 2 or None)
        eventually(lambda: page.get_by_text("Matches (1)").count() == 1 or None)
        cards = page.locator("tf-custom-scalar-multi-line-chart-card")
        filled = [eventually(lambda place=place: coloured(cards.nth(place))) for place in range(3)]
        assert all(pixels > 100 for pixels in filled)
        assert coloured(cards.nth(3)) is None
        page.close()


def coloured(card: Locator) -> int | None:
    """How many pixels of a chart are of a run's colour; None where there is none.

    All else of a chart is grey, but for its blue buttons.
    """
    image = np.asarray(Image.open(io.BytesIO(card.screenshot())).convert("RGB"), int)
    return int(((image[..., 0] > 200) & (image[..., 0] - image[..., 2] > 80)).sum()) or None
