"""Programs that tests run beside themselves: TensorBoard, Prometheus, Chromium."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = shutil.which("chromium")
PROMETHEUS = shutil.which("prometheus")

T = TypeVar("T")


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(url: str, **query: str) -> Any:
    """The JSON at an address."""
    with urlopen(f"{url}?{urlencode(query)}" if query else url, timeout=20) as answer:
        return json.load(answer)


def eventually(found: Callable[[], T | None], seconds: float = 60.0) -> T:
    """What `found` returns as soon as it is not None; asked again while servers start."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            value = found()
        except (URLError, ConnectionError):
            value = None
        if value is not None:
            return value
        assert time.monotonic() < deadline, "the server did not answer in time"
        time.sleep(0.2)  # a poll of another process


@contextmanager
def running(*command: str | Path) -> Iterator[None]:
    """A process that is ended with the block."""
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def tensorboard(folder: Path) -> Iterator[str]:
    """The address of a TensorBoard that shows a folder."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = ("--logdir", folder, "--host", "127.0.0.1", "--port", str(port))
    with running(sys.executable, "-m", "tensorboard.main", *options):
        eventually(lambda: get(f"{url}/data/runs") or None)
        yield url


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """The address of a Prometheus that scrapes `target` every second."""
    if PROMETHEUS is None:
        pytest.skip("Prometheus is not installed (Debian: prometheus)")
    settings = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "training", "static_configs": [{"targets": [target]}]}],
    }
    config = folder / "prometheus.yml"
    config.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = (
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with running(PROMETHEUS, *options):
        eventually(lambda: series(url, "up == 1") or None)
        yield url


def series(url: str, expression: str) -> list[dict[str, Any]]:
    """The series that a Prometheus finds for an expression."""
    answer = get(f"{url}/api/v1/query", query=expression)
    assert answer["status"] == "success"
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium that talks to nobody by itself."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        try:
            yield browser
        finally:
            browser.close()
