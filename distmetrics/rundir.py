"""The run directory: one run, one writer, and a description of the run beside its records."""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch

from distmetrics.errors import RunDirError
from distmetrics.registry import Registry

METRICS = "metrics.jsonl"
DESCRIPTION = "run.json"
SPOOL = "spool"
_LOCK = ".lock"


Resume = Literal[True, False, "auto"]


class RunDirectory:
    """A run directory that this process alone writes to.

    Args:
        path: made where it does not exist.
        resume: True: go on with the run that it holds; False: it may hold none; "auto": either.

    Attributes:
        attempt: 0, and one more with every resume.
        sinks: what finds the sinks' own runs again, by the sink's name.

    Ranks: rank 0.

    Raises:
        RunDirError: it holds a run and should not, or none and should; another process writes to
            it; it cannot be made.
    """

    def __init__(self, path: Path, resume: Resume = False) -> None:
        self.path = path
        self._lock: TextIO | None = None
        self._description: dict[str, Any] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunDirError(
                f"run_dir {str(path)!r} cannot be used: {error.strerror or error}"
            ) from error
        self._lock = lock(path)
        held = [name for name in (METRICS, DESCRIPTION) if (path / name).exists()]
        try:
            self._check(held, resume)
            if held:
                self._description = describe(path)
        except RunDirError:
            self.close()
            raise
        self._attempts: list[dict[str, Any]] = self._description.get("attempts", [])
        self.attempt = 1 + max((past["attempt"] for past in self._attempts), default=-1)
        self.sinks: dict[str, Any] = self._description.get("sinks", {})

    def _check(self, held: list[str], resume: Resume) -> None:
        if held and resume is False:
            raise RunDirError(
                f"run_dir {str(self.path)!r} holds a run already ({held[0]}); give this run a "
                "directory of its own, or pass resume=True to go on with it"
            )
        if not held and resume is True:
            raise RunDirError(
                f"run_dir {str(self.path)!r} holds no run to resume; "
                'pass resume="auto" to begin one where there is none'
            )

    def begin(
        self,
        registry: Registry,
        config: Mapping[str, Any],
        world_size: int,
        every: int | None,
        mesh: Mapping[str, Any] | None,
    ) -> None:
        """Write ``run.json``: what is needed to read the records. It holds no environment.

        Raises:
            RunDirError: it cannot be written.
        """
        self._attempts = [*self._attempts, {"attempt": self.attempt, "world_size": world_size}]
        self._description = {
            "world_size": world_size,
            "attempt": self.attempt,
            "attempts": self._attempts,
            "every": every,
            "mesh": mesh,
            "registry": registry.declarations(),
            "default": registry.default,
            "strict": registry.strict,
            "config": _plain(config),
            "sinks": self.sinks,
            "versions": {
                "distmetrics": importlib.metadata.version("distmetrics"),
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
            },
        }
        self._write()

    def remember(self, sinks: Mapping[str, Any]) -> None:
        """Keep what finds the sinks' own runs again, by the sink's name.

        Raises:
            RunDirError: it cannot be written.
        """
        self.sinks = {**self.sinks, **sinks}
        self._description["sinks"] = self.sinks
        self._write()

    def _write(self) -> None:
        text = json.dumps(self._description, indent=2, ensure_ascii=False, default=str) + "\n"
        new = self.path / f"{DESCRIPTION}.new"
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(self.path / DESCRIPTION)
        except OSError as error:
            raise RunDirError(
                f"run_dir {str(self.path)!r} cannot be written: {error.strerror or error}"
            ) from error

    def close(self) -> None:
        """Let other processes write to it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def describe(path: Path) -> dict[str, Any]:
    """What ``run.json`` says of a run.

    Raises:
        RunDirError: there is none, or it is no JSON object.
    """
    try:
        found = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirError(
            f"{str(path)!r} holds no run that can be read: {DESCRIPTION}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise RunDirError(f"{str(path / DESCRIPTION)!r} holds no JSON object")
    return found


def lock(path: Path) -> TextIO:
    """Keep other writers out of a run directory until the returned file is closed.

    Raises:
        RunDirError: another process writes to it, or the lock file cannot be made.
    """
    try:
        file = (path / _LOCK).open("a")
    except OSError as error:
        raise RunDirError(
            f"run_dir {str(path)!r} cannot be used: {error.strerror or error}"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise RunDirError(
            f"run_dir {str(path)!r} is written to by another process; "
            "give every run a directory of its own"
        ) from error
    return file


def _plain(value: Any) -> Any:
    """A configuration as JSON has it: keys are strings, what JSON lacks becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
