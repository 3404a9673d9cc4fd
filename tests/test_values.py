"""Which values a call may hold: every accepted form, every refused one, and what is said then."""

from __future__ import annotations

import decimal
import fractions
import re
import warnings
from collections import OrderedDict, UserDict
from enum import Enum, IntEnum
from typing import Any

import numpy as np
import pytest
import torch

from distmetrics.errors import DistmetricsError, InvalidType, InvalidValue
from distmetrics.values import (
    MAX_ELEMENTS,
    Average,
    Count,
    L2Norm,
    Maximum,
    Minimum,
    Ratio,
    Same,
    Std,
    Tagged,
    Total,
    flatten,
    is_scalar,
    to_flat,
)

FLOAT_DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
]
INT_DTYPES = [
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
]


class Level(IntEnum):
    LOW = 3


class Name(str, Enum):
    LOSS = "loss"


def numbers(flat: Any) -> list[Any]:
    """The contributions as Python numbers."""
    return list(flat.tolist())


# --- accepted -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (2,), (2, 3), (1, 1, 1), (0,), (2, 0)], ids=str)
def test_tensors_of_any_float_dtype_and_shape_keep_their_values(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    """Every element is a contribution with exactly its value, half precision included."""
    tensor = (torch.arange(float(np.prod(shape, dtype=int))) * 0.5).reshape(shape).to(dtype)
    flat, given = to_flat("k", tensor)
    assert given == shape
    assert numbers(flat) == tensor.double().reshape(-1).tolist()
    assert flat.dtype in (np.float32, np.float64)


@pytest.mark.parametrize("dtype", INT_DTYPES, ids=str)
def test_tensors_of_any_integer_dtype_keep_their_values(dtype: torch.dtype) -> None:
    """Integers and bools stay integers, up to the largest of their dtype."""
    top = 1 if dtype is torch.bool else torch.iinfo(dtype).max
    flat, _ = to_flat("k", torch.tensor([0, 1, top], dtype=dtype))
    assert numbers(flat) == [0, 1, top]
    assert flat.dtype.kind in "biu"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, [3]),
        (True, [True]),
        (0.5, [0.5]),
        (-0.0, [-0.0]),
        (float("inf"), [float("inf")]),
        (2**62, [2**62]),
        (2**64 - 1, [2**64 - 1]),
        (2**70, [2**70]),
        (-(2**70), [-(2**70)]),
        (Level.LOW, [3]),
        (np.float64(0.5), [0.5]),
        (np.float32(0.5), [0.5]),
        (np.float16(0.5), [0.5]),
        (np.longdouble(0.5), [0.5]),
        (np.int8(-3), [-3]),
        (np.uint64(2**64 - 1), [2**64 - 1]),
        (np.bool_(True), [True]),
        (np.array(0.5), [0.5]),
        (np.array([[1, 2], [3, 4]]), [1, 2, 3, 4]),
        (np.array([1, 2], ">i4"), [1, 2]),
        (np.array([0.5], ">f8"), [0.5]),
        (np.array([2**70, 1], dtype=object), [2**70, 1]),
        (np.arange(6)[::2], [0, 2, 4]),
        ([1, 2, 3], [1, 2, 3]),
        ((0.5, 1), [0.5, 1.0]),
        ([True, False], [True, False]),
        ([], []),
        ([2**63, -1], [2**63, -1]),
        ([np.int64(3), 2**63 + 5], [3, 2**63 + 5]),
        ([2**80], [2**80]),
        ([True, 2**80], [1, 2**80]),
        ([np.int64(1), np.bool_(True), 2**80], [1, 1, 2**80]),
        ([2**53, 0.5], [2.0**53, 0.5]),
        ([np.float32(0.5), 1], [0.5, 1.0]),
    ],
    ids=repr,
)
def test_python_and_numpy_numbers_keep_their_values(value: Any, expected: list[Any]) -> None:
    """Numbers, arrays and lists are taken as they are, integers of any size exactly."""
    flat, _ = to_flat("k", value)
    assert isinstance(flat, np.ndarray)
    assert flat.ndim == 1
    found = numbers(flat)
    assert found == expected
    assert [isinstance(v, float) for v in found] == [isinstance(v, float) for v in expected]


def odd_tensors() -> dict[str, torch.Tensor]:
    """Tensors that are ordinary numbers in unusual storage, all of them 1 and 2."""
    base = torch.tensor([1.0, 2.0])
    with torch.inference_mode():
        inference = torch.tensor([1.0, 2.0])
    return {
        "needs a gradient": base.clone().requires_grad_(),
        "in a graph": base.clone().requires_grad_() * 1,
        "parameter": torch.nn.Parameter(base),
        "inference": inference,
        "strided": torch.tensor([1.0, 0.0, 2.0, 0.0])[::2],
        "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 1),
        "negated lazily": torch.tensor([0 - 1j, 0 - 2j]).conj().imag,
        "transposed": torch.tensor([[1.0], [2.0]]).T,
    }


