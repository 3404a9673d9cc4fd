"""Expressions over keys: what they compute, and what they refuse."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.reductions.expression import Expression


@pytest.mark.parametrize(
    ("text", "values", "value"),
    [
        ("exp(loss)", {"loss": 2.0}, math.exp(2.0)),
        ("a / b", {"a": 1, "b": 3}, 1 / 3),
        ("a + b * -c", {"a": 1, "b": 2, "c": 3}, -5),
        ("(a - b) ** 2", {"a": 1.5, "b": 1}, 0.25),
        ('"val/loss" - "loss[0]"', {"val/loss": 3, "loss[0]": 1}, 2),
        ("'a b'", {"a b": 7}, 7),
        ("max(a, b, 0)", {"a": -2, "b": -1}, 0),
        ("min(a, 1e3)", {"a": 1e6}, 1000.0),
        ("abs(a) + sqrt(b)", {"a": -1, "b": 4}, 3.0),
        ("log2(a) + log10(b) + log(c)", {"a": 8, "b": 100, "c": 1}, 5.0),
        ("2 * exp", {"exp": 4}, 8),
        ("größe", {"größe": 1}, 1),
    ],
)
def test_arithmetic_over_keys(text: str, values: dict[str, float], value: float) -> None:
    """Keys are names or, quoted, any text; a name that is not called is a key."""
    found = Expression(text)(values)
    assert found == value
    assert type(found) is type(value)
    assert set(Expression(text).keys) == set(values)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1 / 0", math.inf),
        ("-1 / 0", -math.inf),
        ("0 / 0", math.nan),
        ("exp(1000)", math.inf),
        ("log(0)", -math.inf),
        ("log(-1)", math.nan),
        ("sqrt(-1)", math.nan),
        ("0 ** -1", math.inf),
        ("(-8) ** 0.5", math.nan),
        ("(-10.0) ** 999", -math.inf),
        ("10 ** 999", math.inf),
        ("1e308 * 10", math.inf),
        ("9 ** 9 ** 9", math.inf),
    ],
)
def test_what_has_no_finite_value_is_no_error(text: str, value: float) -> None:
    """Arithmetic goes on as that of floats: infinities, and NaN."""
    found = Expression(text)({})
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_nan_goes_through() -> None:
    """A NaN among the values is a NaN in the result, also through a minimum."""
    assert math.isnan(Expression("exp(a) + 1")({"a": math.nan}))
    assert math.isnan(Expression("min(a, 1)")({"a": math.nan}))
    assert math.isnan(Expression("max(1, a)")({"a": math.nan}))


@given(st.integers(), st.integers())
def test_integers_are_exact(a: int, b: int) -> None:
    """Sums and products of integers of any size are exact, quotients rounded once."""
    values = {"a": a, "b": b}
    assert Expression("a * b - a")(values) == a * b - a
    if b:
        exact = Fraction(a, b)
        quotient = Expression("a / b")(values)
        assert quotient == exact.numerator / exact.denominator


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "loss.real",
        "loss[0]",
        "a if b else c",
        "a < b",
        "a and b",
        "lambda: 1",
        "[a]",
        "f'{a}'",
        "(a := 3)",
        "eval('1')",
        "exp(a, b)",
        "exp()",
        "max(a)",
        "exp(*a)",
        "exp(x=a)",
        "a // b",
        "a % b",
        "a @ b",
        "~a",
        "not a",
        "True",
        "None",
        "1j",
        "''",
        "b'a'",
        "",
        "a b",
        "(",
        "-" * 900 + "a",
        "a\0",
        "a" * 1001,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """What is no arithmetic over keys is an error that quotes it and says what is accepted."""
    with pytest.raises(InvalidValue, match=r"expression"):
        Expression(text)


def test_an_error_points_at_the_place() -> None:
    """The message has the piece that is not accepted and its column."""
    with pytest.raises(InvalidValue, match=r"'b\.real' at column 5"):
        Expression("a + b.real")


def test_only_text_is_an_expression() -> None:
    """A number is no expression."""
    with pytest.raises(InvalidType, match="not int"):
        Expression(3)  # type: ignore[arg-type]


def test_a_key_that_is_no_number_is_named() -> None:
    """An expression over a histogram is an error that names the key."""
    with pytest.raises(InvalidType, match="'hist' is no number"):
        Expression("hist + 1")({"hist": {"edges": [], "counts": []}})


def test_an_integer_that_few_could_read_becomes_infinite() -> None:
    """Results are bounded, what leads to them is not."""
    wide = {"a": 10**2000}
    assert Expression("a")(wide) == 10**2000
    assert Expression("a * a")(wide) == math.inf
    assert Expression("-a * a")(wide) == -math.inf
    assert Expression("a * a * a / (a * a)")(wide) == math.inf
    assert Expression("a * a - a * a + 7")(wide) == 7
