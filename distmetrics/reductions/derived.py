"""Keys that are computed from the reduced values of others, such as perplexity = exp(mean loss)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distmetrics.errors import InvalidType
from distmetrics.reductions.expression import Expression
from distmetrics.reductions.reduction import Reduction, parameters

Derive = Callable[[Mapping[str, Any]], Any]
"""From the reduced values of a record, by key, to one more."""


def derived(expression: str | None = None, function: Derive | str | None = None) -> Reduction:
    """What an expression, or a function, makes of the other reduced values of a record.

    Args:
        expression: see `distmetrics.reductions.expression`.
        function: a pure function of the values by key; or its name, in a process that reads what
            another declared and cannot compute it.

    Raises:
        InvalidType: both, or neither, are given, or one of a wrong type.
        InvalidValue: the expression is malformed.
    """
    if (expression is None) == (function is None):
        raise InvalidType("a derived key needs an expression such as 'exp(loss)', or a function")
    if expression is not None:
        compute = Expression(expression)
        return Reduction(
            "derived",
            parameters(expression=compute.text),
            inputs=compute.keys,
            derive=compute,
            virtual=True,
        )
    if not isinstance(function, str) and not callable(function):
        raise InvalidType(f"a derived key needs a function, not {type(function).__name__}")
    return Reduction(
        "derived",
        parameters(function=function if isinstance(function, str) else name_of(function)),
        derive=None if isinstance(function, str) else function,
        virtual=True,
    )


def name_of(function: Callable[..., Any]) -> str:
    """What tells a function from others in every process of a run.

    >>> name_of(name_of)
    'distmetrics.reductions.derived.name_of'
    """
    name = getattr(function, "__qualname__", type(function).__qualname__)
    text = f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"
    code = getattr(function, "__code__", None)
    return f"{text}, line {code.co_firstlineno}" if code and "<lambda>" in name else text
