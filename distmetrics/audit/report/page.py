"""The report as one self-contained page of HTML that opens from disk, with no network."""

from __future__ import annotations

from collections import Counter
from importlib import resources
from pathlib import Path
from typing import Any

from distmetrics.audit.compare import Report
from distmetrics.audit.report.curves import curves
from distmetrics.audit.report.numbers import shown_difference, shown_exponent, strict_json
from distmetrics.audit.verdict import Kind, Verdict
from distmetrics.errors import MissingPackage

SIGNS = {"fault": "✗", "open": "~", "good": "✓"}
"""A shape for each class of verdict, so that none is told by its colour alone."""

_OPEN_AT_FIRST = 3


def to_html(report: Report) -> str:
    """The page: the result, the verdicts as a table, and each key's curves and their ratio.

    Charts are drawn by plotly.js, which is put into the page, when a key is opened.

    Raises:
        MissingPackage: plotly or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise _missing("jinja2") from error
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    keys = [_key(verdict, report, place) for place, verdict in enumerate(report.verdicts.values())]
    data = {one["id"]: curves(one["key"], report.runs) for one in keys}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(template).render(
        report=report,
        keys=keys,
        summary=Counter(one["kind"] for one in keys),
        faults=len(report.faults),
        x=report.x or "step",
        # In a script element only "<" can end it or open another one.
        data=Markup(strict_json(data).replace("<", "\\u003c")),  # noqa: S704
        plotly=Markup(_plotly()),  # noqa: S704
    )


def _key(verdict: Verdict, report: Report, place: int) -> dict[str, Any]:
    fault = verdict.is_fault(strict=report.strict)
    undecided = verdict.kind in {Kind.NOISE, Kind.DRIFT, Kind.EXPECTED_SCALING}
    status = "fault" if fault else "open" if undecided else "good"
    return {
        "id": f"k{place}",
        "key": verdict.key,
        "kind": verdict.kind.value,
        "label": verdict.kind.value.replace("_", " "),
        "status": status,
        "sign": SIGNS[status],
        "exponent": shown_exponent(verdict.exponent),
        "difference": shown_difference(verdict.max_rel_diff),
        "steps": verdict.steps,
        "confidence": f"{verdict.confidence:.2f}",
        "reason": verdict.reason,
        "remedy": verdict.remedy,
        "factors": [
            (size, f"{factor:.4g}") for size, factor in verdict.factors.items() if factor != 1.0
        ],
        "notes": verdict.notes,
        "open": fault and place < _OPEN_AT_FIRST,
    }


def _plotly() -> str:
    try:
        import plotly  # type: ignore[import-untyped]
    except ImportError as error:
        raise _missing("plotly") from error
    return (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text("utf-8")


def _missing(package: str) -> MissingPackage:
    return MissingPackage(f"the HTML report needs the package {package}: pip install {package}")
