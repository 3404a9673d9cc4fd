"""`distmetrics replay`: write the records of a run to a sink again."""

from __future__ import annotations

from pathlib import Path

import click

from distmetrics.errors import RunDirError
from distmetrics.registry import Registry
from distmetrics.rundir import METRICS, describe
from distmetrics.sinks import Run, make_sinks
from distmetrics.spool.merge import keep_last, read_rows


@click.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--sink", "names", multiple=True, required=True, help="A sink's name. May be repeated."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the sinks keep their files; by default RUN_DIR/replay.",
)
def replay(run_dir: Path, names: tuple[str, ...], out: Path | None) -> None:
    """Write the records of RUN_DIR/metrics.jsonl to sinks, as if they were logged now.

    Rows that a later attempt supersedes are left out. The files that the run itself has written
    are not touched.
    """
    described = describe(run_dir)
    rows = keep_last(read_rows(run_dir / METRICS))
    folder = run_dir / "replay" if out is None else out
    if folder.exists() and any(folder.iterdir()):
        raise RunDirError(f"{str(folder)!r} is not empty; give another folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    registry = Registry.from_declarations(
        described["registry"], described["default"], described["strict"]
    )
    run = Run(folder, run_dir.resolve().name, registry, described["config"])
    for name, sink in make_sinks(list(names), folder):
        sink.open(run)
        for row in rows:
            sink.write(row)
        sink.close()
        click.echo(f"{len(rows)} records written to {name} in {folder}")
