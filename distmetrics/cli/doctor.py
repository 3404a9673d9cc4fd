"""`distmetrics doctor`: what the launcher said, what the machine has, and whether ranks connect."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from distmetrics.comm.doctor import Diagnosis, RankReport, diagnose, try_connections


@click.command()
@click.option(
    "--comm", is_flag=True, help="Connect the ranks of a launcher and time their all-reduces."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds to wait for the other ranks.",
)
def doctor(comm: bool, timeout: float) -> None:
    """Tell what this process knows of its launch, and what is wrong with it.

    Under torchrun or srun rank 0 prints, and other ranks only say what is wrong on their side.
    Ends with code 1 if something is.
    """
    found = diagnose()
    reports: list[RankReport] = []
    if comm and not found.problems:
        reports = try_connections(found, timeout)
    if found.rank == 0:
        _print(found, reports)
    else:
        for problem in found.problems:
            # rank 0 tells what all ranks know
            if not reports:
                click.echo(f"rank {found.rank}: {problem}", err=True)
    sys.exit(1 if found.problems else 0)


def _print(found: Diagnosis, reports: Sequence[RankReport]) -> None:
    for title, rows in found.sections.items():
        click.echo(f"{title}:")
        width = max((len(name) for name, _ in rows), default=0)
        for name, text in rows:
            click.echo(f"  {name:<{width}}  {text}")
    if reports:
        click.echo("connections (microseconds of an all-reduce of one number):")
        for line in _table(reports):
            click.echo(f"  {line}")
    for note in found.notes:
        click.echo(f"note: {note}")
    for problem in found.problems:
        click.echo(f"problem: {problem}")
    if not found.problems:
        click.echo("no problem found")


def _table(reports: Sequence[RankReport]) -> list[str]:
    """The reports as aligned lines under a header."""
    rows = [("rank", "node", "host", "device", "median", "slowest", "cpu median", "groups")]
    rows += [
        (
            str(report.rank),
            str(report.node),
            report.host,
            report.device,
            f"{report.median:.0f}",
            f"{report.slowest:.0f}",
            f"{report.cpu_median:.0f}",
            "wrong" if report.problems else "ok",
        )
        for report in reports
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in rows]
