from __future__ import annotations

import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from distmetrics import exact

# made here, before any thread flushes them
TINY = np.array([5e-324, 1e-310, -3e-320, 2.0**-1022, 1e-40, -0.0])
TINY_SINGLE = np.array([1e-45, 1e-40, -3e-42, 2.0**-126, 1.0, -0.0], np.float32)


def readings() -> Iterator[object]:
    """Every function of the package that reads or makes subnormal numbers, on some of them."""
    yield from sums()
    units = np.array([3, 2**40, -(2**65)], object)
    for value in [*units.tolist(), 2**66 - 1, -(2**13) - 1]:
        yield exact.to_float(value, 0)
    for num, den in [(1, 2**1070), (-3, 2**1074), (1e-310, 1e-300), (2.0**-1000, 2.0**60)]:
        yield exact.quotient(num, den)
    for num, den in [(1.0, 1e-310), (1e-310, 3), (5e-324, 5e-324), (1e-310, 0), (0.0, 1e-310)]:
        yield exact.quotient(num, den)
    yield exact.root_of_ratio(3, 1, -2147)
    large = np.array([1e300, 2.0**1000 / 3, -1.0, 2.0**-30, 3.0, 1.0])
    yield from exact.product(TINY, large)
    yield from exact.product(TINY_SINGLE, large)
    yield from exact.product(np.array([2**60 + 1] * 6), TINY)
    yield from exact.product(np.array([3] * 6), TINY)
    for term in exact.exact_terms(TINY[:2], large[:2], 1):
        yield from term
    for term in exact.exact_terms(TINY_SINGLE, large[2:3], 2):
        yield from term
    yield from exact.from_order_image(exact.order_image(TINY))


def sums() -> Iterator[object]:
    """The digits of sums of subnormal numbers of each width."""
    for dtype in (np.float64, np.float32, np.float16):
        info = np.dtype(dtype).itemsize
        patterns = np.arange(1, 50, dtype=f"u{info}")  # the least subnormals, by their bits
        block = exact.zeros(2)
        exact.add(block, np.arange(49) % 2, patterns.view(dtype))
        exact.add(block, np.zeros(2, np.int64), np.array([1.5, -1.5], dtype))
        exact.normalize(block)
        yield block.lo
        yield from block.digits.ravel().tolist()


def bits(values: Iterator[object]) -> list[object]:
    """Numbers as their bits: where subnormals count as zero, floats cannot be compared."""
    return [
        value if isinstance(value, int) else struct.pack("<d", float(value))  # type: ignore[arg-type]
        for value in values
    ]


def test_flushing_subnormals_changes_no_bit() -> None:
    """All results have the same bits in a thread whose processor flushes subnormals to zero."""
    found: list[object] = []

    def flushing() -> None:  # the mode belongs to the thread and ends with it
        supported = torch.set_flush_denormal(True)
        found.append(supported and np.float64(5e-324) * 1.0 == 0.0)
        found.extend(bits(readings()))

    thread = threading.Thread(target=flushing)
    thread.start()
    thread.join()
    if not found[0]:
        pytest.skip("this processor cannot flush subnormals to zero")
    assert 2.0**-1022 * 0.5 != 0.0
    assert found[1:] == bits(readings())
