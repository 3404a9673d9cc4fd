"""Reading metrics that another tool wrote as CSV, TSV or JSON lines: a step column and keys."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from distmetrics.errors import RunDirError
from distmetrics.runs.columns import Columns, is_number
from distmetrics.runs.jsonl import lines_of
from distmetrics.runs.series import RunData, listed, plural

STEP_NAMES = ("step", "_step", "global_step", "trainer/global_step", "iteration", "iter", "steps")
"""Columns that can hold the step, best first; compared without case."""

_CLOCKS = frozenset({"_timestamp", "_runtime", "_wandb", "timestamp", "time", "wall_time"})
_CUT = 8
_JSON = (".jsonl", ".ndjson", ".json")
_CSV = (".csv", ".tsv")


def read_table(path: Path) -> RunData:
    """The run in a CSV, TSV or JSON-lines file.

    Columns that hold no numbers are left out, with a warning that names them; empty cells are
    absent. Without a column for the step (`STEP_NAMES`) the rows count from 0.

    Raises:
        RunDirError: the file holds no row with a number.
    """
    warnings: list[str] = []
    lines = path.suffix in _JSON or (path.suffix not in _CSV and _begins_with_brace(path))
    rows: Iterable[Mapping[str, Any]] = (_json_rows if lines else _csv_rows)(path, warnings)
    columns = Columns()
    ignored: dict[str, None] = {}
    name: str | None = None
    steps_lost, number = 0, 0
    for row in rows:
        name = _step_name(row) if name is None else name
        values = {}
        for key, value in row.items():
            if key == name or key in _CLOCKS:
                continue
            if is_number(value):
                values[key] = value
            elif value is not None:
                ignored.setdefault(key)
        step = _as_step(row.get(name)) if name is not None else number
        number += 1
        if step is None:
            steps_lost += 1
        elif values:
            columns.add(step, values)
    if not len(columns):
        raise RunDirError(f"{path} holds no row with a step and a number")
    _complain(path, warnings, ignored, name, steps_lost)
    return RunData(path, "table", None, columns.series(), warnings=warnings)


def _complain(
    path: Path, warnings: list[str], ignored: Iterable[str], name: str | None, lost: int
) -> None:
    names = list(ignored)
    if names:
        warnings.append(f"{path}: left out as no numbers: {listed(names, _CUT)}")
    if name is None:
        known = ", ".join(STEP_NAMES)
        warnings.append(f"{path} has no column for the step ({known}): its rows count from 0")
    if lost:
        warnings.append(f"{path}: {plural(lost, 'row')} without a step left out")


def _begins_with_brace(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1024).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{")


def _step_name(row: Mapping[str, Any]) -> str | None:
    lower = {key.lower(): key for key in list(row)[::-1]}
    return next((lower[name] for name in STEP_NAMES if name in lower), None)


def _as_step(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _csv_rows(path: Path, warnings: list[str]) -> Iterator[dict[str, Any]]:
    torn = 0
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        head = file.readline()
        file.seek(0)
        delimiter = max(",\t;", key=head.count)
        # NULs are what a full disk leaves of a row.
        rows = csv.reader((line.replace("\0", "") for line in file), delimiter=delimiter)
        try:
            header = [name.strip() for name in next(rows, [])]
            for row in rows:
                if len(row) == len(header):
                    yield {name: _cell(cell) for name, cell in zip(header, row, strict=True)}
                elif row:
                    torn += 1
        except csv.Error as error:
            warnings.append(f"{path} is read up to line {rows.line_num}: {error}")
    if torn:
        warnings.append(f"{path}: {plural(torn, 'row')} of another length than the header left out")


def _cell(text: str) -> int | float | str | None:
    text = text.strip()
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _json_rows(path: Path, warnings: list[str]) -> Iterator[dict[str, Any]]:
    bad = 0
    for line in lines_of(path, warnings):
        try:
            row = orjson.loads(line)
        except ValueError:
            try:
                row = json.loads(line)
            except ValueError:
                bad += 1
                continue
        if isinstance(row, dict):
            yield dict(_flat(row))
        else:
            bad += 1
    if bad:
        lines = plural(bad, "line")
        warnings.append(f"{path}: {lines} that hold no JSON object (or are torn) left out")


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield prefix + key, value
