"""The options of reductions: checked where they are declared, by method and key."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from distmetrics import reductions
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry.keys import checked_name, shown

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
    checked = {name: _checked(name, value, where) for name, value in params.items()}
    if kind == "ratio" and not {"numerator", "denominator"} <= checked.keys():
        raise InvalidType(f"{where}: a ratio needs the keys numerator= and denominator=")
    try:
        return reductions.make(kind, **checked)
    except TypeError as error:
        raise InvalidType(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidValue(f"{where}: {error}") from None


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
