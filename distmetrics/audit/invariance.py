"""Judging what one function returned at several world sizes: for tests, where nothing is noise."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distmetrics.audit.aligned import align
from distmetrics.audit.finding import Context
from distmetrics.audit.judge import judge
from distmetrics.audit.remedy import remedy
from distmetrics.audit.verdict import Kind, Verdict, worst_first
from distmetrics.runs import Series
from distmetrics.runs.columns import column_array, joined

_ENOUGH_SIZES = 3
"""With so many world sizes one exact factor is no coincidence."""


def judge_values(found: Mapping[int, Mapping[str, Any]], rtol: float = 0.0) -> list[Verdict]:
    """The verdicts on all keys, the worst first, from the values at each world size.

    Args:
        found: world size to key to value: a number, or a list or array of numbers, which count as
            the values of as many steps. Dicts are taken apart, ``{"a": {"b": 1}}`` is ``a/b``.
        rtol: the relative difference that is accepted; 0 asks for the same bits.

    >>> for verdict in judge_values({1: {"n": 8, "loss": 0.5}, 2: {"n": 4, "loss": 0.5}, 4:
    ...                              {"n": 2, "loss": 0.5}}):
    ...     print(verdict)
    n: shrinks_with_ranks (confidence 0.95, 1 step): 0.5 times at 2 ranks, 0.25 times at 4 ranks, \
at all steps: as 1/W (exponent -1.00)
        registry.count("n")  # a count is being averaged over the ranks: sum it
    loss: identical (confidence 1.00, 1 step): the same bits at every step
        registry.average("loss")  # nothing to change
    """
    flat = {size: dict(_flat(values)) for size, values in found.items()}
    steps = 1 if len(flat) >= _ENOUGH_SIZES else 3
    context = Context(rtol=rtol, min_exact_steps=steps)
    keys = dict.fromkeys(key for values in flat.values() for key in values)
    return worst_first(_judge(key, flat, context) for key in keys)


def invariance_error(verdicts: Sequence[Verdict], rtol: float = 0.0) -> str | None:
    """What an assertion says of verdicts, of which none may show a difference; None if none does.

    Drift and noise are differences too: a test's function has neither.
    """
    bad = [one for one in verdicts if one.is_fault(strict=True)]
    if not bad:
        return None
    within = "in bits" if rtol == 0 else f"within rtol={rtol:g}"
    told = "\n".join(f"  {one}" for one in bad)
    return f"values depend on the number of ranks (not equal {within}):\n{told}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def _judge(key: str, flat: Mapping[int, Mapping[str, Any]], context: Context) -> Verdict:
    lacking = [size for size, values in flat.items() if key not in values]
    if lacking:
        told = ", ".join(map(str, lacking))
        return _differs(key, Kind.MISSING, f"not returned at world size {told}")
    columns = {size: _column(values[key]) for size, values in flat.items()}
    if any(column is None for column in columns.values()):
        raw = [values[key] for values in flat.values()]
        if all(bool(value == raw[0]) for value in raw):
            return Verdict(key, Kind.IDENTICAL, 0.0, 0.0, 1, reason="equal", remedy="")
        return _differs(key, Kind.UNDECIDED, f"no numbers, and not equal: {raw!r}")
    series = [_series(column) for column in columns.values() if column is not None]
    if len({len(one) for one in series}) > 1:
        counts = ", ".join(f"{len(one)} at {size}" for size, one in zip(flat, series, strict=True))
        return _differs(key, Kind.MISSING, f"different numbers of values: {counts}")
    return judge(align(key, series, list(flat)), context)


def _differs(key: str, kind: Kind, reason: str) -> Verdict:
    return Verdict(key, kind, remedy=remedy(kind, key), reason=reason)


def _column(value: Any) -> tuple[Any, ...] | None:
    """A value as a tuple of Python numbers; None if it is none."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(part, numbers.Real) for part in parts):
        return None
    return tuple(parts)


def _series(column: tuple[Any, ...]) -> Series:
    values, exact, integer = joined([column_array(column)])
    steps = np.arange(len(column))
    return Series(steps, values, np.ones(len(column), np.int64), exact, integer)
