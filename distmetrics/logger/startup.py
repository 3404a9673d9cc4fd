"""What the ranks compare when they make a logger: a conflict raises on all of them alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.registry import Registry
from distmetrics.rundir import RunDirectory


def agree_on_start(
    communicator: Communicator,
    registry: Registry,
    run_dir: Path | None,
    every: int | None,
    config: Mapping[str, Any],
    mesh: Mapping[str, Any] | None,
) -> RunDirectory | None:
    """Compare what the ranks want, and open the run directory on rank 0.

    Ranks: all.
    Collective: 2, and 2 more with a run directory.

    Returns:
        The run directory on rank 0, None on the others.

    Raises:
        InvalidValue: run_dir, every or registry differ (on every rank).
        RunDirError: the run directory cannot be used (on every rank).
    """
    mine = {
        "run_dir": None if run_dir is None else str(run_dir),
        "every": every,
        "declarations": registry.declarations(),
        "default": registry.default,
        "strict": registry.strict,
    }
    said = [json.loads(part) for part in communicator.all_gather(json.dumps(mine).encode())]
    _compare(said)
    if run_dir is None:
        return None
    directory, failure = None, b""
    if communicator.rank == 0:
        try:
            directory = RunDirectory(run_dir)
            directory.describe(registry, config, communicator.world_size, every, mesh)
        except RunDirError as error:
            failure = str(error).encode()
            if directory is not None:
                directory.close()
    told = communicator.all_gather(failure)[0]
    if told:
        raise RunDirError(told.decode())
    return directory


def _compare(said: Sequence[Mapping[str, Any]]) -> None:
    first = said[0]
    for name, remedy in (
        ("run_dir", "agree on one path before, e.g. let rank 0 send it"),
        ("every", "pass the same number on every rank"),
    ):
        for rank, other in enumerate(said):
            if other[name] != first[name]:
                raise InvalidValue(
                    f"ranks make different loggers: {name}={first[name]!r} on rank 0 and "
                    f"{name}={other[name]!r} on rank {rank}; {remedy} (or the ranks make their "
                    "loggers in different order)"
                )
    mine = _registry(first)
    for rank, other in enumerate(said):
        differs = mine.difference(
            other["declarations"],
            default=other["default"],
            strict=other["strict"],
            names=("rank 0", f"rank {rank}"),
        )
        if differs:
            raise InvalidValue(
                f"ranks make loggers with different registries: {differs}; "
                "declare the same keys on every rank"
            )


def _registry(said: Mapping[str, Any]) -> Registry:
    return Registry.from_declarations(said["declarations"], said["default"], said["strict"])
