"""The options of reductions: checked where they are declared, by method and key."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from distmetrics import reductions
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry.keys import checked_name, nearest, shown

COUNTED = ("weight", "numerator", "denominator", "of")
"""Options that name a key which is a count unless it is registered otherwise."""

_REFERENCES = (*COUNTED, "seconds")
_OPTIONAL = ("weight", "seconds")
_REASON = "it is looked for in the call under this name"


def build(kind: str, params: Mapping[str, Any], where: str) -> Reduction:
    """The reduction of a kind and its options.

    Raises:
        InvalidType: an option of a wrong type, one that does not exist, or one that is missing.
        InvalidValue: an option with a value that is not accepted, or a kind that does not exist.
    """
    check_names(kind, params, where)
    checked = {name: _checked(name, value, where) for name, value in params.items()}
    if kind == "ratio" and not {"numerator", "denominator"} <= checked.keys():
        raise InvalidType(f"{where}: a ratio needs the keys numerator= and denominator=")
    for name, option in _options(kind).items():
        if option.default is option.empty and name not in checked:
            raise InvalidType(f"{where}: {kind} needs {name}=")
    try:
        return reductions.make(kind, **checked)
    except TypeError as error:
        raise InvalidType(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidValue(f"{where}: {error}") from None


def check_names(
    kind: str, params: Iterable[str], where: str, described: Iterable[str] = ()
) -> None:
    """Raise `InvalidType` for an option that a kind does not have, with the nearest that it has.

    Args:
        kind: the name of a reduction, or "ignore", which has no options; others are not looked at.
        params: the names of its options.
        where: for messages.
        described: other keywords that the declaration takes, and that may have been meant.
    """
    options = _options(kind)
    if kind not in (*reductions.BUILDERS, "ignore"):
        return
    for name in params:
        if name not in options:
            near = nearest(name, [*options, *described], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            takes = ", ".join([*options, *described]) or "none"
            raise InvalidType(f"{where}: {kind} has no option {name!r}{hint} (it has {takes})")


def _options(kind: str) -> Mapping[str, inspect.Parameter]:
    """The options of a reduction."""
    builder = reductions.BUILDERS.get(kind)
    return {} if builder is None else inspect.signature(builder).parameters


def _checked(name: str, value: object, where: str) -> object:
    if name in _REFERENCES:
        return _reference(name, value, where)
    if name == "ddof":
        return _ddof(value, where)
    if name == "per_device" and not isinstance(value, bool):
        raise InvalidType(f"{where}: per_device= is True or False, not {shown(value)}")
    return value


def _ddof(value: object, where: str) -> int | float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidType(f"{where}: ddof= is a number, not {shown(value)}")
    number = float(value)
    if not 0 <= number < math.inf:
        raise InvalidValue(f"{where}: ddof= is finite and not negative, not {shown(value)}")
    return int(number) if number.is_integer() else number  # 1 and 1.0 are one declaration


def _reference(name: str, value: object, where: str) -> str | None:
    if value is None and name in _OPTIONAL:
        return None
    if not isinstance(value, str):
        raise InvalidType(
            f"{where}: {name}= is the name of another key of the call, not {shown(value)}; "
            "numbers are given to log()"
        )
    return checked_name(value, f"{where}: {name}=", _REASON)
