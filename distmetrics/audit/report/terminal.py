"""The report as a table in the terminal."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table
from rich.text import Text

from distmetrics.audit.compare import Report
from distmetrics.audit.report.numbers import shown_difference, shown_exponent
from distmetrics.audit.verdict import Kind, Verdict
from distmetrics.runs.series import plural

_QUIET = frozenset({Kind.IDENTICAL, Kind.CLOSE, Kind.EXPECTED_SCALING})
_MOST_QUIET = 12


def print_report(report: Report, console: Console, *, show_all: bool = False) -> None:
    """Prints what must be known first, the table with the worst verdicts first, and the result.

    Keys without a difference are only counted where there are many, unless `show_all`.
    """
    sizes = ", ".join(map(str, report.world_sizes))
    by = f" by {report.x}" if report.x else ""
    if report.global_batch is not None:
        console.print(Text(f"! {report.global_batch}", style="bold yellow"))
    console.print(Text(f"World sizes {sizes}, compared{by} at rtol {report.rtol:g}", style="bold"))
    for size, why in report.failures.items():
        console.print(Text(f"! world size {size} has no run: {why}", style="bold red"))
    for warning in report.warnings:
        console.print(Text(f"! {warning}", style="yellow"))
    verdicts = list(report.verdicts.values())
    quiet = [one for one in verdicts if one.kind in _QUIET]
    hidden = quiet if len(quiet) > _MOST_QUIET and not show_all else []
    kept = [one for one in verdicts if one not in hidden] if hidden else verdicts
    if kept:
        console.print(_table(kept, report))
    if hidden:
        counts = Counter(one.kind.value for one in hidden)
        told = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        console.print(f"and {told}; --all lists them")
    _print_remedies(report, console)
    console.print(_result(report))


def _table(verdicts: list[Verdict], report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("key", overflow="fold", min_width=12)
    table.add_column("W^p", justify="right", no_wrap=True)
    table.add_column("max diff", justify="right", no_wrap=True)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("sure", justify="right", no_wrap=True)
    for one in verdicts:
        fault = one.is_fault(strict=report.strict)
        style = "red" if fault else "dim" if one.kind in _QUIET else ""
        table.add_row(
            "✗" if fault else "✓",
            one.kind.value,
            Text(one.key),
            shown_exponent(one.exponent),
            shown_difference(one.max_rel_diff),
            str(one.steps),
            f"{one.confidence:.2f}",
            style=style,
        )
    return table


def _print_remedies(report: Report, console: Console) -> None:
    for one in report.faults:
        console.print()
        console.print(Text.assemble((one.key, "bold"), f": {one.kind.value}. {one.reason}."))
        console.print(Text(f"    {one.remedy}"), soft_wrap=True)  # one line, to be copied
    if report.faults:
        console.print()


def _result(report: Report) -> Text:
    count, total = len(report.faults), len(report.verdicts)
    if report.exit_code == 0:
        return Text(f"No logging fault in {total} keys.", style="bold green")
    parts = []
    if count:
        parts.append(f"{count} of {total} keys depend on the number of processes.")
    if report.failures:
        parts.append(f"{plural(len(report.failures), 'world size')} could not be run.")
    return Text(" ".join(parts), style="bold red")
