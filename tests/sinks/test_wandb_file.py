"""Whether a W&B run's file has been written to its end."""

from __future__ import annotations

import struct
import threading
import zlib
from pathlib import Path

import pytest
from wandb.proto.wandb_internal_pb2 import Record, RunExitRecord

from distmetrics.sinks.wandb_file import await_end
from tests.sinks.wandb_log import read_wandb

BLOCK = 32768
HEAD = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
END = Record(exit=RunExitRecord(exit_code=0)).SerializeToString()


def row(length: int) -> bytes:
    """A record of history with a text of that many letters."""
    record = Record()
    item = record.history.item.add()
    item.key, item.value_json = "x", f'"{"1" * length}"'
    return bytes(record.SerializeToString())


def log(*records: bytes) -> bytes:
    """A file of these records, cut into pieces where they do not fit into a block."""
    content = HEAD
    for data in records:
        rest, first = data, True
        while rest or first:
            left = BLOCK - len(content) % BLOCK
            if left < 7:
                content += bytes(left)
                continue
            piece, rest = rest[: left - 7], rest[left - 7 :]
            kind = {(True, False): 1, (True, True): 2, (False, True): 3, (False, False): 4}[
                (first, bool(rest))
            ]
            checksum = zlib.crc32(bytes([kind]) + piece)
            content += struct.pack("<IHB", checksum, len(piece), kind) + piece
            first = False
    return content


@pytest.mark.parametrize("lengths", [[], [10], [40_000, 10], [32_700], [32_743], [100_000] * 3])
def test_end_is_found_wherever_the_blocks_fall(tmp_path: Path, lengths: list[int]) -> None:
    """The last record is found before and after any length of others, and only it counts."""
    rows = [row(length) for length in lengths]
    path = tmp_path / "run.wandb"
    path.write_bytes(log(*rows))
    size = path.stat().st_size
    assert len(read_wandb(path).rows) == len(rows)
    assert not await_end(path, size, timeout=0)
    path.write_bytes(log(*rows, END)[:-1])
    assert not await_end(path, size, timeout=0)
    path.write_bytes(log(*rows, END))
    for start in (0, size // 2, size):
        assert await_end(path, start, timeout=0)


def test_end_is_waited_for(tmp_path: Path) -> None:
    """A file that is completed meanwhile is found complete."""
    path = tmp_path / "run.wandb"
    path.write_bytes(log(row(10)))
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(await_end(path, 0, timeout=30)))
    waiting.start()
    path.write_bytes(log(row(10), END))
    waiting.join(30)
    assert found == [True]
