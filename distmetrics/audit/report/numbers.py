"""How numbers of a verdict are shown."""

from __future__ import annotations

import json
import math
from typing import Any


def shown_difference(value: float | None) -> str:
    """A relative difference in few characters.

    >>> shown_difference(0.0), shown_difference(0.5), shown_difference(3.2e-7)
    ('0', '50%', '3.2e-07')
    >>> shown_difference(None), shown_difference(math.inf)
    ('', 'inf')
    """
    if value is None:
        return ""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{100 * value:.3g}%" if value >= 1e-4 else f"{value:.2g}"


def shown_exponent(value: float | None) -> str:
    """An exponent with its sign; empty where there is none.

    >>> shown_exponent(1.0), shown_exponent(-0.501), shown_exponent(0.0), shown_exponent(None)
    ('+1.00', '-0.50', '0.00', '')
    """
    if value is None:
        return ""
    text = f"{value:+.2f}"
    return "0.00" if text in {"+0.00", "-0.00"} else text


def strict_json(value: Any, indent: int | None = None) -> str:
    """A value as strict JSON; non-finite numbers become their names, as in `metrics.jsonl`.

    >>> print(strict_json({"a": math.inf, "b": [math.nan, 1.5]}))
    {"a": "Infinity", "b": ["NaN", 1.5]}
    """
    return json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
