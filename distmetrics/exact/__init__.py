"""Exact sums of numbers, whose bits do not depend on the order of addition.

A float64, or an integer of any size, is an integer times 2**-1088. Its binary digits are spread
over *limbs* of 32 bits, each held in an int64, so that a sum is an integer sum: associative,
exact, with 31 bits of headroom, and rounded once when it is read. Values are spread by integer
operations on their bits alone, so subnormal numbers survive modes that flush them to zero.

The parts, in the order of the data:

- `product`, `exact_terms`: what is added for weighted sums and sums of squares;
- `Limbs`, `zeros`, `add`, `merge`, `take`, `normalize`, `dense`: blocks of sums;
- `decode`, `to_float`, `to_int`, `quotient`, `root_of_ratio`: reading the sums back, and
  `to_floats`, `to_int64s` for many of them at once;
- `order_image`, `from_order_image`: integers for maxima of floats;
- `condensed`, `condensed_moments`: many numbers of one sum as a few;
- `widened`: numbers of any kind as float64.

Nothing here knows of torch or of process groups.

Reference: R. M. Neal, *Fast exact summation using small and large superaccumulators*, 2015,
https://arxiv.org/abs/1505.05571 (the small superaccumulator).
"""

from distmetrics.exact.bulk import to_floats, to_int64s
from distmetrics.exact.condense import condensed, condensed_moments
from distmetrics.exact.encode import BITS, LIMBS, UNIT_LIMB
from distmetrics.exact.limbs import (
    Limbs,
    add,
    decode,
    dense,
    from_units,
    merge,
    normalize,
    take,
    zeros,
)
from distmetrics.exact.order import from_order_image, order_image
from distmetrics.exact.products import exact_terms, product
from distmetrics.exact.rounding import quotient, root_of_ratio, to_float, to_int
from distmetrics.exact.widen import widened

__all__ = [
    "BITS",
    "LIMBS",
    "UNIT_LIMB",
    "Limbs",
    "add",
    "condensed",
    "condensed_moments",
    "decode",
    "dense",
    "exact_terms",
    "from_order_image",
    "from_units",
    "merge",
    "normalize",
    "order_image",
    "product",
    "quotient",
    "root_of_ratio",
    "take",
    "to_float",
    "to_floats",
    "to_int",
    "to_int64s",
    "widened",
    "zeros",
]
