"""The run directory: one run, one writer, and a description of the run beside its records."""

from __future__ import annotations

import errno
import fcntl
import importlib.metadata
import json
import logging
import os
import platform
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

import numpy as np
import torch

from distmetrics.errors import RunDirError
from distmetrics.registry import Registry

_LOG = logging.getLogger("distmetrics")
METRICS = "metrics.jsonl"
DESCRIPTION = "run.json"
SPOOL = "spool"
_LOCK = ".lock"
_FIELDS: dict[str, type] = {
    "id": str,
    "world_size": int,
    "attempts": list,
    "registry": list,
    "default": str,
    "strict": bool,
    "config": dict,
}


Resume = Literal[True, False, "auto"]


class RunDirectory:
    """A run directory that this process alone writes to.

    Args:
        path: made where it does not exist.
        resume: True: go on with the run that it holds; False: it may hold none; "auto": either.

    Attributes:
        attempt: 0, and one more with every resume.
        run: the run's own name, the same in every attempt.
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
        self._folder = path.absolute()  # wherever the process goes
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
        self.run = str(self._description.get("id") or uuid.uuid4().hex[:12])
        self.sinks: dict[str, Any] = self._description.get("sinks", {})

    @property
    def description(self) -> dict[str, Any]:
        """What ``run.json`` says."""
        return self._description

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
        """Write ``run.json``: what is needed to read the records.

        It holds no environment, and of `config` no passwords, keys or tokens.

        Raises:
            RunDirError: it cannot be written.
        """
        now = {"attempt": self.attempt, "world_size": world_size, "mesh": mesh}
        self._attempts = [*self._attempts, now]
        self._description = {
            "id": self.run,
            "world_size": world_size,
            "attempt": self.attempt,
            "attempts": self._attempts,
            "every": every,
            "mesh": mesh,
            "registry": registry.declarations(),
            "default": registry.default,
            "strict": registry.strict,
            "config": _plain(without_secrets(config)),
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

    def restore(self) -> None:
        """Write again what somebody has deleted meanwhile.

        Raises:
            RunDirError: it cannot be written.
        """
        if not (self._folder / DESCRIPTION).exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._write()
        if not (self._folder / _LOCK).exists():
            self.close()
            self._lock = lock(self._folder)

    def _write(self) -> None:
        text = json.dumps(self._description, indent=2, ensure_ascii=False, default=str) + "\n"
        new = self._folder / f"{DESCRIPTION}.new"
        try:
            new.write_text(text, encoding="utf-8")
            new.replace(self._folder / DESCRIPTION)
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
        RunDirError: there is none, or it is not what a run has written.
    """
    try:
        found = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirError(
            f"{str(path)!r} holds no run that can be read: {DESCRIPTION}: {error}"
        ) from error
    if not isinstance(found, dict):
        raise RunDirError(f"{str(path / DESCRIPTION)!r} holds no JSON object")
    for name, kind in _FIELDS.items():
        if not isinstance(found.get(name), kind):
            raise RunDirError(
                f"{str(path / DESCRIPTION)!r} is damaged: {name!r} is {found.get(name)!r:.80}, "
                f"not of type {kind.__name__}"
            )
    for entry in found["attempts"]:
        known = isinstance(entry, dict) and {type(entry.get(k)) for k in ("attempt", "world_size")}
        if known != {int}:
            raise RunDirError(
                f"{str(path / DESCRIPTION)!r} is damaged: {entry!r:.80} is no attempt, which has a "
                "number and a world size"
            )
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
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            _LOG.warning(
                "run_dir %r cannot be locked (%s): nothing keeps a second run out of it",
                str(path),
                error.strerror or error,
            )
            return file
        file.close()
        raise RunDirError(
            f"run_dir {str(path)!r} is written to by another process; "
            "give every run a directory of its own"
        ) from error
    return file


_SECRET = re.compile(
    r"(?:^|[_\-.])(?:api[_\-]?key|secret(?:[_\-]?key)?|pass(?:word|wd|phrase)|credentials?"
    r"|(?:access|auth|api|hf|bearer|refresh)[_\-]?token|private[_\-]?key)$",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"KEY$|TOKEN$|SECRET$|PASS(WORD|WD|PHRASE)?$|CREDENTIALS?$")
_HIDDEN = "(hidden)"


def without_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without passwords, keys and tokens, by their names or as the environment's.

    Example:
        >>> without_secrets({"num_tokens": 7, "wandb": {"api_key": "abc", "project": "p"}})
        {'num_tokens': 7, 'wandb': {'api_key': '(hidden)', 'project': 'p'}}
    """
    known = {
        value
        for name, value in os.environ.items()
        if len(value) >= 8 and _SECRET_VARIABLE.search(name)
    }

    def clean(value: Any, name: str) -> Any:
        if isinstance(value, Mapping):
            return {key: clean(part, str(key)) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [clean(part, name) for part in value]
        if isinstance(value, str) and (value in known or (value and _SECRET.search(name))):
            return _HIDDEN
        return value

    return {key: clean(value, str(key)) for key, value in config.items()}


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
