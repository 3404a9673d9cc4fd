"""The checksum of event files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import crc32c as reference

from distmetrics.sinks.crc32c import crc32c


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_checksums(data: bytes, expected: int) -> None:
    """The test vectors of RFC 3720, and the usual one."""
    assert crc32c(data) == expected


@given(st.binary(max_size=600))
def test_any_bytes(data: bytes) -> None:
    """TensorBoard's own loop gives the same, whatever the length."""
    assert crc32c(data) == reference(data)


@pytest.mark.parametrize("size", [255, 256, 257, 258, 259, 260, 512, 513, 5000])
def test_lengths_around_a_block(size: int) -> None:
    """A last block of few bytes is no special case to the caller."""
    data = bytes(i * 7 % 251 for i in range(size))
    assert crc32c(data) == reference(data)
