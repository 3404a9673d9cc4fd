"""Lines of a spool: JSON with a checksum that tells a torn or damaged line from a whole one."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_DIGITS = 8


def to_line(value: dict[str, Any]) -> bytes:
    """A checksum, a space and the value as JSON, and a line break."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return f"{zlib.crc32(body):0{_DIGITS}x} ".encode() + body + b"\n"


def from_line(line: bytes) -> dict[str, Any] | None:
    """The value of a whole line; None where the line is torn or damaged."""
    body = line[_DIGITS + 1 :].rstrip(b"\n")
    try:
        if not line.endswith(b"\n") or int(line[:_DIGITS], 16) != zlib.crc32(body):
            return None
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """The lines of a file; None for each that is torn or damaged."""
    with path.open("rb") as file:
        for line in file:
            yield from_line(line)
