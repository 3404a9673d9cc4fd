"""Names and patterns of keys: which text is accepted, and what a pattern matches."""

from __future__ import annotations

import difflib
import fnmatch
import heapq
import re
import reprlib
from collections.abc import Callable, Iterable

from distmetrics.errors import InvalidType, InvalidValue

Matcher = Callable[[str], object]
"""Truthy for the keys that a pattern matches."""

# A bracket is a wildcard only where fnmatch finds its end: "loss[", "[]" and "[!]" are plain text.
_WILDCARD = re.compile(r"[*?]|\[(?:!|(?!!)).[^\]]*\]", re.DOTALL)
# Line breaks and other control characters tear tables and files, lone surrogates have no UTF-8.
_FORBIDDEN = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\ud800-\\udfff]")


def is_pattern(text: str) -> bool:
    """Whether a declared text is a pattern, that is, holds a wildcard of `fnmatch.fnmatchcase`.

    >>> is_pattern("val/*"), is_pattern("loss[0]"), is_pattern("loss["), is_pattern("a.b")
    (True, True, False, False)
    """
    return _WILDCARD.search(text) is not None


def matcher(pattern: str) -> Matcher:
    """What tells the keys that a pattern matches, case-sensitive, compiled once."""
    return re.compile(fnmatch.translate(pattern)).match


def checked_key(text: object, where: str) -> str:
    """The text of a key or pattern, as a plain str.

    Raises:
        InvalidType: it is no str.
        InvalidValue: it is empty, ends in a slash, or holds a character that no key may hold.
    """
    if not isinstance(text, str):
        several = isinstance(text, list | tuple | set | frozenset)
        remedy = "; pass several keys as separate arguments" if several else ""
        raise InvalidType(
            f"{where}: a key is a str, a name such as 'loss' or a pattern such as 'val/*', "
            f"not {shown(text)}{remedy}"
        )
    text = str.__str__(text)  # of a subclass (np.str_, an enum) the text alone
    if not text:
        raise InvalidValue(f"{where}: a key is a text that is not empty")
    if found := _FORBIDDEN.search(text):
        raise InvalidValue(
            f"{where}: {text!r} holds {found.group()!r}; a key holds no control character, "
            "line break or lone surrogate"
        )
    if text.endswith("/"):
        raise InvalidValue(
            f"{where}: {text!r} ends in '/' and so names no key; '{text}*' is all keys under it"
        )
    return text


def checked_name(text: object, where: str, reason: str) -> str:
    """The text of a key that must be an exact name: as `checked_key`, and without * and ?.

    Brackets are taken as they are: ``acc[0]`` is the key of this name.

    Raises:
        InvalidType: it is no str.
        InvalidValue: it is no key, or holds ``*`` or ``?``.
    """
    name = checked_key(text, where)
    if "*" in name or "?" in name:
        raise InvalidValue(f"{where}: {name!r} is a pattern, an exact name is needed: {reason}")
    return name


def nearest(key: str, names: Iterable[str], most: int = 3) -> list[str]:
    """The names most alike to a key, best first; upper and lower case count as alike.

    >>> nearest("Los", ["loss", "acc", "val/loss"])
    ['loss', 'val/loss']
    """
    # Without autojunk, which makes every letter of a text beyond 200 characters look meaningless.
    match = difflib.SequenceMatcher(a="", b=key.lower(), autojunk=False)
    scored = []
    for name in names:
        match.set_seq1(name.lower())
        if match.real_quick_ratio() > 0.5 and match.quick_ratio() > 0.5:
            scored.append((match.ratio(), name))
    best = heapq.nlargest(most, (pair for pair in scored if pair[0] > 0.5), lambda pair: pair[0])
    return [name for _, name in best]


def shown(value: object) -> str:
    """A received value for a message: its type and a short form."""
    return f"{type(value).__name__} {shortened(value)}"


def shortened(value: object) -> str:
    """The representation of a value, of a text in full, of anything else in a few words."""
    return repr(value) if isinstance(value, str) else reprlib.repr(value)
