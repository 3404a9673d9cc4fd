"""Records and runs made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distmetrics.record import Record, Value
from distmetrics.registry import Registry
from distmetrics.sinks import Run


def record(step: int, values: Mapping[str, Value] | None = None, **fields: Any) -> Record:
    """A record of one step; its loss is half the step where no values are given."""
    given = {"loss": step / 2} if values is None else values
    row: dict[str, Any] = {"first_step": step, "window": step, "time": 1000.0 + step, **fields}
    return Record(step=step, values=given, **row)


def run(directory: Path | None = None, **fields: Any) -> Run:
    """A run of one rank in `directory`."""
    return Run(directory=directory, name="example", registry=Registry(), **fields)
