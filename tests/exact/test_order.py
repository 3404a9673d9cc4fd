from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from distmetrics import exact

NUMBERS = st.lists(st.floats(allow_nan=False), min_size=1, max_size=20)
LADDER = [-math.inf, -1e308, -1.5, -1.0, -1e-310, -5e-324, -0.0]
LADDER += [0.0, 5e-324, 1e-310, 1.0, 1.5, 1e308, math.inf]


def test_images_rise_strictly_with_the_floats() -> None:
    """From -inf over both zeros to inf each float has a larger image than the one before."""
    images = exact.order_image(np.array(LADDER))
    assert images.dtype == np.int64
    assert (np.diff(images.astype(object)) > 0).all()
    assert images[0] > np.iinfo(np.int64).min


@given(NUMBERS)
def test_the_largest_image_is_the_largest_number(numbers: list[float]) -> None:
    """Sorting images sorts the numbers."""
    values = np.array(numbers)
    images = exact.order_image(values)
    assert exact.from_order_image(np.sort(images)).tolist() == sorted(numbers)
    assert exact.from_order_image(images.max().reshape(1))[0] == values.max()


@given(NUMBERS)
def test_images_turn_back_into_the_same_bits(numbers: list[float]) -> None:
    """The way there and back keeps every bit, the sign of zero included."""
    values = np.array(numbers)
    back = exact.from_order_image(exact.order_image(values))
    assert back.view(np.int64).tolist() == values.view(np.int64).tolist()


def test_shapes_are_kept() -> None:
    """Images have the shape of their numbers, scalars and strided arrays included."""
    for values in (np.array(1.5), np.arange(12.0).reshape(3, 4)[:, ::2], np.zeros((0, 2))):
        images = exact.order_image(values)
        assert images.shape == values.shape
        assert np.array_equal(exact.from_order_image(images), values)
