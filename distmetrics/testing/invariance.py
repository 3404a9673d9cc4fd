"""A check that values do not depend on the number of ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from distmetrics.testing.threads import run_ranks_in_process


def assert_world_size_invariant(
    fn: Callable[[], Mapping[str, Any]],
    world_sizes: Sequence[int] = (1, 2, 4),
    rtol: float = 0.0,
) -> None:
    """Check that `fn` returns the same values at every world size.

    Args:
        fn: runs on every rank and returns a dict of numbers, e.g. what `Logger.reduce` or
            ``flush(wait=True)`` returned; that of rank 0 is compared.
        world_sizes: the numbers of ranks, which are threads of this process.
        rtol: the relative difference that is accepted; 0 asks for the same bits.

    Raises:
        AssertionError: some keys differ; it names each with its values.

    Example:
        >>> import distmetrics as dm
        >>> samples = [0.1, 0.2, 0.4, 0.8, 1.6]
        >>> def evaluate():
        ...     with dm.Logger() as logger:
        ...         mine = samples[dm.get_rank() :: dm.get_world_size()]
        ...         return logger.reduce({"loss": dm.Average(mine)})
        >>> assert_world_size_invariant(evaluate)
    """
    found = {size: dict(run_ranks_in_process(fn, size)[0]) for size in world_sizes}
    first = world_sizes[0]
    lines = []
    for key in dict.fromkeys(key for values in found.values() for key in values):
        values = {size: found[size].get(key) for size in world_sizes}
        if not all(_agree(values[first], value, rtol) for value in values.values()):
            shown = ", ".join(f"{value!r} at W={size}" for size, value in values.items())
            lines.append(f"  {key}: {shown}")
    if lines:
        within = "in bits" if rtol == 0 else f"within rtol={rtol:g}"
        raise AssertionError(
            f"values depend on the number of ranks (not equal {within}):\n" + "\n".join(lines)
        )


def _agree(one: Any, other: Any, rtol: float) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if rtol == 0:
            return one.hex() == other.hex()
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or abs(one - other) <= rtol * max(abs(one), abs(other))
    return bool(one == other)
