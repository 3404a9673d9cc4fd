"""Reading the history of W&B offline runs from their `.wandb` files, with no server."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from distmetrics.errors import MissingPackage, RunDirError
from distmetrics.runs.columns import Columns, is_number
from distmetrics.runs.jsonl import as_world_size
from distmetrics.runs.series import RunData, listed, plural

_BLOCK = 32768
_HEADER = 7
_IDENTITY = b":W&B"
_INTERNAL = frozenset({"_step", "_timestamp", "_runtime", "_wandb"})


@dataclass
class _File:
    """What one file holds: the run's id, its rows and its configuration."""

    path: Path
    run_id: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)


def is_wandb_file(path: Path) -> bool:
    """Whether a file has the name of a W&B transaction log."""
    return path.suffix == ".wandb" and path.is_file()


def read_wandb(files: list[Path], root: Path) -> RunData:
    """The run in some `.wandb` files; several files of one run id are its resumed sessions.

    The step is the key ``step`` of a row where it has one, a key ``<name>/step`` where all keys of
    the row belong to that name, else W&B's own ``_step``. A value that repeats W&B's last row for
    a key at the same step replaces it. Of a torn file all whole records are used, with a warning.

    Raises:
        RunDirError: the files hold no history.
        MissingPackage: wandb is not installed.
    """
    warnings: list[str] = []
    found = [_read_file(path, warnings) for path in sorted(files, key=lambda one: one.name)]
    runs: dict[str, list[_File]] = {}
    for one in found:
        if one.rows:
            runs.setdefault(one.run_id, []).append(one)
    if not runs:
        notes = f" ({'; '.join(warnings)})" if warnings else ""
        raise RunDirError(f"{root} holds W&B files but no history{notes}")
    parts = max(runs.values(), key=lambda parts: sum(len(part.rows) for part in parts))
    if len(runs) > 1:
        warnings.append(
            f"{root} holds {len(runs)} W&B runs ({listed(runs)}), perhaps one per process; "
            f"compared is {parts[0].run_id!r}, which has the most rows"
        )
    columns, ignored = Columns(), dict[str, None]()
    for attempt, part in enumerate(parts):
        for row in part.rows:
            _add(columns, row, attempt if _has_own_step(row) else 0, ignored)
    if ignored:
        warnings.append(f"{root}: left out as no numbers: {listed(ignored)}")
    config = {key: value for part in parts for key, value in part.config.items()}
    size = as_world_size(config.get("world_size"))
    return RunData(root, "wandb", size, columns.series(), warnings=warnings, config=config)


def _has_own_step(row: dict[str, Any]) -> bool:
    return "step" in row


def _add(columns: Columns, row: dict[str, Any], attempt: int, ignored: dict[str, None]) -> None:
    step, name = _step_of(row)
    values = {}
    for key, value in row.items():
        if key in _INTERNAL or key == name:
            continue
        if is_number(value):
            values[key] = value
        elif value is not None:
            ignored.setdefault(key)
    if step is not None and values:
        time = row.get("_timestamp")
        clock = float(time) if isinstance(time, int | float) else None
        columns.add(step, values, attempt=attempt, time=clock)


def _step_of(row: dict[str, Any]) -> tuple[int | None, str]:
    """The step of a row and the key that held it."""
    names = ["step"]
    heads = {key.partition("/")[0] for key in row if key not in _INTERNAL}
    if len(heads) == 1:
        names.append(f"{heads.pop()}/step")
    names += ["global_step", "trainer/global_step", "_step"]
    for name in names:
        value = row.get(name)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value, name
    return None, ""


def _read_file(path: Path, warnings: list[str]) -> _File:
    try:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

        proto: Any = import_module("wandb.proto.wandb_internal_pb2")
    except ImportError as error:
        raise MissingPackage(
            "reading a W&B file needs the package wandb: pip install wandb"
        ) from error
    found = _File(path, path.stem)
    lost = 0
    for body in records(path, warnings):
        try:
            record = proto.Record.FromString(body)
        except DecodeError:
            lost += 1
            continue
        kind = record.WhichOneof("record_type")
        if kind == "history":
            found.rows.append(_items(record.history.item))
        elif kind == "run":
            found.run_id = record.run.run_id or found.run_id
            found.config.update(_items(record.run.config.update))
        elif kind == "config":
            found.config.update(_items(record.config.update))
    if lost:
        warnings.append(f"{path}: {plural(lost, 'record')} that cannot be decoded left out")
    return found


def _items(items: Any) -> dict[str, Any]:
    row = {}
    for item in items:
        try:
            row[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        except ValueError:
            continue
    return row


def records(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """The whole records of a file in LevelDB's log format, up to the first damaged one.

    A file begins with seven bytes (identity, magic number, version); then come blocks of 32 KiB
    with chunks of a CRC-32, a length, a type (whole, first, middle, last) and the data;
    https://github.com/google/leveldb/blob/main/doc/log_format.md.
    """
    data = path.read_bytes()
    if data[:4] != _IDENTITY:
        warnings.append(f"{path} does not begin like a W&B file")
        return
    place, parts = _HEADER, b""
    while True:
        left = _BLOCK - place % _BLOCK
        if left < _HEADER:
            place += left
            continue
        if place + _HEADER > len(data):
            if place < len(data) or parts:
                warnings.append(_torn(path))
            return
        crc, length, kind = struct.unpack("<IHB", data[place : place + _HEADER])
        body = data[place + _HEADER : place + _HEADER + length]
        if kind == 0 and length == 0:
            if data[place:].strip(b"\0") or parts:
                warnings.append(_torn(path))
            return
        if len(body) < length or zlib.crc32(body, zlib.crc32(bytes([kind]))) != crc:
            warnings.append(_torn(path))
            return
        place += _HEADER + length
        parts = body if kind in {1, 2} else parts + body
        if kind in {1, 4}:
            yield parts
            parts = b""


def _torn(path: Path) -> str:
    return f"{path} ends in the middle of a record or is damaged; all records before it are used"
