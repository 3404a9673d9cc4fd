"""Blocks of exact sums, as integer limbs.

A *row* is one exact sum. Its value is `sum(digits[i] * 2**(32*(lo + i) - 1088))`: limb j weighs
2**(32*j - 1088) and integers start at limb 34. Only the limbs in use are stored, the same ones
for all rows of a block. Each int64 digit carries 32 payload bits, the rest is room for carries:
a block keeps an upper bound of its digits and normalizes itself before they could overflow.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.exact.encode import BITS, UNIT_LIMB, Integers, Numbers, largest, least, mantissas

# Zero-dimensional arrays, which NumPy takes faster than scalars.
_FULL = np.array(BITS, np.int64)
_LOG = np.array(BITS.bit_length() - 1, np.int64)
_WITHIN = np.array(BITS - 1, np.int64)
_MASK = np.array((1 << BITS) - 1, np.int64)
_PIECE = 1 << BITS  # no value adds more than this to one digit
_NORMAL = 1 << (BITS - 1)  # bound of a normalized digit
_MOST = 1 << 62  # bound of any digit
# The pieces of so many values stay in the second-level cache, and each pass over them is so short
# that a busy Python thread seldom takes the interpreter lock in between.
_CHUNK = 1 << 13
_FEW = 6  # limbs up to which Python's shifts beat its conversion from bytes


@dataclass(eq=False)
class Limbs:
    """A mutable block of exact sums; change it by this module's functions only.

    Attributes:
        lo: absolute index of the first stored limb.
        digits: int64, shape (rows, n); n may be 0, then every row is zero.
        bound: no digit is larger in size; found from the digits where it is not given.

    >>> block = zeros(2)
    >>> add(block, np.array([0, 1, 0]), np.array([1e15, 0.5, 1.0]))
    >>> [value * 2.0 ** (BITS * block.lo - 1088) for value in decode(block.digits, block.lo)]
    [1000000000000001.0, 0.5]
    """

    lo: int
    digits: Integers
    bound: int = field(default=-1, repr=False)

    def __post_init__(self) -> None:
        if self.bound < 0:
            self.bound = _size(self.digits)

    @property
    def rows(self) -> int:
        """The number of sums."""
        return int(self.digits.shape[0])

    @property
    def hi(self) -> int:
        """The absolute index after the last stored limb."""
        return self.lo + int(self.digits.shape[1])


def _size(digits: Integers) -> int:
    return max(-int(digits.min()), int(digits.max()), 0) if digits.size else 0


def zeros(rows: int) -> Limbs:
    """A block of that many sums, all zero, with no limb stored yet.

    >>> zeros(3).digits.shape
    (3, 0)
    """
    return Limbs(UNIT_LIMB, np.zeros((rows, 0), np.int64), 0)


def add(block: Limbs, rows: Integers, values: Numbers) -> None:
    """Adds `values[i]` to sum `rows[i]` of the block, exactly, for every i.

    Args:
        block: changed in place; it gains the limbs that the values need.
        rows: int64, 1-D, of the block's rows; repeats are fine.
        values: 1-D and as long: float64, float32, float16, bool, any integer type, or Python
            ints of any size in an object array. All finite.

    Raises:
        InvalidValue: NaN or an infinity (the block may then hold some of the values), or
            rows and values of different shapes.
        InvalidType: a value that is no real number of the types above.
        IndexError: a row outside the block.
    """
    if rows.ndim != 1 or rows.shape != values.shape:
        raise InvalidValue(
            f"rows and values must be 1-D and equally long, got {rows.shape} and {values.shape}"
        )
    if not rows.size:
        return
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    if largest(rows.view(np.uint64)) >= block.rows:  # a negative row is a huge unsigned one
        raise IndexError(f"rows must lie within the block's {block.rows} rows")
    kind = values.dtype.kind
    if kind == "f":
        for start in range(0, rows.size, _CHUNK):
            _add_floats(block, rows[start : start + _CHUNK], values[start : start + _CHUNK])
    elif kind in "biu":
        for start in range(0, rows.size, _CHUNK):
            _add_integers(block, rows[start : start + _CHUNK], values[start : start + _CHUNK])
    elif kind == "O":
        _add_big_integers(block, rows, values)
    else:
        raise InvalidType(f"exact sums take real numbers, got an array of {values.dtype}")


def _add_floats(block: Limbs, rows: Integers, values: Numbers) -> None:
    mantissa, place, bias, lowest, highest, bits = mantissas(values)
    if highest < lowest:  # all zero
        return
    pieces = 2 if bits <= BITS else 3  # a shifted mantissa has up to 31 bits more
    _prepare(block, lowest // BITS, highest // BITS + pieces, rows.size * _PIECE)
    flat = block.digits.reshape(-1)
    place += bias - BITS * block.lo  # of a mantissa's lowest bit within its row
    cell = rows * block.digits.shape[1]
    cell += place >> _LOG
    shift = place & _WITHIN
    # mantissa * 2**shift in pieces of 32 bits, the topmost signed
    np.add.at(flat, cell, (mantissa << shift) & _MASK)
    np.subtract(_FULL, shift, out=shift)
    mantissa >>= shift
    if pieces == 3:
        np.add.at(flat[1:], cell, mantissa & _MASK)
        mantissa >>= _FULL
    np.add.at(flat[pieces - 1 :], cell, mantissa)


def _add_integers(block: Limbs, rows: Integers, values: Numbers) -> None:
    narrow = values.dtype.itemsize < 8
    if not narrow:
        narrow = least(values) >= -_PIECE and largest(values) <= _PIECE
    _prepare(block, UNIT_LIMB, UNIT_LIMB + (1 if narrow else 2), rows.size * _PIECE)
    flat = block.digits.reshape(-1)
    cell = rows * block.digits.shape[1]
    cell += UNIT_LIMB - block.lo
    if narrow:
        np.add.at(flat, cell, values.astype(np.int64))
        return
    # of uint64 the upper half is taken before it is signed
    np.add.at(flat, cell, (values & _MASK.astype(values.dtype)).astype(np.int64))
    np.add.at(flat[1:], cell, (values >> _FULL.astype(values.dtype)).astype(np.int64))


def _add_big_integers(block: Limbs, rows: Integers, values: Numbers) -> None:
    sums: dict[int, int] = {}
    for row, value in zip(rows.tolist(), values.tolist(), strict=True):
        try:
            sums[row] = sums.get(row, 0) + operator.index(value)
        except TypeError:
            raise InvalidType(
                f"an object array may hold integers only, got {value!r} ({type(value).__name__})"
            ) from None
    width = max(-(-total.bit_length() // BITS) for total in sums.values())
    if not width:
        return
    _prepare(block, UNIT_LIMB, UNIT_LIMB + width, _PIECE)
    columns = slice(UNIT_LIMB - block.lo, UNIT_LIMB - block.lo + width)
    for row, total in sums.items():
        pieces = np.frombuffer(abs(total).to_bytes(4 * width, "little"), dtype="<u4")
        digits = pieces.astype(np.int64)
        block.digits[row, columns] += digits if total > 0 else -digits


def _prepare(block: Limbs, lo: int, hi: int, growth: int) -> None:
    """Gives the block limbs lo to hi, its own memory, and room for digits to grow so much."""
    if block.bound + growth > _MOST:
        normalize(block)
    _widen(block, lo, hi)
    block.bound += growth


def _widen(block: Limbs, lo: int, hi: int) -> None:
    """Gives the block limbs lo to hi in writable, contiguous memory."""
    old, first = block.digits, block.lo
    if not old.shape[1]:
        block.lo, block.digits = lo, np.zeros((block.rows, hi - lo), np.int64)
    elif lo < first or hi > block.hi:
        lo, hi = min(lo, first), max(hi, block.hi)
        block.digits = np.zeros((block.rows, hi - lo), np.int64)
        block.digits[:, first - lo : first - lo + old.shape[1]] = old
        block.lo = lo
    elif not (old.flags.writeable and old.flags.c_contiguous):
        block.digits = old.copy()


def merge(into: Limbs, other: Limbs) -> None:
    """Adds each sum of `other` to the same row of `into`; `other` keeps its values.

    Raises:
        InvalidValue: the blocks have different numbers of rows.

    >>> into, other = zeros(1), zeros(1)
    >>> add(into, np.array([0]), np.array([1]))
    >>> add(other, np.array([0]), np.array([0.5]))
    >>> merge(into, other)
    >>> decode(into.digits, into.lo)[0] / 2 ** (1088 - BITS * into.lo)
    1.5
    """
    if into.rows != other.rows:
        raise InvalidValue(f"blocks of {into.rows} and {other.rows} rows cannot be merged")
    if not other.digits.size:
        return
    if other.bound > _MOST:
        other = Limbs(other.lo, other.digits.copy(), other.bound)
        normalize(other)
    if into.bound + other.bound > _MOST:
        normalize(into)
    _widen(into, other.lo, other.hi)
    start = other.lo - into.lo
    into.digits[:, start : start + other.digits.shape[1]] += other.digits
    into.bound += other.bound


def take(block: Limbs, rows: slice | Integers) -> Limbs:
    """Those sums as a new block; a slice shares the digits until either block is changed.

    The digits of a slice are a read-only view; adding to the new block copies them first.
    """
    digits = block.digits[rows]
    if isinstance(rows, slice):
        digits = digits.view()
        digits.flags.writeable = False
    return Limbs(block.lo, digits, block.bound)


def normalize(block: Limbs) -> None:
    """Brings every digit into [-2**31, 2**31) and drops limbs that are zero in all rows.

    Afterwards equal sums have equal digits. Balanced digits keep the upper limbs of small
    negative sums at zero; unsigned ones would fill them.
    """
    digits = block.digits.copy()
    while True:
        # round-half-up of digit / 2**32, without an overflow at the top
        carry = digits >> BITS
        carry += (digits >> (BITS - 1)) & 1
        if not carry.any():
            break
        digits -= carry << BITS
        if carry[:, -1].any():
            digits = np.pad(digits, ((0, 0), (0, 1)))
            digits[:, 1:] += carry
        else:
            digits[:, 1:] += carry[:, :-1]
    used = np.flatnonzero(digits.any(axis=0))
    if used.size:
        block.lo += int(used[0])
        digits = np.ascontiguousarray(digits[:, used[0] : used[-1] + 1])
    else:
        block.lo, digits = UNIT_LIMB, digits[:, :0]
    block.digits, block.bound = digits, min(_NORMAL, block.bound)


def dense(block: Limbs, lo: int, hi: int) -> Integers:
    """The digits of limbs lo to hi as a new int64 array of shape (rows, hi - lo).

    Raises:
        InvalidValue: a limb outside lo to hi is not zero.
    """
    result = np.zeros((block.rows, hi - lo), np.int64)
    first, last = max(lo, block.lo), min(hi, block.hi)
    if first >= last:
        first = last = block.lo
    left, right = first - block.lo, last - block.lo
    if (left or right < block.digits.shape[1]) and (
        block.digits[:, :left].any() or block.digits[:, right:].any()
    ):
        raise InvalidValue(
            f"limbs {lo} to {hi} do not hold a block of limbs {block.lo} to {block.hi}"
        )
    if left < right:
        result[:, first - lo : last - lo] = block.digits[:, left:right]
    return result


def decode(digits: Integers, lo: int) -> list[int]:
    """Each row's exact value, as a Python int in units of 2**(32*lo - 1088).

    The digits need not be normalized: any int64 are right, so the sum of 2**31 normalized blocks
    is.

    >>> decode(np.array([[-1, 1], [3, 0]]), 34)
    [4294967295, 3]
    """
    if digits.shape[1] > _FEW:
        return _decode_wide(digits)
    totals = [0] * digits.shape[0]
    for column in digits.T[::-1].tolist():
        totals = [(total << BITS) + digit for total, digit in zip(totals, column, strict=True)]
    return totals


def _decode_wide(digits: Integers) -> list[int]:
    """As `decode`, in time linear in the limbs.

    Even and odd limbs, each made unsigned by an offset of 2**63, are the 64-bit words of two
    integers; what the offsets add up to is taken off again.
    """
    rows, width = digits.shape
    count = (width + 1) // 2
    words = np.full((2, rows, count), 1 << 63, np.uint64)
    unsigned = digits.astype(np.int64).view(np.uint64)
    words[0] ^= unsigned[:, 0::2]
    words[1, :, : width // 2] ^= unsigned[:, 1::2]
    raw = memoryview(words.astype("<u8").tobytes())
    size = 8 * count
    half = rows * size
    offset = int.from_bytes((b"\0" * 7 + b"\x80") * count, "little")
    offset += offset << BITS
    return [
        int.from_bytes(raw[at : at + size], "little")
        + (int.from_bytes(raw[half + at : half + at + size], "little") << BITS)
        - offset
        for at in range(0, half, size)
    ]


def from_units(units: Sequence[int], lo: int) -> Limbs:
    """A block of sums whose exact values are given as `decode` gives them.

    Args:
        units: for each row its value in units of 2**(32*lo - 1088).
        lo: names the unit.

    >>> decode(from_units([-1, 1 << 40], 34).digits, 34)
    [-1, 1099511627776]
    """
    width = max((unit.bit_length() for unit in units), default=0) // BITS + 1
    digits = np.zeros((len(units), width), np.int64)
    for row, unit in enumerate(units):
        pieces = np.frombuffer(abs(unit).to_bytes(4 * width, "little"), dtype="<u4")
        digits[row] = pieces if unit >= 0 else -pieces.astype(np.int64)
    block = Limbs(lo, digits)
    normalize(block)
    return block
