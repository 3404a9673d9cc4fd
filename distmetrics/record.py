"""One window's reduced values: what sinks receive and what a line of `metrics.jsonl` holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Scalar = int | float
Value = Scalar | dict[str, Any]
"""A number, or a histogram as ``{"edges": [...], "counts": [...], ...}``."""

_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class Record:
    """The reduced values of one window of a logger or child, the same whatever the world size.

    Attributes:
        step: the last step of the window that any rank logged.
        first_step: the first one.
        window: the window's label, the last step it covers.
        time: seconds since the epoch at which the record was made.
        values: key (with the child's prefix) to reduced value.
        world_size: the number of ranks that were reduced over.
        attempt: 0, and one more with every resume; later attempts supersede earlier ones.
        logger: the child's name, None for the logger itself.
        late: True for a step that was logged after its window had been closed.
        missing_ranks: ranks whose part could not be had.
        repeat: how many windows before this one ended at the same step.
        exact: the exact state of running totals that are no integers, for whoever continues them.
    """

    step: int
    first_step: int
    window: int
    time: float
    values: Mapping[str, Value]
    world_size: int = 1
    attempt: int = 0
    logger: str | None = None
    late: bool = False
    missing_ranks: tuple[int, ...] = field(default=())
    repeat: int = 0
    exact: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """The record as one line of strict JSON; non-finite numbers become strings.

        Floats are written so that reading them back gives the same bits.
        """
        row: dict[str, Any] = {
            "step": self.step,
            "first_step": self.first_step,
            "window": self.window,
            "time": self.time,
            "world_size": self.world_size,
            "attempt": self.attempt,
        }
        if self.logger is not None:
            row["logger"] = self.logger
        if self.late:
            row["late"] = True
        if self.missing_ranks:
            row["missing_ranks"] = list(self.missing_ranks)
        if self.repeat:
            row["repeat"] = self.repeat
        row["values"] = self.values
        if self.exact:
            row["exact"] = self.exact
        try:
            return json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))
        except ValueError:
            row["values"] = {key: _strict(value) for key, value in self.values.items()}
            return json.dumps(row, allow_nan=False, ensure_ascii=False, separators=(", ", ": "))

    @classmethod
    def from_json(cls, line: str | bytes) -> Record:
        """The record that `to_json` wrote.

        Raises:
            ValueError: the line is no strict JSON object, or lacks a field.
        """
        row = json.loads(line, parse_constant=_refuse)
        if not isinstance(row, dict) or not isinstance(row.get("values"), dict):
            raise ValueError(f"not a record: {line[:80]!r}")
        try:
            return cls(
                step=row["step"],
                first_step=row["first_step"],
                window=row["window"],
                time=row["time"],
                values={key: _loose(value) for key, value in row["values"].items()},
                world_size=row["world_size"],
                attempt=row["attempt"],
                logger=row.get("logger"),
                late=row.get("late", False),
                missing_ranks=tuple(row.get("missing_ranks", ())),
                repeat=row.get("repeat", 0),
                exact=row.get("exact", {}),
            )
        except KeyError as missing:
            raise ValueError(f"not a record: it lacks {missing}: {line[:80]!r}") from None


def _strict(value: Any) -> Any:
    """`value` with every non-finite float replaced by its name."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    return value


def _loose(value: Any) -> Any:
    """The inverse of `_strict`."""
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _loose(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_loose(part) for part in value]
    return value


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")
