"""What a user is told: notes once on rank 0, warnings on the rank concerned, never twice."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import distmetrics as dm
from tests.logger.ranks import records

SCRIPT = """
import logging, sys, warnings
import distmetrics as dm
from distmetrics.testing import run_ranks_in_process

def rank():
    with dm.Logger(errors="warn") as logger:
        for step in range(3):
            bad = "bad" if dm.get_rank() == 1 else 1
            logger.log({"loss": 1.0, "image": "x", "n": dm.Count(bad)})

def tqdm():
    import tqdm

own = logging.getLogger("distmetrics")
for name, configure in {
    "nothing": lambda: None,
    "root at INFO": lambda: logging.basicConfig(level=logging.INFO, force=True),
    "root": lambda: logging.basicConfig(force=True, level=logging.WARNING),
    "own handler": lambda: own.addHandler(logging.StreamHandler()),
    "tqdm": tqdm,
    "not wanted": lambda: own.setLevel(logging.WARNING),
}.items():
    for logger in (logging.getLogger(), own):
        for handler in list(logger.handlers):
            if type(handler).__module__ == "logging":
                logger.removeHandler(handler)
    configure()
    warnings.resetwarnings()
    print("##", name, file=sys.stderr)
    run_ranks_in_process(rank, 2)
"""


def test_notes_are_seen_once_and_on_rank_0_only() -> None:
    """Whether logging is configured or not: one line each, and a warning from rank 1."""
    result = subprocess.run(
        [sys.executable, "-W", "default", "-c", SCRIPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout == ""
    parts = [part.partition("\n") for part in result.stderr.split("## ")[1:]]
    counts = {
        name: (
            text.count("'loss' is not registered"),
            text.count("'image' is not registered"),
            text.count("DistmetricsWarning: key 'n': the value is str 'bad'"),
            text.count("registered"),
        )
        for name, _, text in parts
    }
    seen = (1, 1, 1, 2)
    assert counts == {
        "nothing": seen,
        "root at INFO": seen,
        "root": seen,
        "own handler": seen,
        "tqdm": seen,
        "not wanted": (0, 0, 1, 0),
    }, result.stderr


def test_notes_are_records_of_level_info(caplog: pytest.LogCaptureFixture) -> None:
    """An application gets them through `logging`, from the logger `distmetrics`."""
    with caplog.at_level(logging.INFO, "distmetrics"):
        records(3, lambda logger: [logger.log({"loss": 1.0}) for _ in range(3)])
    (found,) = [record for record in caplog.records if "'loss'" in record.message]
    assert (found.levelno, found.name) == (logging.INFO, "distmetrics")
    assert "taken as average()" in found.message


def test_children_are_noted_by_themselves(caplog: pytest.LogCaptureFixture) -> None:
    """The same key of a child is another one, and is named with its prefix."""

    def train(logger: dm.Logger) -> None:
        for _ in range(2):
            logger.log({"loss": 1.0})
            logger.child("val").log({"loss": 1.0, "logits": torch.ones(3)})

    with caplog.at_level(logging.INFO, "distmetrics"):
        records(2, train)
    texts = [record.message for record in caplog.records]
    assert [text.split(":")[0] for text in texts] == [
        "key 'loss' is not registered",
        "key 'val/loss' is not registered",
        "key 'val/logits' is not registered and its value is no scalar",
    ]


def test_warnings_point_at_the_call_of_the_user() -> None:
    """The file and line are those of the training loop."""

    def train(logger: dm.Logger) -> None:
        wrong: Any = dm.Count("many")
        logger.log({"n": wrong})
        logger.child("val").log({"n": wrong})
        logger.reduce({"m": wrong})

    with pytest.warns(dm.DistmetricsWarning) as caught:
        records(1, train, errors="warn")
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name] * 3


def test_a_warning_that_is_made_an_error_stops_nothing_else() -> None:
    """With warnings as errors the call raises after it has been taken."""

    def train(logger: dm.Logger) -> None:
        with pytest.raises(dm.DistmetricsWarning, match="'bad'"):
            logger.log({"bad": dm.Count("x"), "n": dm.Count(1)}, step=0)
        logger.log({"n": dm.Count(1)}, step=1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = records(2, train, errors="warn")
    assert [record.values for record in found] == [{"n": 2}, {"n": 2}]


@pytest.mark.parametrize("silent", [0, 1])
def test_a_rank_that_logs_nothing_is_named(silent: int, caplog: pytest.LogCaptureFixture) -> None:
    """After a while, once, with what it can do about it; a promise takes it off the list."""

    def train(logger: dm.Logger) -> None:
        if dm.get_rank() != silent:
            for step in range(5):
                logger.log({"n": dm.Count(1)}, step=step)
        deadline = time.monotonic() + 20
        while not any("records wait" in record.message for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if dm.get_rank() == silent:
            logger.log({}, step=5)
        logger.flush(4, wait=True)

    with caplog.at_level(logging.INFO, "distmetrics"):
        assert len(records(3, train, notice_after=0.2, peer_timeout=10)) == 5
    (text,) = [r.message for r in caplog.records if "records wait" in r.message]
    assert f"records wait for rank {silent}, which has logged nothing yet" in text
    assert "logger.log({}, step=s) on it promises nothing more below step s" in text


def test_a_rank_that_falls_behind_is_named_with_its_step(caplog: pytest.LogCaptureFixture) -> None:
    """One that only promises, or has closed, is not."""

    def train(logger: dm.Logger) -> None:
        rank = dm.get_rank()
        if rank == 3:
            return
        for step in range(2 if rank == 1 else 9):
            logger.log({} if rank == 2 else {"n": dm.Count(1)}, step=step)
        deadline = time.monotonic() + 20
        while not any("records wait" in record.message for record in caplog.records):
            assert time.monotonic() < deadline
            time.sleep(0.01)

    with caplog.at_level(logging.INFO, "distmetrics"):
        records(4, train, notice_after=0.2)
    (text,) = [r.message for r in caplog.records if "records wait" in r.message]
    assert "records wait for rank 1, which has not gone beyond step 1;" in text
