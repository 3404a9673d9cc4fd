"""Patterns of keys, as matchers here and as regular expressions for other tools."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from functools import cache

_SPECIAL = frozenset("\\.+*?()|[]{}^$/")
_NONFINITE = "nonfinite"
_NOTHING = r"[^\s\S]"


def escaped(text: str) -> str:
    r"""A regular expression that matches `text` alone, alike in Python, RE2 and browsers.

    `re.escape` also escapes spaces and dashes, which not all of them take.

    >>> print(escaped("acc[0] (50%)"))
    acc\[0\] \(50%\)
    """
    return "".join("\\" + char if char in _SPECIAL else char for char in text)


def regex(pattern: str) -> str:
    r"""A regular expression for the whole of a key that a pattern matches, without anchors.

    Patterns are those of a registry: ``*``, ``?``, ``[abc]``, ``[!abc]``, as in
    `fnmatch.fnmatchcase`.

    >>> print(regex("*.loss[0-9]"))
    .*\.loss[0-9]
    """
    out, place = [], 0
    while place < len(pattern):
        char = pattern[place]
        place += 1
        if char == "*":
            out.append(".*")
        elif char == "?":
            out.append(".")
        elif char == "[":
            end = _end_of_class(pattern, place)
            if end < 0:
                out.append("\\[")
                continue
            out.append(_class(pattern[place:end]))
            place = end + 1
        else:
            out.append(escaped(char))
    return "".join(out)


def anywhere(pattern: str) -> str:
    """As `regex`, for keys that match as a whole or from behind one of their slashes.

    After a leading slash, ``/loss``, a pattern matches whole keys only.

    >>> [bool(re.fullmatch(anywhere(text), "val/loss")) for text in ("loss", "/loss", "/val/loss")]
    [True, False, True]
    """
    if pattern.startswith("/"):
        return regex(pattern[1:])
    return f"(?:.*\\/)?{regex(pattern)}"


@cache
def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether a template's pattern matches a key.

    >>> [matcher("loss*")(key) for key in ("loss", "val/loss", "closs", "loss/nonfinite")]
    [True, True, False, False]
    >>> matcher("*/nonfinite")("loss/nonfinite")
    True
    """
    compiled = re.compile(anywhere(pattern), re.DOTALL)
    counts = _NONFINITE in pattern

    def matches(key: str) -> bool:
        hidden = not counts and key.endswith(f"/{_NONFINITE}")
        return not hidden and compiled.fullmatch(key) is not None

    return matches


def _end_of_class(pattern: str, start: int) -> int:
    """Where the class that begins before `start` ends, -1 if it does not."""
    first = start + 1 if pattern[start : start + 1] == "!" else start
    return pattern.find("]", first + 1)


def _class(content: str) -> str:
    """The class as `fnmatch` reads it, where an empty one needs no look-ahead, which RE2 lacks."""
    whole = fnmatch.translate(f"[{content}]")
    found = whole[len("(?s:") : whole.rindex(")")]
    return _NOTHING if found == "(?!)" else found
