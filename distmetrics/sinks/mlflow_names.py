"""Names of MLflow metrics for keys, one to one."""

from __future__ import annotations

import hashlib
import posixpath
import re

LONGEST = 250
"""The longest name that MLflow takes."""

_TAKEN = re.compile(r"[\w\-. /:]")  # \w is Unicode's: MLflow takes such letters


def metric_name(key: str) -> str:
    """The name under which MLflow keeps a key.

    A key that MLflow takes is its own name. In any other one, each character that MLflow refuses,
    and each colon, becomes ``:`` and its code point in hexadecimal and ``:``; what MLflow would
    read as a path that leads elsewhere (``a//b``, ``../a``) has its dots and slashes written so; a
    name of more than 250 characters is cut and ends in a hash of the whole key.

    >>> metric_name("val/loss"), metric_name("acc[0]"), metric_name("a//b")
    ('val/loss', 'acc:5b:0:5d:', 'a:2f::2f:b')
    """
    name = key
    if ":" in key or not all(_TAKEN.fullmatch(char) for char in key):
        name = "".join(
            char if char != ":" and _TAKEN.fullmatch(char) else _written(char) for char in key
        )
    if name != posixpath.normpath(name) or name.startswith(("/", "..")) or name == ".":
        name = "".join(_written(char) if char in "./" else char for char in name)
    if len(name) > LONGEST:
        mark = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        name = f"{name[: LONGEST - len(mark) - 2].rstrip('/.')}::{mark}"
    return name


def _written(char: str) -> str:
    return f":{ord(char):x}:"
