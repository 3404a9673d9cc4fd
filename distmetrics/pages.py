"""What a page of HTML needs to open from disk with no network: its charts' library and its data."""

from __future__ import annotations

import base64
import gzip
import json
import math
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distmetrics.errors import MissingPackage


def render(package: str, template: str, **values: Any) -> str:
    """The page that a Jinja template of a package makes; all values are escaped.

    Raises:
        MissingPackage: jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise _missing("jinja2") from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = resources.files(package).joinpath(template).read_text("utf-8")
    return environment.from_string(text).render(**values)


def script(package: str, name: str) -> Any:
    """A script of a package, marked as safe to stand in a script element."""
    return _safe(resources.files(package).joinpath(name).read_text("utf-8"))


def plotly() -> Any:
    """The source of plotly.js, marked as safe to stand in a script element.

    Raises:
        MissingPackage: plotly is not installed.
    """
    try:
        import plotly as package  # type: ignore[import-untyped]
    except ImportError as error:
        raise _missing("plotly") from error
    source = Path(package.__file__).parent / "package_data" / "plotly.min.js"
    return _safe(source.read_text("utf-8"))


def embedded(value: Any) -> Any:
    r"""A value as strict JSON that may stand in a script element, whatever texts it holds.

    Numbers that are not finite become null.

    >>> print(embedded({"</script>": float("nan")}))
    {"\u003c/script>": null}
    """
    text = json.dumps(_finite(value), allow_nan=False, ensure_ascii=False, separators=(",", ": "))
    # In a script element only "<" can end it or open another one.
    return _safe(text.replace("<", "\\u003c"))


def packed(array: NDArray[np.float64]) -> str:
    """The array as little-endian float64, gzip-compressed, in base64."""
    data = np.ascontiguousarray(array, "<f8").tobytes()
    return base64.b64encode(gzip.compress(data, compresslevel=1, mtime=0)).decode("ascii")


def _safe(text: str) -> Any:
    try:
        from markupsafe import Markup
    except ImportError as error:
        raise _missing("jinja2") from error
    return Markup(text)  # noqa: S704 - sources of packages, and JSON without "<"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


def _missing(package: str) -> MissingPackage:
    return MissingPackage(
        f"a page of HTML needs {package}; install it with: python -m pip install {package}"
    )
