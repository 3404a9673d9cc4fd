"""The page in a real browser."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from distmetrics.audit.compare import compare
from distmetrics.audit.report.page import to_html
from tests.audit.series import runs

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--virtual-time-budget=15000",
)  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


def browse(page: Path, folder: Path, *options: str) -> str:
    """What Chromium prints of a page."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page with a fault and a hostile key."""
    loss = 0.3 + 2 * np.exp(-np.arange(60) / 20)
    table = {
        "loss": {size: size * loss for size in (1, 2, 4)},
        "</script><b>acc": dict.fromkeys((1, 2, 4), loss),
        f"val/{'long_' * 30}": dict.fromkeys((1, 2), loss),
    }
    path = tmp_path / "audit.html"
    path.write_text(to_html(compare(runs(table))), encoding="utf-8")
    return path


def test_charts_are_drawn_from_disk(page: Path, tmp_path: Path) -> None:
    """The key that is open has its two charts with a line per world size."""
    document = browse(page, tmp_path / "profile", "--dump-dom")
    drawn = document[document.index('id="k0"') : document.index('id="k1"')]
    assert drawn.count('class="main-svg"') >= 2
    assert drawn.count("js-line") >= 6
    assert "&lt;/script&gt;&lt;b&gt;acc" in document


@pytest.mark.parametrize("width", [390, 1200])
def test_the_page_fits_its_window(page: Path, tmp_path: Path, width: int) -> None:
    """On a phone as on a desk nothing is wider than the window, with all keys open."""
    # A browser's own window is never as narrow as a phone, a frame in it is.
    opened = page.read_text(encoding="utf-8").replace('<details id="k1"', '<details open id="k1"')
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<!DOCTYPE html><iframe id="frame" width="{width}" height="1500"
        srcdoc="{html.escape(opened)}"></iframe><p id="seen"></p><script>
        frame.onload = () => setTimeout(() => {{
            const inner = frame.contentDocument;
            const edge = inner.documentElement.clientWidth;
            const wide = [...inner.querySelectorAll("main *")].filter(
                one => one.getBoundingClientRect().right > edge + 1);
            seen.textContent = `drawn ${{inner.querySelectorAll(".main-svg").length}},` +
                ` scrolls ${{inner.documentElement.scrollWidth - edge}}, wide ${{wide.length}}.`;
        }}, 2000);</script>""",
        encoding="utf-8",
    )
    window = f"--window-size={width + 100},1600"
    document = browse(frame, tmp_path / "profile", window, "--dump-dom")
    seen = re.search(r'<p id="seen">drawn (\d+), scrolls (-?\d+), wide (\d+)', document)
    assert seen is not None
    assert int(seen[1]) >= 8
    assert (int(seen[2]), int(seen[3])) == (0, 0)


def test_the_page_is_not_blank(page: Path, tmp_path: Path) -> None:
    """A picture of it shows text on a quiet ground."""
    shot = tmp_path / "shot.png"
    browse(page, tmp_path / "profile", "--window-size=1200,1600", f"--screenshot={shot}")
    pixels = np.asarray(Image.open(shot).convert("L"))
    assert pixels.shape[0] == 1600
    assert (pixels < 100).mean() > 0.002
    assert (pixels[:, -4:] > 150).mean() > 0.5
