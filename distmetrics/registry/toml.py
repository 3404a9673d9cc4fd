"""Registries as TOML: one line a declaration, under ``[metrics]``.

::

    default = "average"
    strict = false

    [metrics]
    loss = {reduction = "average", weight = "num_tokens", unit = "nats"}
    "*num_pairs" = {reduction = "count", unit = "pairs", group = "matching"}
    perplexity = {reduction = "derived", expression = "exp(loss)"}

A metric's options and its descriptions stand side by side. A key that is more than letters, digits,
``_`` and ``-`` is quoted: bare, TOML takes ``val.loss`` for a table in a table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.registry.keys import nearest, shown
from distmetrics.registry.metric import Described, Metric

_SETTINGS = ("default", "strict")
_METRICS = "metrics"
_HEADER = re.compile(r"\s*\[[^\[].*\]\s*(#.*)?$")


class Declared(NamedTuple):
    """One entry of a file.

    Attributes:
        declaration: as `Metric.declaration` has it.
        where: file, line and key, for messages.
    """

    declaration: dict[str, Any]
    where: str


def dumps(metrics: Iterable[Metric], default: str, strict: bool) -> str:
    """A registry as TOML.

    Raises:
        InvalidValue: a key is derived by a Python function, which no file can hold.
    """
    document = tomlkit.document()
    document["default"] = default
    document["strict"] = strict
    table = tomlkit.table()
    for metric in metrics:
        declaration = metric.declaration()
        pattern = declaration.pop("pattern")
        params = declaration.pop("params", {})
        if "function" in params:
            raise InvalidValue(
                f"key {pattern!r} is derived by the function {params['function']}, which a file "
                "cannot hold; derive it by an expression such as 'exp(loss)'"
            )
        entry = tomlkit.inline_table()
        entry["reduction"] = declaration.pop("reduction")
        entry.update(params | declaration)
        table[pattern] = entry
    document[_METRICS] = table
    return tomlkit.dumps(document)


def decoded(content: bytes, name: str) -> str:
    """The text of a file.

    Raises:
        InvalidValue: it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidValue(
            f"{name}, line {line}: a registry is a text in UTF-8, and this line is none "
            f"({error.reason} {content[error.start : error.end]!r}); save the file as UTF-8"
        ) from None


def loads(text: str, name: str) -> tuple[dict[str, Any], list[Declared]]:
    """The settings in a file, and its entries in order.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        InvalidValue: it is no TOML, or has something that no registry has; the message gives line
            and key.
        InvalidType: something in it has a wrong type.
    """
    try:
        content = tomlkit.parse(text).unwrap()
    except ParseError as error:
        reason = str(error).partition(" at line")[0]
        if "end of file" in reason or ("\\x00" in reason and "\0" not in text):
            reason = "the text ends within a declaration: is a closing quote, ] or } missing?"
        raise InvalidValue(f"{name}, line {error.line}: {reason}") from None
    except TOMLKitError as error:  # a key that comes again, of which it does not give the line
        raise InvalidValue(f"{name}, line {_repeated(text)}: {error}") from None
    lines = _Lines(text)
    for key in content:
        if key not in (*_SETTINGS, _METRICS):
            raise InvalidValue(
                f"{name}, line {lines.of(key)}: {key!r} is none of default, strict and [metrics]; "
                "declarations stand under [metrics]"
            )
    metrics = content.pop(_METRICS, {})
    if not isinstance(metrics, Mapping):
        raise InvalidType(
            f"{name}, line {lines.of(_METRICS)}: [metrics] is a table, not {shown(metrics)}"
        )
    found = []
    for key, options in metrics.items():
        where = f"{name}, line {lines.of(_METRICS, key)}: key {key!r}"
        found.append(Declared(_declaration(key, options, where), where))
    return content, found


def _declaration(key: str, options: object, where: str) -> dict[str, Any]:
    rule = 'is a table with a reduction, such as {reduction = "average"}'
    if not isinstance(options, Mapping):
        raise InvalidType(f"{where} {rule}, not {shown(options)}")
    if "reduction" not in options:
        nested = [name for name, value in options.items() if isinstance(value, Mapping)]
        hint = f'; a key with dots or slashes is quoted: "{key}.{nested[0]}"' if nested else ""
        near = nearest("reduction", options, 1)
        hint = hint or (f"; did you mean reduction by {near[0]!r}?" if near else "")
        raise InvalidValue(f"{where} {rule}, and has none{hint}")
    declaration: dict[str, Any] = {"pattern": key, "reduction": options["reduction"], "params": {}}
    for option, value in options.items():
        if option in Described.__annotations__:
            declaration[option] = value
        elif option == "function" and options["reduction"] == "derived":
            raise InvalidValue(
                f"{where} has the option function={shown(value)}, which a file cannot hold; derive "
                "it by an expression such as 'exp(loss)', or declare it in Python"
            )
        elif option != "reduction":
            declaration["params"][option] = value
    return declaration


class _Lines:
    """Finds the line of a key; TOML's readers tell the lines of mistakes in its grammar only."""

    def __init__(self, text: str) -> None:
        self._places: dict[tuple[str, ...], int] = {}
        for path, number in _places(text):
            for length in range(1, len(path) + 1):
                self._places.setdefault(path[:length], number)

    def of(self, *path: str) -> int:
        """The line where a key is set first."""
        return self._places.get(path, self._places.get(path[:1], 1))


def _places(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each line that opens a table or sets a key: the path of that, and the line's number."""
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.match(line):
            path = table = _path(line)
        else:
            # the first "=" behind which the key is whole: a quoted one may hold some
            heads = (line[: sign.start()] for sign in re.finditer("=", line))
            opened = next(filter(None, (_path(f"{head}= 0") for head in heads)), ())
            if not opened:
                continue
            path = (*table, *opened)
        yield path, number


def _repeated(text: str) -> int:
    """The first line that sets a key again."""
    seen: set[tuple[str, ...]] = set()
    for path, number in _places(text):
        if path in seen:
            return number
        seen.add(path)
    return 1


def _path(line: str) -> tuple[str, ...]:
    """The keys that a line of TOML opens, outermost first; none where it is none by itself."""
    try:
        content: Any = tomlkit.parse(line).unwrap()
    except TOMLKitError:
        return ()
    path = []
    while isinstance(content, Mapping) and content:
        key, content = next(iter(content.items()))
        path.append(key)
    return tuple(path)
