"""`distmetrics audit`: compare runs, launch and compare, take a value apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from distmetrics.audit.finding import DEFAULT_RTOL
from distmetrics.errors import DistmetricsError

_WIDTH = 120
_FAILED = 2


def world_sizes_of(
    _context: click.Context, _option: click.Parameter, value: str
) -> tuple[int, ...]:
    """The world sizes in a list such as ``1,2,4``, each once."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of positive whole numbers, such as 1,2,4")
    sizes = tuple(dict.fromkeys(map(int, parts)))
    if len(sizes) < 2:
        raise click.BadParameter("two or more world sizes are needed to compare them")
    return sizes


def _reports(command: Any) -> Any:
    """The options that all audits share."""
    file = click.Path(path_type=Path, dir_okay=False)
    options = [
        click.option(
            "--rtol",
            type=click.FloatRange(0, 1, max_open=True),
            default=DEFAULT_RTOL,
            show_default=True,
            help="Relative differences up to this are none; integers compare exactly.",
        ),
        click.option("--x", metavar="KEY", help="Compare by this count (samples, tokens)."),
        click.option("--strict", is_flag=True, help="Count drift and noise as faults."),
        click.option("--json", "json_file", type=file, help="Write the verdicts as JSON."),
        click.option("--junit", "junit_file", type=file, help="Write them as JUnit XML."),
        click.option("--html", "html_file", type=file, help="Write one page with all curves."),
        click.option("--all", "show_all", is_flag=True, help="List keys without a difference too."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@contextmanager
def _could_not_be_done() -> Iterator[None]:
    """Exit code 2 with a message, not a traceback, where the audit cannot be done."""
    try:
        yield
    except (DistmetricsError, OSError) as error:
        click.echo(f"Error: {error}", err=True)
        raise SystemExit(_FAILED) from error


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def audit() -> None:
    """Find out whether what a training logs depends on the number of processes.

    Exit code 0: no logging fault; 1: some key has one; 2: the audit could not be done.
    """


@audit.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--steps", type=click.IntRange(1), help="Compare only steps below this.")
@_reports
def compare(runs: tuple[str, ...], steps: int | None, **options: Any) -> None:
    """Compare runs of one training at several world sizes.

    A RUN is a distmetrics run directory, a TensorBoard event file or folder, a W&B offline run, or
    a CSV or JSON-lines file with a step column. Where the files do not say the world size, give it
    as 4=PATH.
    """
    from distmetrics.audit.compare import compare as compare_runs
    from distmetrics.runs import open_run

    with _could_not_be_done():
        report = compare_runs(
            [open_run(run) for run in runs],
            rtol=options["rtol"],
            strict=options["strict"],
            x=options["x"],
            steps=steps,
        )
        _finish(report, options)


@audit.command(context_settings={"ignore_unknown_options": True})
@click.option(
    "--world-sizes",
    metavar="N,N,...",
    default="1,2,4",
    show_default=True,
    callback=world_sizes_of,
    help="Numbers of processes to run the script with.",
)
@click.option("--steps", type=click.IntRange(1), help="End each run after so many logged steps.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=1800.0,
    show_default=True,
    help="Seconds that one run may take.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the runs are kept.  [default: runs/audit-<time>]",
)
@click.option(
    "--working-folder",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the script runs.  [default: in a folder of its own per world size]",
)
@_reports
@click.argument(
    "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- SCRIPT ARGS"
)
def run(command: tuple[str, ...], **options: Any) -> None:
    """Run a script under torchrun at several world sizes and compare what it logs.

    The script may use distmetrics, or write TensorBoard, W&B offline, CSV or JSON-lines files. In
    its arguments {run_dir} stands for a folder of its own, {world_size} for the number of
    processes, {steps} for --steps.
    """
    from distmetrics.audit.compare import compare as compare_runs
    from distmetrics.audit.launch import Plan, launch

    script, *arguments = command
    folder = options["out"] or Path("runs") / f"audit-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    plan = Plan(
        Path(script),
        arguments,
        options["world_sizes"],
        folder,
        options["timeout"],
        options["steps"],
        options["working_folder"],
    )
    with _could_not_be_done():
        with _progress(plan.world_sizes) as progress:
            launched = launch(plan, progress)
        click.echo(f"what the runs wrote is in {folder}", err=True)
        if len(launched.runs) < 2:
            _tell_failures(launched.failures)
            click.echo(f"Error: fewer than two world sizes have a run; see {folder}", err=True)
            raise SystemExit(_FAILED)
        report = compare_runs(
            launched.runs,
            rtol=options["rtol"],
            strict=options["strict"],
            x=options["x"],
            steps=options["steps"],
            failures=launched.failures,
        )
        _finish(report, options)


@audit.command()
@click.argument("key")
@click.argument("run_dir", type=click.Path(path_type=Path), default=Path())
@click.option("--step", type=int, help="A step of the window, or its label.  [default: the last]")
def explain(key: str, run_dir: Path, step: int | None) -> None:
    """Take one value of KEY in a run directory apart: who contributed what, with which weight.

    Needs the recording of a logger that was made with record_contributions=True.
    """
    from distmetrics.audit.explain import explain as explain_value

    with _could_not_be_done():
        found = explain_value(run_dir, key, step)
    console = _console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rank", "calls", "elements", "padding", "weight", "sum", "mean", "min", "max"):
        table.add_column(column, justify="right")
    for part in found.parts:
        counts = (part.rank, part.calls, part.elements, part.padding)
        numbers = (part.weight, part.total, part.mean, part.least, part.most)
        table.add_row(*map(str, counts), *(f"{number:.10g}" for number in numbers))
    reduction = f", {found.reduction}" if found.reduction else ""
    console.print(Text(f"{key}, window {found.window}{reduction}", style="bold"))
    console.print(table)
    logged = "no row of metrics.jsonl" if found.logged is None else repr(found.logged)
    console.print(f"\nlogged: {logged}")
    matching = set(found.matches())
    for name, value in found.formulas.items():
        sign = "=" if name in matching else " "
        console.print(Text(f" {sign} {name}: {value!r}", style="bold" if name in matching else ""))


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False)


@contextmanager
def _progress(sizes: tuple[int, ...] | Any) -> Iterator[Any]:
    """Shows what each world size does: bars on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():

        def line(size: int, text: str) -> None:
            if not text[0].isdigit():
                click.echo(f"world size {size}: {text}", err=True)

        yield line
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks = {size: bars.add_task(f"world size {size}: waits", total=1) for size in sizes}

        def show(size: int, text: str) -> None:
            ended = text.startswith(("done", "failed", "logged"))
            bars.update(tasks[size], description=f"world size {size}: {text}", completed=int(ended))

        yield show


def _tell_failures(failures: dict[int, str]) -> None:
    for size, why in failures.items():
        click.echo(f"world size {size} has no run: {why}\n", err=True)


def _finish(report: Any, options: dict[str, Any]) -> None:
    """Prints and writes the report, and leaves with its exit code."""
    from distmetrics.audit.report.numbers import strict_json
    from distmetrics.audit.report.terminal import print_report

    print_report(report, _console(), show_all=options["show_all"])
    if options["json_file"] is not None:
        _write(options["json_file"], strict_json(report.to_dict(), indent=2) + "\n")
    if options["junit_file"] is not None:
        from distmetrics.audit.report.junit import to_junit

        _write(options["junit_file"], to_junit(report))
    if options["html_file"] is not None:
        from distmetrics.audit.report.page import to_html

        _write(options["html_file"], to_html(report))
    raise SystemExit(report.exit_code)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
