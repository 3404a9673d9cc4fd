"""Integers that sort as floats do, so that a maximum of floats is a maximum of integers."""

from __future__ import annotations

import numpy as np

from distmetrics.exact.encode import Floats, Integers, Numbers

_SIZE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


def order_image(x: Numbers) -> Integers:
    """Int64 images of float64 values, in the same order and of the same shape.

    -0.0 comes just before 0.0, infinities are the extremes, NaN is not allowed. The smallest int64
    is nobody's image and may stand for "nothing".

    >>> order_image(np.array([-1.0, -0.0, 0.0])).tolist()
    [-4607182418800017409, -1, 0]
    """
    bits = np.asarray(x, dtype=np.float64).view(np.int64)
    # Negative floats grow as their bits shrink: their magnitude bits are turned round.
    return np.asarray(bits ^ ((bits >> 63) & _SIZE))


def from_order_image(image: Integers) -> Floats:
    """The float64 values whose `order_image` is given.

    >>> from_order_image(order_image(np.array([-1.5, 2.0]))).tolist()
    [-1.5, 2.0]
    """
    images = np.asarray(image, dtype=np.int64)
    return np.asarray(images ^ ((images >> 63) & _SIZE)).view(np.float64)
