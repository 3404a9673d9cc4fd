"""The report as one self-contained page of HTML that opens from disk, with no network."""

from __future__ import annotations

from collections import Counter
from typing import Any

from distmetrics import pages
from distmetrics.audit.compare import Report
from distmetrics.audit.report.curves import curves
from distmetrics.audit.report.numbers import shown_difference, shown_exponent
from distmetrics.audit.verdict import Kind, Verdict

SIGNS = {"fault": "✗", "open": "~", "good": "✓"}
"""A shape for each class of verdict, so that none is told by its colour alone."""

_OPEN_AT_FIRST = 3
_NONE = "-"


def to_html(report: Report) -> str:
    """The page: the result, the verdicts as a table, and each key's curves and their ratio.

    Charts are drawn by plotly.js, which is put into the page, when a key is opened.

    Raises:
        MissingPackage: plotly or jinja2 is not installed.
    """
    keys = [_key(verdict, report, place) for place, verdict in enumerate(report.verdicts.values())]
    data = {one["id"]: curves(one["key"], report.runs, report.x) for one in keys}
    return pages.render(
        __package__,
        "page.html",
        report=report,
        keys=keys,
        summary=Counter(one["kind"] for one in keys),
        faults=len(report.faults),
        x=report.x or "step",
        data=pages.embedded(data),
        plotly=pages.plotly(),
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
        "exponent": shown_exponent(verdict.exponent) or _NONE,
        "difference": shown_difference(verdict.max_rel_diff) or _NONE,
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
