"""Opening a run: what lies at a path, which reader takes it, and its world size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from distmetrics.errors import InvalidValue, RunDirError
from distmetrics.runs import events, jsonl, table, wandb
from distmetrics.runs.series import RunData, listed

_SPEC = re.compile(r"(\d+)=(.+)", re.DOTALL)
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json")
_ABOVE = 2
_NOT_TABLES = frozenset({"run.json", "wandb-metadata.json", "wandb-summary.json"})


def split_spec(spec: str | Path) -> tuple[int | None, Path]:
    """The world size (None if it is not given) and the path of ``4=path`` or ``path``.

    A path that exists as it stands is a path, even if it looks like ``4=path``.

    Raises:
        InvalidValue: the world size is 0.

    >>> split_spec("4=runs/w4"), split_spec("runs/w4")
    ((4, PosixPath('runs/w4')), (None, PosixPath('runs/w4')))
    """
    match = _SPEC.fullmatch(str(spec))
    if match is None or Path(spec).exists():
        return None, Path(spec)
    if int(match[1]) == 0:
        raise InvalidValue(f"{str(spec)!r}: a world size is at least 1")
    return int(match[1]), Path(match[2])


def open_run(spec: str | Path, world_size: int | None = None) -> RunData:
    """The run at a path, whatever wrote it; files are read as data and never executed.

    A path is a run directory of distmetrics, a TensorBoard event file or folder, a W&B offline
    run (`.wandb` file or folder), or a CSV, TSV or JSON-lines file; or a folder in which exactly
    one such run lies. In a run directory that holds several kinds, `metrics.jsonl` is read.

    Args:
        spec: the path, or ``"4=path"`` for a run of 4 ranks.
        world_size: the number of ranks, where the path does not say it; else it is taken from the
            files, from a `run.json` beside them or up to two folders above.

    Raises:
        RunDirError: there is nothing at the path, no run, or several.
        InvalidValue: the world size in the path is 0.
        MissingPackage: a reader's package is not installed.
    """
    given, path = split_spec(spec)
    if not path.exists():
        raise RunDirError(f"{path}: there is no such file or folder")
    run = _read_file(path) if path.is_file() else _read_folder(path)
    size = given or world_size
    if size is not None and run.world_size not in {None, size}:
        run.warnings.append(
            f"{path}: world size {size} as given; the files themselves say {run.world_size}"
        )
    run.world_size = size or run.world_size or _world_size_above(path)
    return run


def _read_file(path: Path) -> RunData:
    if wandb.is_wandb_file(path) or _first_bytes(path, 4) == b":W&B":
        return wandb.read_wandb([path], path)
    if events.is_event_file(path):
        return events.read_events([path], path.parent)
    return jsonl.read_run_dir(path) if _is_ours(path) else table.read_table(path)


def _read_folder(path: Path) -> RunData:
    """The run in a folder: the kinds are tried from the most to the least exact."""
    if (path / jsonl.METRICS).is_file():
        return _read_file(path / jsonl.METRICS)
    direct = sorted(child for child in path.iterdir() if events.is_event_file(child))
    if not direct:
        inner = _files(path, lambda file: file.name == jsonl.METRICS)
        if len(inner) == 1:
            return _read_file(inner[0])
        if inner:
            raise _several(path, (file.parent for file in inner))
    found = direct and _files(path, events.is_event_file)
    if found := found or _files(path, events.is_event_file):
        return events.read_events(found, path)
    if found := _files(path, wandb.is_wandb_file):
        return wandb.read_wandb(found, path)
    tables = _files(path, lambda file: file.suffix in _TABLES and file.name not in _NOT_TABLES)
    if len(tables) == 1:
        return _read_file(tables[0])
    if tables:
        raise _several(path, tables)
    raise RunDirError(
        f"{path} holds no run: no metrics.jsonl, no TensorBoard event file, no .wandb file, no CSV "
        "and no JSON lines"
    )


def is_run_file(path: Path) -> bool:
    """Whether a file has the name of one that a run is read from."""
    if not path.is_file() or path.name in _NOT_TABLES:
        return False
    return path.suffix in _TABLES or wandb.is_wandb_file(path) or events.is_event_file(path)


def _several(path: Path, found: Iterable[Path]) -> RunDirError:
    return RunDirError(f"{path} holds several runs: {listed(found)}; name one of them")


def _files(path: Path, accept: object) -> list[Path]:
    """The files below a folder that are accepted, each once although links may repeat them."""
    assert callable(accept)
    seen: dict[Path, Path] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and accept(file):
            seen.setdefault(file.resolve(), file)
    return list(seen.values())


def _is_ours(path: Path) -> bool:
    """Whether the first whole line is a record of distmetrics; of an empty file, its name says."""
    for line in jsonl.lines_of(path, []):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        return isinstance(row, dict) and isinstance(row.get("values"), dict) and "step" in row
    return path.name == jsonl.METRICS


def _first_bytes(path: Path, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _world_size_above(path: Path) -> int | None:
    """The world size in a `run.json` in the path's folder or in one up to two above it."""
    folder = (path if path.is_dir() else path.parent).resolve()
    for place in [folder, *folder.parents][: _ABOVE + 1]:
        size = jsonl.as_world_size(jsonl.read_facts(place / jsonl.RUN, []).get("world_size"))
        if size is not None:
            return size
    return None
