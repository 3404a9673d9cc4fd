"""`distmetrics merge`: complete the record of a run that died."""

from __future__ import annotations

from pathlib import Path

import click

from distmetrics.spool.merge import merge as merge_run


@click.command()
@click.argument("run_dir", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--spool",
    "spool_dirs",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A further folder with spools, of nodes that do not share RUN_DIR. May be repeated.",
)
@click.option("--partial", is_flag=True, help="Also write windows that some ranks have not passed.")
def merge(run_dir: Path, spool_dirs: tuple[Path, ...], partial: bool) -> None:
    """Append to metrics.jsonl what a run had spooled and not written.

    Needs no process group; may be called any number of times. Without --partial only windows that
    every rank had passed are written, and the others are named.
    """
    merged = merge_run(run_dir, spool_dirs, partial)
    click.echo(f"{len(merged.written)} rows written to {run_dir / 'metrics.jsonl'}")
    for row in merged.written:
        if row.missing_ranks:
            click.echo(f"step {row.step}: without ranks {list(row.missing_ranks)}")
    for text in merged.waiting:
        click.echo(text)
    if merged.waiting:
        click.echo("--partial writes these without the ranks that are missing")
