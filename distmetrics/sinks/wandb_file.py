"""Whether W&B's service has written a run's file to its end."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from pathlib import Path

_BLOCK = 32768
_FILE_HEAD = 7
_PIECE_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_FIRST, _LAST, _WHOLE = 2, 4, 1
_POLL = 0.005


def await_end(path: Path, start: int, timeout: float) -> bool:
    """Whether the file had its last record within `timeout` seconds.

    `Run.finish` returns when W&B's service has taken the last record, before it has written the
    last block of the file.

    Args:
        path: a ``run-<id>.wandb`` file.
        start: its length before the run was finished.
        timeout: seconds.
    """
    deadline = time.monotonic() + timeout
    while not _has_end(path, start):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True


def _has_end(path: Path, start: int) -> bool:
    """Whether the record of the run's end is in the file's blocks from `start` on."""
    # protobuf makes the class when the module is imported
    from wandb.proto.wandb_internal_pb2 import Record  # type: ignore[attr-defined]

    begin = start // _BLOCK * _BLOCK
    with path.open("rb") as file:
        file.seek(begin)
        content = file.read()
    position = 0 if begin else _FILE_HEAD
    return any(
        Record.FromString(data).WhichOneof("record_type") == "exit"
        for data in _whole_records(content, position)
    )


def _whole_records(content: bytes, position: int) -> Iterator[bytes]:
    """The records that begin and end in `content`, which begins with a block.

    A file is a row of blocks of 32 KiB, and a record is in one piece or in several, each with a
    head and none across the border of a block; as LevelDB writes its logs.
    """
    pieces: list[bytes] | None = None
    while position + _PIECE_HEAD.size <= len(content):
        left = _BLOCK - position % _BLOCK
        if left < _PIECE_HEAD.size:
            position += left
            continue
        _, length, kind = _PIECE_HEAD.unpack_from(content, position)
        position += _PIECE_HEAD.size
        piece = content[position : position + length]
        position += length
        if len(piece) < length or kind == 0:
            return
        if kind in (_WHOLE, _FIRST):
            pieces = []
        if pieces is None:  # the rest of a record that began before
            continue
        pieces.append(piece)
        if kind in (_WHOLE, _LAST):
            yield b"".join(pieces)
            pieces = None
