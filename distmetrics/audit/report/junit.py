"""The report as a JUnit file, for continuous integration: one test case per key."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from distmetrics.audit.compare import Report

_SUITE = "distmetrics audit"
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(report: Report) -> str:
    """The report as XML: a fault is a failure, a world size without a run is an error."""
    verdicts = report.verdicts.values()
    suite = ET.Element(
        "testsuite",
        name=_SUITE,
        tests=str(len(verdicts) + len(report.failures)),
        failures=str(len(report.faults)),
        errors=str(len(report.failures)),
        skipped="0",
        time="0",
    )
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("world_sizes", ",".join(map(str, report.world_sizes))),
        ("rtol", f"{report.rtol:g}"),
    ):
        ET.SubElement(properties, "property", name=name, value=value)
    for size, why in report.failures.items():
        case = ET.SubElement(
            suite, "testcase", classname=_SUITE, name=f"world size {size}", time="0"
        )
        error = ET.SubElement(case, "error", message="no run", type="LaunchError")
        error.text = _clean(why)
    for one in verdicts:
        case = ET.SubElement(suite, "testcase", classname=_SUITE, name=_clean(one.key), time="0")
        if one.is_fault(strict=report.strict):
            failure = ET.SubElement(
                case,
                "failure",
                message=_clean(f"{one.kind.value}: {one.reason}"),
                type=one.kind.value,
            )
            failure.text = _clean(str(one))
    notes = [str(report.global_batch)] if report.global_batch is not None else []
    if notes := [*notes, *report.warnings]:
        ET.SubElement(suite, "system-out").text = _clean("\n".join(notes))
    suites = ET.Element("testsuites")
    suites.append(suite)
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    """Text without the characters that XML 1.0 cannot hold, not even escaped."""
    return _FORBIDDEN.sub("\ufffd", text)