@pytest.mark.parametrize("name", odd_tensors())
def test_tensors_in_unusual_storage_keep_their_values(name: str) -> None:
    """Graphs, views, inference mode and lazy negation do not matter."""
    flat, _ = to_flat("k", odd_tensors()[name])
    assert numbers(flat) == [1.0, 2.0]


@pytest.mark.parametrize("value", [torch.ones(3), np.ones(3), torch.ones(3)[1:]], ids=repr)
def test_contributions_are_copies(value: Any) -> None:
    """Changing a value in place afterwards does not change what was taken."""
    flat, _ = to_flat("k", value)
    before = numbers(flat)
    value[:] = 99
    assert numbers(flat) == before


# --- refused ------------------------------------------------------------------------------------


class Fake:
    """An object that is no number."""


def refused() -> dict[str, tuple[Any, str]]:
    """Values that are not accepted, and what the message says of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
        quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)
    return {
        "str": ("0.5", "str '0.5'"),
        "bytes": (b"1", "bytes b'1'"),
        "complex": (1 + 2j, "complex (1+2j)"),
        "complex tensor": (torch.ones(1, dtype=torch.complex64), "torch.complex64"),
        "complex array": (np.ones(1, np.complex128), "complex128"),
        "text array": (np.array(["a"]), "dtype <U1"),
        "object array": (np.array([1, "a"], dtype=object), "dtype object"),
        "dates": (np.array(["2026-01-01"], "datetime64[D]"), "datetime64"),
        "masked array": (np.ma.masked_array([1.0, 2.0], [True, False]), "masked array"),
        "meta tensor": (torch.ones(1, device="meta"), "meta tensor"),
        "sparse tensor": (torch.ones(2).to_sparse(), "sparse"),
        "nested tensor": (nested, "nested tensor"),
        "quantized tensor": (quantized, "qint8"),
        "a list with text": ([1, "2"], "a list that holds more than numbers"),
        "a list of lists": ([[1, 2], [3, 4]], "a list that holds more than numbers"),
        "a list of tensors": ([torch.ones(())], "a list that holds more than numbers"),
        "a tuple with None": ((1, None), "a tuple that holds more than numbers"),
        "set": ({1}, "set {1}"),
        "generator": ((x for x in [1]), "generator"),
        "fraction": (fractions.Fraction(1, 2), "Fraction"),
        "decimal": (decimal.Decimal("0.5"), "Decimal"),
        "object": (Fake(), "Fake"),
        "function": (len, "builtin_function_or_method"),
    }


@pytest.mark.parametrize("name", refused())
@pytest.mark.parametrize("role", ["value", "weight"])
def test_anything_else_is_an_error_that_names_key_value_and_rule(name: str, role: str) -> None:
    """The message names the key, its part in the call, what came, and what is accepted."""
    value, said = refused()[name]
    with pytest.raises(InvalidType) as caught:
        to_flat("val/k", value, role)
    text = str(caught.value)
    assert text.startswith(f"key 'val/k': the {role} is ")
    assert said in text
    assert "accepted is a number, a bool, a tensor or array" in text
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros], ids=["tensor", "array"])
def test_more_elements_than_a_call_takes_are_an_error(make: Any) -> None:
    """2^24 elements are accepted, one more is an error that says so."""
    value = make(1, dtype=torch.int8 if make is torch.zeros else np.int8)
    wide = value.expand(MAX_ELEMENTS) if make is torch.zeros else np.broadcast_to(value, 2**24)
    assert len(to_flat("k", wide)[0]) == MAX_ELEMENTS
    wider = (
        value.expand(MAX_ELEMENTS + 1) if make is torch.zeros else np.broadcast_to(value, 2**24 + 1)
    )
    with pytest.raises(InvalidValue, match=r"key 'k': the value has 16777217 elements.*2\^24"):
        to_flat("k", wider)


@pytest.mark.parametrize("value", [1 << 4096, -(1 << 4096), [1, 1 << 5000]], ids=["+", "-", "in"])
def test_wider_integers_than_files_can_hold_are_an_error(value: Any) -> None:
    """4096 bits are accepted; more digits than a JSON reader takes would break the file."""
    assert to_flat("k", (1 << 4096) - 1)[0].tolist() == [(1 << 4096) - 1]
    with pytest.raises(InvalidValue, match=r"key 'k': the value is an integer of .* bits; at most"):
        to_flat("k", value)


@pytest.mark.parametrize("value", [[2**53 + 1, 0.5], [0.5, -(2**64)], (np.float32(1), 2**2000)])
def test_floats_beside_integers_that_no_float_holds_are_an_error(value: Any) -> None:
    """Such a list would be rounded before it is summed, and so depend on how it is split."""
    with pytest.raises(InvalidValue, match=r"key 'k': the value is a list of floats.*2\*\*53"):
        to_flat("k", value)


def test_an_object_that_cannot_be_shown_is_refused_all_the_same() -> None:
    """A broken repr does not hide which key is wrong."""

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(InvalidType, match="key 'k': the value is Broken"):
        to_flat("k", Broken())


# --- what an unregistered value is --------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [1, True, 0.5, np.float32(1), np.array([[1.0]]), torch.ones(()), torch.ones(1, 1), 2**70],
    ids=repr,
)
def test_one_number_of_any_shape_is_a_scalar(value: Any) -> None:
    """One element is a scalar, whatever its shape."""
    assert is_scalar(value)


@pytest.mark.parametrize(
    "value",
    [
        "1",
        None,
        1j,
        [1.0],
        {},
        Fake(),
        torch.ones(2),
        torch.ones(0),
        torch.ones(1, dtype=torch.complex64),
        torch.ones(1, device="meta"),
        torch.ones(1).to_sparse(),
        np.ones(2),
        np.array("a"),
        np.array([1j]),
    ],
    ids=repr,
)
def test_anything_else_is_no_scalar(value: Any) -> None:
    """Texts, lists, images and tensors without one number are not taken for metrics."""
    assert not is_scalar(value)


def test_nested_and_quantized_tensors_are_no_scalars() -> None:
    """Asking leads to no error of theirs."""
    assert not is_scalar(refused()["nested tensor"][0])
    assert not is_scalar(refused()["quantized tensor"][0][:1])


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict, OrderedDict, UserDict])
def test_nested_mappings_join_their_keys(kind: Any) -> None:
    """Any mapping may hold mappings; None is left out, also within them."""
    outputs = kind({"a": 1, "b": kind({"c": 2, "d": kind({"e": 3}), "f": None}), "g": None})
    assert flatten(outputs) == {"a": 1, "b/c": 2, "b/d/e": 3}


def test_empty_mappings_hold_nothing() -> None:
    """An empty dict, nested or not, is no error."""
    assert flatten({}) == {}
    assert flatten({"a": {}}) == {}


@pytest.mark.parametrize(
    "key", ["a.b", "a b", "a/b", "/a", "ü", "日本", "a" * 300, "loss[0]", "*", "a\\b", "{x}", "a:b"]
)
def test_odd_texts_are_keys(key: str) -> None:
    """Dots, spaces, slashes, brackets, other scripts and long texts are keys as they stand."""
    assert flatten({key: 1}) == {key: 1}


def test_a_text_of_an_enumeration_is_a_plain_key() -> None:
    """A subclass of str is taken by its text."""
    (key,) = flatten({Name.LOSS: 1})
    assert key == "loss"
    assert type(key) is str


@pytest.mark.parametrize(
    ("outputs", "error", "said"),
    [
        (5, InvalidType, "outputs are a dict of key to value, not int 5"),
        ([("a", 1)], InvalidType, "outputs are a dict"),
        (torch.ones(2), InvalidType, "not Tensor"),
        ({1: 2}, InvalidType, "a key is a str.*not int 1"),
        ({None: 2}, InvalidType, "a key is a str"),
        ({"a": {0: 1}}, InvalidType, "outputs: in 'a/'.*not int 0"),
        ({"": 1}, InvalidValue, "not empty"),
        ({"a": {"": 1}}, InvalidValue, "outputs: in 'a/'.*not empty"),
        ({"a/": 1}, InvalidValue, "ends in '/'"),
        ({"a\nb": 1}, InvalidValue, "no control character"),
        ({"a\x00": 1}, InvalidValue, "no control character"),
        ({"\ud800": 1}, InvalidValue, "lone surrogate"),
        ({"a/b": 1, "a": {"b": 2}}, InvalidValue, "'a/b' comes twice"),
        ({"a": {"b": {"c": 1}}, "a/b": {"c": 2}}, InvalidValue, "'a/b/c' comes twice"),
        ({"a/b": None, "a": {"b": 2}}, InvalidValue, "'a/b' comes twice"),
    ],
    ids=repr,
)
def test_wrong_keys_are_errors(outputs: Any, error: type[Exception], said: str) -> None:
    """What is no key, or comes twice, is named."""
    with pytest.raises(error, match=said) as caught:
        flatten(outputs)
    assert isinstance(caught.value, DistmetricsError)


def test_wrong_keys_can_be_left_out() -> None:
    """Where errors are received instead of raised, the rest of the call stays."""
    refused_keys: dict[str, DistmetricsError] = {}
    flat = flatten({1: 2, "a/b": 1, "a": {"b": 2, "": 3}, "c": 4}, refused_keys.setdefault)
    assert flat == {"a/b": 1, "c": 4}
    assert sorted(refused_keys) == ["1", "a/", "a/b"]
    assert flatten([], lambda key, error: None) == {}


# --- tags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "shown"),
    [
        (Count(3), "count()"),
        (Total(3), "total()"),
        (Average(3), "average()"),
        (Average(3, weight=2), "average()"),
        (Ratio(1, 2), "ratio()"),
        (Minimum(3), "minimum()"),
        (Maximum(3), "maximum()"),
        (Std(3), "std()"),
        (Std(3, ddof=1), "std(ddof=1)"),
        (L2Norm(3), "l2_norm()"),
        (Same(3), "same()"),
    ],
    ids=repr,
)
def test_tags_carry_their_reduction(tag: Tagged, shown: str) -> None:
    """A tagged value says how it combines, and shows itself as it was written."""
    assert str(tag.reduction) == shown
    assert re.match(rf"{type(tag).__name__}\(", repr(tag))
