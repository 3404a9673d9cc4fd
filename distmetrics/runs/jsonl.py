"""Reading a run directory of distmetrics: `metrics.jsonl` and `run.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from distmetrics.runs.columns import Columns
from distmetrics.runs.declared import Declarations
from distmetrics.runs.series import RunData, listed, plural

METRICS = "metrics.jsonl"
RUN = "run.json"
_BEYOND_INT64 = 2.0**63


def read_run_dir(metrics: Path) -> RunData:
    """The run whose `metrics.jsonl` is given; `run.json` is looked for beside it.

    A torn last line, and lines that are no record, are left out with a warning. Rows of a later
    attempt supersede rows of earlier ones from its first step on (see `Columns`). A histogram
    becomes one series for each bin, ``key[0]``, ``key[below]``.
    """
    warnings: list[str] = []
    facts = read_facts(metrics.parent / RUN, warnings)
    rows, sizes = _read(metrics, orjson.loads, warnings)
    series = rows.series()
    if any(_may_hide_ints(one.values) for one in series.values()):
        # orjson turns ints beyond 64 bits into floats; the slower parser keeps them.
        rows, sizes = _read(metrics, json.loads, [])
        series = rows.series()
    if len(sizes) > 1:
        warnings.append(
            f"the world size changes within the run: {listed(sorted(sizes))}; "
            f"it counts as {_common(sizes)}"
        )
    written = facts.get("registry")
    config = facts.get("config")
    return RunData(
        metrics.parent,
        "distmetrics",
        _common(sizes) if sizes else as_world_size(facts.get("world_size")),
        series,
        Declarations(written if isinstance(written, list) else ()),
        warnings,
        config if isinstance(config, dict) else {},
    )


def read_facts(path: Path, warnings: list[str]) -> dict[str, Any]:
    """What a `run.json` holds; empty with a warning where it cannot be read, empty if absent."""
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        warnings.append(f"{path} cannot be read: {error}")
        return {}
    if not isinstance(facts, dict):
        warnings.append(f"{path} holds no JSON object")
        return {}
    return facts


def as_world_size(value: object) -> int | None:
    """`value` if it can be a number of ranks, else None."""
    good = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if good else None  # type: ignore[return-value]


def lines_of(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """The lines of a file that hold anything; of them a torn last one has no newline."""
    try:
        with path.open("rb") as file:
            for line in file:
                # NULs are what a lost block, or a second writer, leaves in a file.
                if whole := line.strip(b" \t\r\n\0"):
                    yield whole + line[-1:] if line.endswith(b"\n") else whole
    except OSError as error:
        warnings.append(f"{path} could be read only in part: {error}")


def _read(
    path: Path, parse: Callable[[bytes], Any], warnings: list[str]
) -> tuple[Columns, Counter[int]]:
    rows, sizes = Columns(), Counter[int]()
    bad, late, missing, torn = 0, 0, set[int](), False
    for line in lines_of(path, warnings):
        row = _parsed(line, parse)
        if row is None or not _add(rows, row):
            torn = not line.endswith(b"\n")
            bad += not torn
            continue
        late += bool(row.get("late"))
        missing.update(row.get("missing_ranks") or ())
        if size := as_world_size(row.get("world_size")):
            sizes[size] += 1
    if torn:
        warnings.append(f"the last line of {path} is torn; all rows before it are used")
    if bad:
        lines = plural(bad, "line")
        warnings.append(f"{lines} of {path} {'is' if bad == 1 else 'are'} no record and left out")
    if late:
        warnings.append(f"{plural(late, 'row')} came late and cover parts of steps only")
    if missing:
        warnings.append(f"some rows lack the parts of ranks {listed(sorted(missing))}")
    return rows, sizes


def _parsed(line: bytes, parse: Callable[[bytes], Any]) -> Mapping[str, Any] | None:
    try:
        row = parse(line)
    except ValueError:
        try:
            row = json.loads(line)  # takes bare NaN, which strict JSON does not have
        except ValueError:
            return None
    return row if isinstance(row, dict) else None


def _add(rows: Columns, row: Mapping[str, Any]) -> bool:
    values, step = row.get("values"), row.get("step")
    if not isinstance(values, dict) or type(step) is not int:
        return False
    if not {str, dict, list, type(None), bool}.isdisjoint(map(type, values.values())):
        values = _flat(values)
    first, attempt, time = row.get("first_step"), row.get("attempt"), row.get("time")
    logger, window = row.get("logger"), row.get("window")
    rows.add(
        step,
        values,
        attempt=attempt if isinstance(attempt, int) else 0,
        first_step=first if isinstance(first, int) else None,
        late=bool(row.get("late")),
        time=float(time) if isinstance(time, int | float) else None,
        logger=logger if isinstance(logger, str) else "",
        window=window if isinstance(window, int) else None,
    )
    return True


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_bins(key, value))
        elif isinstance(value, int | float | str):
            flat[key] = value
    return flat


def _bins(key: str, histogram: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    counts = histogram.get("counts")
    if isinstance(counts, list):
        yield from ((f"{key}[{number}]", count) for number, count in enumerate(counts))
        for part in ("below", "above", "nan", "inf", "neginf"):
            yield f"{key}[{part}]", histogram.get(part, 0)


def _may_hide_ints(values: np.ndarray[Any, Any]) -> bool:
    return bool(np.any(np.isfinite(values) & (np.abs(values) >= _BEYOND_INT64)))


def _common(sizes: Counter[int]) -> int:
    return max(sizes, key=lambda size: (sizes[size], size))
