"""Arithmetic over keys as text, ``exp(loss)`` or ``a / b``: parsed, checked, never executed.

The text is parsed as Python, of which only numbers, keys, ``+ - * / **``, signs, parentheses and
the functions of `FUNCTIONS` are accepted. A key that is no identifier is quoted:
``exp("val/loss")``.

The arithmetic never raises: x/0 and numbers beyond float64 are infinite, and what has no value
(0/0, the root or the logarithm of a negative number) is NaN. Sums, differences and products of
integers are exact, and a quotient of two is correctly rounded. What comes of it is an integer of
at most 8192 bits or a float: longer ones, which few programs read, become infinite.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distmetrics import exact
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions.state import Number

MOST_CHARACTERS = 1000
MOST_BITS = 8192
"""Of an integer result; Python, and JSON, write up to 4300 digits, which is 14284 bits."""
_DEEPEST = 60

Values = Mapping[str, Any]
_Evaluate = Callable[[Values], Number]


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _logarithm(log: Callable[[float], float]) -> Callable[[float], float]:
    def of(x: float) -> float:
        return log(x) if x > 0 else -math.inf if x == 0 else math.nan

    return of


def _sqrt(x: float) -> float:
    return math.nan if x < 0 else math.sqrt(x)


def _ranked(choose: Callable[..., Number]) -> Callable[..., Number]:
    def of(*values: Number) -> Number:
        return math.nan if any(map(math.isnan, map(_float, values))) else choose(values)

    return of


_OF_FLOATS: dict[str, Callable[[float], float]] = {
    "exp": _exp,
    "log": _logarithm(math.log),
    "log2": _logarithm(math.log2),
    "log10": _logarithm(math.log10),
    "sqrt": _sqrt,
}
_OF_NUMBERS: dict[str, Callable[..., Number]] = {
    "abs": abs,
    "min": _ranked(min),
    "max": _ranked(max),
}
FUNCTIONS = (*_OF_FLOATS, *_OF_NUMBERS)
"""The functions that an expression may call; ``min`` and ``max`` take two or more arguments."""


@dataclass(frozen=True)
class Expression:
    """A checked expression; called with values by key, it gives a number.

    Two expressions are equal when their texts are.

    Args:
        text: the expression, of at most 1000 characters.

    Attributes:
        keys: the keys that it needs, in the order of their appearance.

    Raises:
        InvalidType: it is no text.
        InvalidValue: it is no expression of the kind above; the message says where.

    >>> perplexity = Expression("exp(loss)")
    >>> perplexity.keys, perplexity({"loss": 0.0})
    (('loss',), 1.0)
    >>> Expression('hits / ("val/n" - 1)')({"hits": 1, "val/n": 4})
    0.3333333333333333
    """

    text: str
    keys: tuple[str, ...] = field(init=False, compare=False)
    _evaluate: _Evaluate = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        keys: dict[str, None] = {}
        evaluate = _Compiler(self.text, keys).compile(_parsed(self.text), 0)
        object.__setattr__(self, "keys", tuple(keys))
        object.__setattr__(self, "_evaluate", evaluate)

    def __call__(self, values: Values) -> Number:
        return bounded(self._evaluate(values))


def bounded(value: Number) -> Number:
    """A number that can be written down: an integer of more than `MOST_BITS` becomes a float.

    >>> bounded(3), bounded(-(10**3000))
    (3, -inf)
    """
    return _float(value) if isinstance(value, int) and value.bit_length() > MOST_BITS else value


def _parsed(text: object) -> ast.expr:
    if not isinstance(text, str):
        raise InvalidType(f"an expression is a text such as 'exp(loss)', not {type(text).__name__}")
    if len(text) > MOST_CHARACTERS:
        raise InvalidValue(f"an expression has at most {MOST_CHARACTERS} characters: {text[:40]!r}")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise _refused(text, f"{error.msg} at column {error.offset}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise _refused(text, str(error) or "it is nested too deeply") from None


def _refused(text: str, what: str) -> InvalidValue:
    return InvalidValue(
        f"expression {text!r}: {what}; accepted are keys (quoted where they are no identifiers), "
        f"numbers, + - * / **, parentheses and {', '.join(FUNCTIONS)}"
    )


class _Compiler:
    """Turns the syntax tree into nested functions, and refuses all that is not in the grammar."""

    def __init__(self, text: str, keys: dict[str, None]) -> None:
        self._text = text
        self._keys = keys

    def compile(self, node: ast.expr, depth: int) -> _Evaluate:
        """What evaluates a node."""
        if depth > _DEEPEST:
            raise _refused(self._text, "it is nested too deeply")
        if isinstance(node, ast.Name):
            return self._key(ast.get_source_segment(self._text.strip(), node) or node.id)
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            sign, operand = _SIGNS[type(node.op)], self.compile(node.operand, depth + 1)
            return lambda values: sign * operand(values)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            operate = _OPERATORS[type(node.op)]
            left, right = self.compile(node.left, depth + 1), self.compile(node.right, depth + 1)
            return lambda values: operate(left(values), right(values))
        if isinstance(node, ast.Call):
            return self._call(node, depth)
        raise self._unknown(node)

    def _key(self, key: str) -> _Evaluate:
        self._keys[key] = None
        return lambda values: _number(key, values[key])

    def _constant(self, node: ast.Constant) -> _Evaluate:
        value = node.value
        if isinstance(value, str) and value:
            return self._key(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return lambda values: value
        raise self._unknown(node)

    def _call(self, node: ast.Call, depth: int) -> _Evaluate:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS or node.keywords:
            raise self._unknown(node)
        arguments = [self.compile(argument, depth + 1) for argument in node.args]
        several = name in ("min", "max")
        if (len(arguments) < 2) if several else (len(arguments) != 1):
            wanted = "two or more arguments" if several else "one argument"
            raise _refused(self._text, f"{name} takes {wanted}, not {len(arguments)}")
        if name in _OF_FLOATS:
            of_float, argument = _OF_FLOATS[name], arguments[0]
            return lambda values: of_float(_float(argument(values)))
        function = _OF_NUMBERS[name]
        return lambda values: function(*[argument(values) for argument in arguments])

    def _unknown(self, node: ast.expr) -> InvalidValue:
        piece = ast.get_source_segment(self._text.strip(), node) or type(node).__name__
        return _refused(self._text, f"{piece!r} at column {node.col_offset + 1} is not accepted")


def _number(key: str, value: object) -> Number:
    if isinstance(value, int | float):
        return value
    raise InvalidType(f"{key!r} is no number in the record, but a {type(value).__name__}")


def _float(value: Number) -> float:
    return exact.quotient(value, 1) if isinstance(value, int) else value


def _plus(a: Number, b: Number) -> Number:
    return a + b if isinstance(a, int) and isinstance(b, int) else _float(a) + _float(b)


def _minus(a: Number, b: Number) -> Number:
    return a - b if isinstance(a, int) and isinstance(b, int) else _float(a) - _float(b)


def _times(a: Number, b: Number) -> Number:
    return a * b if isinstance(a, int) and isinstance(b, int) else _float(a) * _float(b)


def _power(a: Number, b: Number) -> float:
    base, exponent = _float(a), _float(b)
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return -math.inf if base < 0 and exponent % 2 == 1 else math.inf
    except ValueError:  # 0 to a negative power, or a root of a negative number
        return math.inf if base == 0 else math.nan


_SIGNS: dict[type[ast.unaryop], int] = {ast.USub: -1, ast.UAdd: 1}
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: _plus,
    ast.Sub: _minus,
    ast.Mult: _times,
    ast.Div: exact.quotient,
    ast.Pow: _power,
}
