"""What a logger can be made with: each check names the argument, what came and the rule."""

from __future__ import annotations

import operator
import os
from pathlib import Path
from typing import Any

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.registry.keys import checked_key, shown
from distmetrics.rundir import SPOOL


def checked_every(every: Any) -> int | None:
    """The number of steps of a window, or None."""
    if every is None:
        return None
    try:
        steps = None if isinstance(every, bool) else operator.index(every)
    except TypeError:
        steps = None
    if steps is None:
        raise InvalidType(f"every= is a whole number of steps or None, not {shown(every)}")
    if not 0 < steps < 1 << 40:
        raise InvalidValue(f"every= is at least 1, not {steps}")
    return steps


def checked_path(name: str, value: Any) -> Path | None:
    """A path with the home directory in it, or None."""
    if value is None:
        return None
    if not isinstance(value, str | os.PathLike):
        raise InvalidType(f"{name}= is a path or None, not {shown(value)}")
    text = os.fspath(value)
    if not isinstance(text, str):
        raise InvalidType(f"{name}= is a path as a str, not {shown(value)}")
    if not text.strip():
        raise InvalidValue(
            f"{name}={value!r} names no directory (a variable that is not set?); give a path, '.' "
            "for the current directory, or None"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InvalidValue(f"{name}={value!r}: {error} Write the path out") from None


def check_choice(name: str, value: object, accepted: tuple[bool | str, ...]) -> None:
    """Raise unless the value is one of these, by type too."""
    if not any(type(value) is type(choice) and value == choice for choice in accepted):
        raise InvalidValue(f"{name}= is one of {', '.join(map(repr, accepted))}, not {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raise unless the value is a bool: a text would be taken as True, whatever it says."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name}= is True or False, not {shown(value)}")


def check_seconds(name: str, value: object) -> None:
    """Raise unless the value is a duration."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e8:
        raise InvalidValue(f"{name}= is a number of seconds, above 0 and finite, not {value!r}")


def check_mesh(value: object) -> None:
    """Raise unless the value can be a mesh."""
    if value is not None and not (hasattr(value, "mesh") and hasattr(value, "mesh_dim_names")):
        raise InvalidType(
            "mesh= is a torch.distributed.device_mesh.DeviceMesh, as init_device_mesh makes it, "
            f"or None, not {shown(value)}"
        )


def check_name(name: object) -> None:
    """Raise unless a child can have this name."""
    checked_key(name, "a child's name")
    if isinstance(name, str) and name.startswith("/"):
        raise InvalidValue(f"a child's name has no slash at its ends: {name!r}")


def spool_folder(spool: bool, run_dir: Path | None, spool_dir: Path | None) -> Path | None:
    """Where closed windows are kept; None where they are not."""
    if spool_dir is not None and (run_dir is None or not spool):
        raise InvalidValue("spool_dir= needs run_dir= and spool=True; leave it out, or give those")
    if run_dir is None or not spool:
        return None
    return run_dir / SPOOL if spool_dir is None else spool_dir
