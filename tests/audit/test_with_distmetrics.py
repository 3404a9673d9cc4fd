"""The audit of scripts that log through distmetrics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from distmetrics.audit.commands import audit
from tests.audit.gallery import logged

SCRIPT = Path(logged.__file__)


def audited(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the verdicts on the script's keys at one and three ranks."""
    command = [
        "run", "--world-sizes", "1,3", "--out", str(folder / "audit"), "--timeout", "100",
        "--json", str(folder / "a.json"), "--", str(SCRIPT), *arguments,
    ]  # fmt: skip
    done = CliRunner().invoke(audit, command)
    assert done.exit_code in {0, 1}, done.output
    return done.exit_code, json.loads((folder / "a.json").read_text())["keys"]


@pytest.mark.heavy
def test_a_right_registry_passes(tmp_path: Path) -> None:
    """Counts and weighted means do not depend on the ranks; the rate is declared to."""
    code, keys = audited(tmp_path)
    assert code == 0, keys
    assert {keys[key]["verdict"] for key in ("num_samples", "num_correct", "lr")} == {"identical"}
    assert keys["loss"]["verdict"] in {"identical", "close"}
    assert keys["samples_per_second"]["verdict"] == "expected_scaling"


@pytest.mark.heavy
def test_a_wrong_registry_is_found(tmp_path: Path) -> None:
    """Averaged counts, and a mean of uneven parts without its weight."""
    code, keys = audited(tmp_path, "--wrong")
    assert code == 1
    assert keys["num_samples"]["verdict"] == "shrinks_with_ranks"
    assert keys["loss"]["verdict"] == "weighting"
