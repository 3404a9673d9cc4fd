"""Running real launchers: bounded in time, killed with all they started, output read back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
REPORT = str(Path(__file__).with_name("report.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def environment(**more: str) -> dict[str, str]:
    """The variables of a launcher: one thread a rank, this checkout, no interface chosen."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}
    return {name: value for name, value in environ.items() if value != ""}


@contextlib.contextmanager
def started(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process in a session of its own, which is killed as a whole at the end."""
    process = subprocess.Popen(
        command,
        env=dict(environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def run(
    command: Sequence[str], environ: Mapping[str, str], timeout: float = 90
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    with started(command, environ) as process:
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err


def reports(*outputs: str) -> list[dict[str, Any]]:
    """The reports in what ranks printed, by rank."""
    lines = [line for output in outputs for line in output.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith('{"rank"')]
    return sorted(found, key=lambda each: int(each["rank"]))


def check(found: Sequence[dict[str, Any]], nodes: Sequence[Sequence[int]]) -> None:
    """The ranks found each other, and their groups hold whom they should.

    `nodes`: the ranks of each node.
    """
    world_size = sum(len(node) for node in nodes)
    assert [each["rank"] for each in found] == list(range(world_size))
    tokens = [seq for rank in range(world_size) for seq in ([rank] * rank, [])]
    for index, node in enumerate(nodes):
        for local, rank in enumerate(node):
            each = found[rank]
            assert each["world_size"] == world_size
            assert each["per_node"] == [len(ranks) for ranks in nodes]
            assert (each["node"], each["local"]) == (index, [local, len(node)])
            assert each["peers"] == list(node)
            assert each["total"] == sum(range(world_size))
            assert each["local_total"] == sum(node)
            assert each["tokens"] == tokens
