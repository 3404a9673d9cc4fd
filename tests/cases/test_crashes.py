"""Calls that crash other tools, and what they do here."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import distmetrics as dm
from distmetrics.errors import InvalidType
from distmetrics.testing import run_ranks_in_process
from tests.cases.rows import registry, row


def test_values_of_every_dtype_meet_in_one_flush() -> None:
    """Gloo knows no bfloat16, NCCL no CPU: what travels is neither the value's type nor device."""
    made = {
        "bf16": torch.tensor(1.5).bfloat16(),
        "fp16": torch.tensor(1.5).half(),
        "int8": torch.tensor(3, dtype=torch.int8),
        "bool": torch.tensor(True),
        "fp8": torch.tensor(1.5).to(torch.float8_e5m2),
        "float": 1.5,
    }
    first = {key: dm.Average(value) for key, value in made.items()}
    second = {key: dm.Average(torch.tensor(2.5).to(torch.bfloat16)) for key in made}
    found = row([first], [second])
    assert found == {"bf16": 2.0, "fp16": 2.0, "int8": 2.75, "bool": 1.75, "fp8": 2.0, "float": 2.0}


def test_a_tensor_without_data_is_an_error_that_names_the_key() -> None:
    """At the call, before any rank waits for another."""

    def rank() -> None:
        made = registry(loss="average")()
        said = "key 'loss': the value is a meta tensor"
        with dm.Logger(made) as logger, pytest.raises(InvalidType, match=said):
            logger.log({"loss": torch.zeros((), device="meta")}, step=0)

    two(rank)


def two(rank: Any) -> None:
    """Two ranks in this process."""
    run_ranks_in_process(rank, 2)


def test_a_plain_script_needs_no_process_group(tmp_path: Path) -> None:
    """It is a run of one rank, gathers work, and no group is made behind its back."""
    script = (
        "import sys, torch.distributed as dist, distmetrics as dm\n"
        "with dm.Logger(run_dir=sys.argv[1]) as logger:\n"
        "    logger.log({'c': dm.Count(3), 'a': dm.Average(2.0)}, step=0)\n"
        "    assert logger.reduce({'c': dm.Count(4)}) == {'c': 4}\n"
        "assert dm.comm.all_gather('a') == ['a']\n"
        "assert (dm.get_rank(), dm.get_world_size()) == (0, 1)\n"
        "assert not dist.is_initialized()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert dm.Record.from_json(line).values == {"c": 3, "a": 2.0}


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1)])
def test_one_number_of_any_shape_is_a_scalar(shape: tuple[int, ...]) -> None:
    """Registered or not."""
    assert row([{"a": torch.full(shape, 2.0), "b": np.full(shape, 3.0)}]) == {"a": 2.0, "b": 3.0}


def test_several_numbers_are_as_many_contributions(caplog: pytest.LogCaptureFixture) -> None:
    """Under a registered key; without one they are ignored, and named in one note."""
    first, second = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([3.0, 2.0, 1.0])
    assert row([{"a": first}], [{"a": second}], registry=registry(a="average")) == {"a": 2.0}
    with caplog.at_level("INFO", "distmetrics"):
        found = row([{"a": first, "b": 1.0}] * 3, [{"a": second, "b": 1.0}])
    assert found == {"b": 1.0}
    notes = [r.message for r in caplog.records if r.message.startswith("key 'a'")]
    assert notes == ["key 'a' is not registered and its value is no scalar: ignored"]


def test_numbers_of_numpy_and_python_are_values() -> None:
    """Each as what it is; None is absent."""
    made = registry(a="average", b="average", c="count", d="maximum")
    outputs = {"a": np.float32(1.5), "b": True, "c": np.int64(3), "d": np.array([[2.0]])}
    assert row([outputs | {"e": None}], registry=made) == {"a": 1.5, "b": 1.0, "c": 3, "d": 2.0}


