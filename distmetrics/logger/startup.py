"""What the ranks compare when they make a logger: a conflict raises on all of them alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.reductions import State
from distmetrics.registry import Registry
from distmetrics.rundir import METRICS, Resume, RunDirectory
from distmetrics.spool.merge import keep_last, read_rows


class Start(NamedTuple):
    """What the ranks have agreed on.

    Attributes:
        directory: the run directory on rank 0, None on the others and without one.
        attempt: 0, and one more with every resume.
        past: where a resumed run had come to, by stream: its last step and label, and its running
            totals as plain values.
    """

    directory: RunDirectory | None
    attempt: int
    past: dict[str, Any]


def agree_on_start(
    communicator: Communicator,
    registry: Registry,
    run_dir: Path | None,
    every: int | None,
    config: Mapping[str, Any],
    mesh: Mapping[str, Any] | None,
    resume: Resume,
) -> Start:
    """Compare what the ranks want, and open the run directory on rank 0.

    Ranks: all.
    Collective: 2, and 2 more with a run directory.

    Raises:
        InvalidValue: run_dir, every, resume or registry differ (on every rank).
        RunDirError: the run directory cannot be used (on every rank).
    """
    mine = {
        "run_dir": None if run_dir is None else str(run_dir),
        "every": every,
        "resume": resume,
        "declarations": registry.declarations(),
        "default": registry.default,
        "strict": registry.strict,
    }
    said = [json.loads(part) for part in communicator.all_gather(json.dumps(mine).encode())]
    _compare(said)
    if run_dir is None:
        return Start(None, 0, {})
    directory, told = None, {}
    if communicator.rank == 0:
        try:
            directory = RunDirectory(run_dir, resume)
            past = _past(run_dir, registry) if directory.attempt else {}
            directory.begin(registry, config, communicator.world_size, every, mesh)
            told = {"attempt": directory.attempt, "past": past}
        except RunDirError as error:
            told = {"error": str(error)}
            if directory is not None:
                directory.close()
    answer = json.loads(communicator.all_gather(json.dumps(told).encode())[0])
    if "error" in answer:
        raise RunDirError(answer["error"])
    return Start(directory, answer["attempt"], answer["past"])


def _past(run_dir: Path, registry: Registry) -> dict[str, Any]:
    """Where a run had come to, by its rows."""
    past: dict[str, Any] = {}
    for row in keep_last(read_rows(run_dir / METRICS)):
        name = row.logger or ""
        stream = past.setdefault(name, {"latest": -1, "totals": {}})
        stream["latest"] = max(stream["latest"], row.step)
        prefix = f"{name}/" if name else ""
        for key, value in row.values.items():
            metric = registry.resolve(key[len(prefix) :], prefix)
            if metric.reduction is not None and metric.reduction.cumulative:
                exact = row.exact.get(key)
                plain = State.of_int(value).to_plain() if isinstance(value, int) else exact
                if plain is not None:
                    stream["totals"][key[len(prefix) :]] = plain
    return past


def _compare(said: Sequence[Mapping[str, Any]]) -> None:
    first = said[0]
    for name, remedy in (
        ("run_dir", "agree on one path before, e.g. let rank 0 send it"),
        ("every", "pass the same number on every rank"),
        ("resume", "pass the same on every rank"),
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
