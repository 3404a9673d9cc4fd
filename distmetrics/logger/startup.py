"""What the ranks compare when they make a logger: a conflict raises on all of them alike."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.registry import Registry
from distmetrics.rundir import METRICS, SPOOL, Resume, RunDirectory
from distmetrics.spool.journal import SUFFIX
from distmetrics.spool.merge import complete, keep_last, read_rows, total_of

_LOG = logging.getLogger("distmetrics")
COMPLETED = 1 << 26
"""Bytes of spools that a resume completes the record from, at most: the other ranks wait for it."""


class Start(NamedTuple):
    """What the ranks have agreed on.

    Attributes:
        directory: the run directory on rank 0, None on the others and without one.
        attempt: 0, and one more with every resume.
        run: the run's own name; "" without a run directory.
        past: where a resumed run had come to, by stream: its last step and label, and its running
            totals as plain values.
    """

    directory: RunDirectory | None
    attempt: int
    run: str
    past: dict[str, Any]


def agree_on_start(
    communicator: Communicator,
    registry: Registry,
    run_dir: Path | None,
    every: int | None,
    config: Mapping[str, Any],
    mesh: Mapping[str, Any] | None,
    resume: Resume,
    refusal: str | None = None,
) -> Start:
    """Compare what the ranks want, and open the run directory on rank 0.

    `refusal` is why this rank cannot make its logger, so that no rank goes on without it.

    Ranks: all.
    Collective: 2, and 2 more with a run directory.

    Raises:
        InvalidValue: run_dir, every, resume, mesh or registry differ, or a rank refuses (on every
            rank).
        RunDirError: the run directory cannot be used (on every rank).
    """
    mine = {
        "run_dir": None if run_dir is None else str(run_dir),
        "every": every,
        "resume": resume,
        "mesh": mesh,
        "refusal": refusal,
        "declarations": registry.declarations(),
        "default": registry.default,
        "strict": registry.strict,
    }
    said = [json.loads(part) for part in communicator.all_gather(json.dumps(mine).encode())]
    _compare(said)
    if run_dir is None:
        return Start(None, 0, "", {})
    directory, told = None, {}
    if communicator.rank == 0:
        try:
            directory = RunDirectory(run_dir, resume)
            past = {}
            if directory.attempt:
                _complete(directory)
                past = _past(run_dir, registry)
            directory.begin(registry, config, communicator.world_size, every, mesh)
            told = {"attempt": directory.attempt, "run": directory.run, "past": past}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for it
            known = isinstance(error, RunDirError)
            told = {"error": str(error) if known else f"run_dir {str(run_dir)!r}: {error!r}"}
            if directory is not None:
                directory.close()
    answer = json.loads(communicator.all_gather(json.dumps(told).encode())[0])
    if "error" in answer:
        raise RunDirError(answer["error"])
    return Start(directory, answer["attempt"], answer["run"], answer["past"])


def _complete(directory: RunDirectory) -> None:
    """Write what earlier attempts have spooled and not written, before this one goes on."""
    spooled = sum(path.stat().st_size for path in (directory.path / SPOOL).glob(f"*{SUFFIX}"))
    if 0 < spooled <= COMPLETED:
        complete(directory.path, directory.description)
    elif spooled:
        _LOG.warning(
            "the spools of earlier attempts in %r hold %d MiB, too much to merge while the ranks "
            "wait: `distmetrics merge` after the run does it; without load_state_dict running "
            "totals go on from the last row that was written",
            str(directory.path),
            spooled >> 20,
        )


def _past(run_dir: Path, registry: Registry) -> dict[str, Any]:
    """Where a run had come to, by its rows."""
    past: dict[str, Any] = {}
    for row in keep_last(read_rows(run_dir / METRICS)):
        name = row.logger or ""
        stream = past.setdefault(name, {"latest": -1, "totals": {}})
        stream["latest"] = max(stream["latest"], row.step)
        prefix = f"{name}/" if name else ""
        for key in row.values:
            metric = registry.resolve(key[len(prefix) :], prefix)
            if metric.reduction is not None and metric.reduction.cumulative:
                state = total_of(row, key)
                if state is not None:
                    stream["totals"][key[len(prefix) :]] = state.to_plain()
    return past


def _compare(said: Sequence[Mapping[str, Any]]) -> None:
    first = said[0]
    for rank, other in enumerate(said):
        if other["refusal"] is not None:
            raise InvalidValue(f"{other['refusal']} (on rank {rank})")
    for name, remedy in (
        ("run_dir", "agree on one path before, e.g. let rank 0 send it"),
        ("every", "pass the same number on every rank"),
        ("resume", "pass the same on every rank"),
        ("mesh", "pass the whole mesh, not a slice of it, on every rank"),
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
