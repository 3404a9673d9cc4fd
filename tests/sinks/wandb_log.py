"""What a W&B offline file holds, read without W&B's service.

The file is a log in blocks of 32 KiB, as LevelDB writes it: a header of 7 bytes (``:W&B``, a magic
number, a version), then pieces of records, each with a checksum, its length and whether it is a
whole record (1), the first (2), a middle (3) or the last (4) piece of one. A block's last bytes are
left empty where no piece's head fits.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

_BLOCK = 32768
_FILE_HEAD = struct.Struct("<4sHB")
_PIECE_HEAD = struct.Struct("<IHB")
_WHOLE, _LAST = 1, 4


@dataclass
class WandbLog:
    """A run's file: its rows of history in order, and what was defined of its metrics."""

    run_id: str = ""
    name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    step_metrics: dict[str, str] = field(default_factory=dict)
    hidden: set[str] = field(default_factory=set)
    rules: dict[str, set[str]] = field(default_factory=dict)
    exit_code: int | None = None


def read_wandb(path: Path) -> WandbLog:
    """The content of one ``run-<id>.wandb`` file."""
    log = WandbLog()
    for data in _records(path.read_bytes()):
        entry = Record.FromString(data)
        kind = entry.WhichOneof("record_type")
        if kind == "run":
            log.run_id, log.name = entry.run.run_id, entry.run.display_name
            log.config |= _values(entry.run.config.update)
        elif kind == "config":
            log.config |= _values(entry.config.update)
        elif kind == "history":
            log.rows.append(_values(entry.history.item))
        elif kind == "metric":
            metric = entry.metric
            rules = {rule.name for rule, given in metric.summary.ListFields() if given}
            log.rules[metric.name or metric.glob_name] = rules
            if metric.options.hidden:
                log.hidden.add(metric.name)
            if metric.step_metric:
                log.step_metrics[metric.name or metric.glob_name] = metric.step_metric
        elif kind == "exit":
            log.exit_code = entry.exit.exit_code
    return log


def wandb_files(run_dir: Path) -> list[Path]:
    """The files of all W&B runs in a run directory, in the order of their folders' names."""
    return sorted((run_dir / "wandb").glob("*run-*/run-*.wandb"))


def _values(items: Iterable[Any]) -> dict[str, Any]:
    """Keys and values; a key may come as a path, whose parts dots join."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(content: bytes) -> Iterator[bytes]:
    """The whole records; a torn tail ends them."""
    mark, magic, _version = _FILE_HEAD.unpack_from(content)
    assert (mark, magic) == (b":W&B", 0xBEE1), "no W&B file"
    position, pieces = _FILE_HEAD.size, b""
    while True:
        left = _BLOCK - position % _BLOCK
        if left < _PIECE_HEAD.size:
            position += left
        if position + _PIECE_HEAD.size > len(content):
            return
        checksum, length, kind = _PIECE_HEAD.unpack_from(content, position)
        position += _PIECE_HEAD.size
        piece = content[position : position + length]
        position += length
        if len(piece) < length or kind == 0 or zlib.crc32(bytes([kind]) + piece) != checksum:
            return
        pieces += piece
        if kind in (_WHOLE, _LAST):
            yield pieces
            pieces = b""