@pytest.mark.parametrize("wrong", ["0.5", 1 + 2j, object(), b"1", [1, "2"], {1, 2}])
def test_other_types_under_a_registered_key_are_type_errors(wrong: Any) -> None:
    """On the rank that made the call; with errors='warn' its other keys are logged."""
    made = registry(a="average")

    def rank() -> None:
        with dm.Logger(made()) as logger, pytest.raises(TypeError, match="key 'a': the value is"):
            logger.log({"a": wrong, "b": 1.0}, step=0)

    two(rank)
    with pytest.warns(dm.DistmetricsWarning, match="key 'a': the value is"):
        assert row([{"a": wrong, "b": 1.0}], registry=made, errors="warn") == {"b": 1.0}
    assert row([{"a": wrong, "b": 1.0}]) == {"b": 1.0}  # not registered: ignored


def test_files_stay_strict_json_whatever_the_values(tmp_path: Path) -> None:
    """NaN and infinities have a written form that reads back as they were."""
    outputs = {
        "nan": dm.Average(math.nan),
        "inf": dm.Maximum(math.inf),
        "-inf": dm.Minimum(-math.inf),
        "big": dm.Count(10**400),
        "beyond": dm.Count([1e308] * 10),
        'odd "key" \\ ü': dm.Count(1),
    }
    row([outputs], [outputs], run_dir=tmp_path / "run")

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not strict JSON")

    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    parsed = json.loads(line, parse_constant=refuse)["values"]
    assert (parsed["nan"], parsed["inf"], parsed["-inf"]) == ("NaN", "Infinity", "-Infinity")
    values = dm.Record.from_json(line).values
    assert math.isnan(values["nan"])  # type: ignore[arg-type]
    assert (values["inf"], values["-inf"], values["beyond"]) == (math.inf, -math.inf, math.inf)
    assert values["big"] == 2 * 10**400
    assert values['odd "key" \\ ü'] == 2


def test_a_tracker_that_loses_its_network_does_not_stop_the_training() -> None:
    """Its error is warned of once and counted; the other sink has every row."""
    seen: list[int] = []
    calls = iter(range(1, 100))
    stats: dict[str, Any] = {}

    def flaky(record: dm.Record) -> None:
        if next(calls) in (3, 4, 5):
            raise ConnectionError("unreachable")

    def rank() -> None:
        sinks = [flaky, lambda record: seen.append(record.step)]
        with dm.Logger(sinks=sinks if dm.get_rank() == 0 else ()) as logger:
            for step in range(8):
                logger.log({"n": dm.Count(1)}, step=step)
        if dm.get_rank() == 0:
            stats.update(logger.stats())

    with pytest.warns(dm.DistmetricsWarning, match="sink 'flaky' failed in writing step 2"):
        two(rank)
    assert seen == list(range(8))
    assert stats["sink_errors"] == 3


@pytest.mark.parametrize(
    "key",
    [
        "a.b",
        "a b",
        "a/b/c",
        "loss[0]",
        "*",
        "%s",
        "{x}",
        "ü€",
        "日本語",
        "a" * 300,
        "-",
        "\\d+",
        "a'b",
    ],
)
def test_odd_key_names_are_keys_as_they_stand(key: str, tmp_path: Path) -> None:
    """In the file and in the values that come back, registered by their name or not."""
    assert row([{key: 1.0}], [{key: 3.0}], run_dir=tmp_path / "run") == {key: 2.0}
    (line,) = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert dm.Record.from_json(line).values == {key: 2.0}
    assert row([{key: 1.0}], [{key: 3.0}], registry=registry(**{key: "count"})) == {key: 4.0}


@pytest.mark.parametrize("key", ["a\nb", "a\x00", "", "a/", "\ud800", 3, None, ("a",)])
def test_texts_that_would_break_files_are_no_keys(key: Any) -> None:
    """The error names what is wrong with them, at the call."""

    def rank() -> None:
        with dm.Logger() as logger, pytest.raises((TypeError, ValueError), match="key"):
            logger.log({key: 1.0, "b": 1.0}, step=0)

    two(rank)


def test_keys_that_collide_are_an_error() -> None:
    """A nested dict and a text with a slash may not name the same key."""

    def rank() -> None:
        with dm.Logger() as logger, pytest.raises(ValueError, match="'a/b' comes twice"):
            logger.log({"a/b": 1, "a": {"b": 2}}, step=0)

    two(rank)
