"""`distmetrics demo`: a training run to look at, and the proof that world sizes change nothing."""

from __future__ import annotations

import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

import click
from rich.console import Console

from distmetrics.errors import MissingPackage

PACKAGES = {"sklearn": "scikit-learn", "tqdm": "tqdm", "psutil": "psutil"}
"""What the demo imports beyond the package's own needs, and what installs it."""


def world_sizes_of(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """The world sizes in a list such as ``1,2,4``, each once and in the order given."""
    if value is None:
        return None
    parts = value.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of positive whole numbers, such as 1,2,4")
    return tuple(dict.fromkeys(map(int, parts)))


@click.command()
@click.option("--nproc", type=click.IntRange(1), default=2, show_default=True, help="Ranks.")
@click.option("--epochs", type=click.IntRange(1), default=20, show_default=True, help="Epochs.")
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the files go.  [default: runs/demo-<time>]",
)
@click.option(
    "--world-sizes",
    metavar="N,N,...",
    callback=world_sizes_of,
    help="Then evaluate the trained weights at each of these world sizes and compare the bits.",
)
def demo(
    nproc: int, epochs: int, run_dir: Path | None, world_sizes: tuple[int, ...] | None
) -> None:
    """Train a small CNN on handwritten digits and log it.

    Runs under torchrun with Gloo on this machine, needs no download and no account, and ends
    with a table of the last values and the commands to look at the run.
    """
    _require_packages()
    run_dir = run_dir or Path("runs") / f"demo-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    console = Console(width=None if sys.stdout.isatty() else 120)
    _train(console, run_dir, nproc, epochs)
    if world_sizes is not None:
        _compare(console, run_dir, world_sizes)


def _train(console: Console, run_dir: Path, nproc: int, epochs: int) -> None:
    from distmetrics.demo import launch, report

    launch.torchrun(
        "distmetrics.demo.train", ["--run-dir", str(run_dir), "--epochs", str(epochs)], nproc
    )
    console.print(report.last_values_table(report.read_records(run_dir)))
    console.print(f"\nThe files are in {run_dir}:", highlight=False)
    for path in sorted(path for path in run_dir.iterdir() if not path.name.startswith(".")):
        console.print(f"  {path.name}{'/' if path.is_dir() else ''}", highlight=False)
    console.print("\nTo look at them:")
    for what, command in report.ways_to_look(run_dir).items():
        # Unwrapped, so that a command can be copied whole.
        console.print(f"  {what}:\n    {command}", highlight=False, soft_wrap=True, markup=False)


def _compare(console: Console, run_dir: Path, world_sizes: tuple[int, ...]) -> None:
    from distmetrics.demo import evaluate, launch, report

    runs = {}
    for world_size in world_sizes:
        directory = run_dir / f"world-size-{world_size}"
        launch.torchrun(
            "distmetrics.demo.evaluate",
            ["--weights", str(run_dir / "model.pt"), "--run-dir", str(directory)],
            world_size,
        )
        (record,) = report.read_records(directory)
        runs[world_size] = record.values
    table, differing = report.world_size_table(runs, beside=evaluate.NAIVE)
    console.print()
    console.print(table)
    if differing:
        raise click.ClickException(f"not the same bits at every world size: {', '.join(differing)}")
    console.print(f"identical bits at world sizes {', '.join(map(str, world_sizes))}")


def _require_packages() -> None:
    """Checks what the demo imports before any rank is started.

    Raises:
        MissingPackage: with the command that installs what is missing.
    """
    missing = [package for module, package in PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise MissingPackage(
            f"the demo needs {', '.join(missing)}: "
            f"{sys.executable} -m pip install {' '.join(missing)}"
        )
