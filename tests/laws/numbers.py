"""Numbers of every accepted kind, and the many forms in which a call may hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

Number = int | float


@dataclass(frozen=True)
class Kind:
    """A kind of number: a dtype, or Python's.

    Attributes:
        name: of the dtype in torch and NumPy, or "python".
        numbers: a strategy of numbers that the kind holds exactly.
    """

    name: str
    numbers: st.SearchStrategy[Number]

    def __repr__(self) -> str:
        return self.name

    @property
    def forms(self) -> list[Callable[[list[Number]], Any]]:
        """How several numbers can be given at once."""
        made: list[Callable[[list[Number]], Any]] = [list, tuple]
        dtype = getattr(torch, self.name, None)
        if isinstance(dtype, torch.dtype):
            made += [
                lambda numbers: torch.tensor(numbers, dtype=dtype),
                lambda numbers: torch.tensor([numbers, numbers], dtype=dtype)[1],
                lambda numbers: torch.tensor([numbers, numbers], dtype=dtype).T.contiguous()[:, 0],
            ]
        if self.name not in ("python", "bfloat16") and not self.name.startswith("float8"):
            made.append(lambda numbers: np.array(numbers, dtype=self.name))
        return made


def _in(dtype: torch.dtype) -> Callable[[float], float]:
    def cast(number: float) -> float:
        return float(torch.tensor(number).to(dtype).item())

    return cast


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0 if low <= 0 else 1]))


_UGLY = st.sampled_from([0.1, 1e16, -1e16, 1.0, 1 / 3, 1e-20, 2.0**53, -0.0, 0.0, 0.3])
# far from where squares overflow or lose digits
_MODEST = st.floats(1e-60, 1e60) | st.floats(-1e60, -1e-60) | st.integers(-99, 99).map(float)
_HALVES = st.floats(-200.0, 200.0, width=16)

FLOATS = [
    Kind("float64", _UGLY | _MODEST),
    Kind("float32", st.floats(-1e4, 1e4, width=32)),
    Kind("float16", _HALVES),
    Kind("bfloat16", _HALVES.map(_in(torch.bfloat16))),
    Kind("float8_e4m3fn", _HALVES.map(_in(torch.float8_e4m3fn)).filter(math.isfinite)),
    Kind("float8_e5m2", _HALVES.map(_in(torch.float8_e5m2)).filter(math.isfinite)),
]
INTEGERS = [
    Kind("int64", _integers(-(2**63), 2**63 - 1)),
    Kind("int32", _integers(-(2**31), 2**31 - 1)),
    Kind("int16", _integers(-(2**15), 2**15 - 1)),
    Kind("int8", _integers(-128, 127)),
    Kind("uint8", _integers(0, 255)),
    Kind("uint16", _integers(0, 2**16 - 1)),
    Kind("uint32", _integers(0, 2**32 - 1)),
    Kind("uint64", _integers(0, 2**64 - 1)),
    Kind("bool", st.booleans()),
]
PYTHON = Kind("python", st.integers(-(2**200), 2**200))
MIXED = Kind("python", st.one_of(_UGLY, _MODEST, st.integers(-99, 99), st.booleans()))
KINDS = [*FLOATS, *INTEGERS, PYTHON, MIXED]


def plain(number: Any) -> Number:
    """The number as the reference has it: bools are ints."""
    return int(number) if isinstance(number, bool) else number


WEIGHTS = [
    Kind("float64", st.sampled_from([0.0, 0.1, 1.0, 2.5, 1e10, 1 / 3]) | st.floats(1e-30, 1e30)),
    Kind("float32", st.floats(0.0, 1e4, width=32)),
    Kind("int64", st.integers(0, 2**40)),
    Kind("uint8", st.integers(0, 255)),
    Kind("bool", st.booleans()),
    Kind("python", st.integers(0, 2**70)),
]
"""Kinds of weights: none is negative, and some are zero."""


def given(random: Random, kind: Kind, numbers: Sequence[Number], scalar: bool = False) -> Any:
    """The numbers in one of the forms that a call may hold them in.

    Args:
        random: chooses the form.
        kind: of the numbers.
        numbers: several, or one where `scalar`.
        scalar: as a number or 0-d tensor, not as an array of one.
    """
    value = random.choice(kind.forms)(list(numbers))
    return value[0] if scalar else value
