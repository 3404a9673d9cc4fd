"""Reading scalars from TensorBoard event files."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np

from distmetrics.errors import RunDirError
from distmetrics.runs.series import Precision, RunData, Series, listed, plural, spans_of

_SCALAR_PLUGINS = frozenset({"", "scalars"})
_SETTINGS = frozenset({"custom_scalars", "hparams", "text"})  # never hold a number
_LONGEST = 1 << 30


@dataclass
class _Points:
    """The points of one tag, in the order of writing: step, number of the file, value."""

    folder: str
    steps: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    precision: Precision = "float32"


def is_event_file(path: Path) -> bool:
    """Whether a file has the name of a TensorBoard event file."""
    return "tfevents" in path.name and path.is_file()


def read_events(files: list[Path], root: Path) -> RunData:
    """The run in some event files, which are read in the order of their time stamps.

    Both forms of scalars are read: `simple_value`, which keeps float32, and tensors. A session
    that starts at step s replaces what earlier files hold from s on; else the last value written
    for a step counts. Keys of files in a folder below `root` begin with the folder's name. Of a
    damaged file all records before the damage are used, with a warning.

    Raises:
        RunDirError: the files hold no scalar.
    """
    warnings: list[str] = []
    tags: dict[str, _Points] = {}
    own = [path for path in files if path.parent == root]
    prefixed = bool(own) or len({path.parent for path in files}) > 1
    for number, path in enumerate(sorted(files, key=_written_at)):
        folder = path.parent.relative_to(root).as_posix() if prefixed else "."
        prefix = "" if folder == "." else f"{folder}/"
        _read_file(path, number, prefix, tags, warnings)
    if not tags:
        notes = f" ({'; '.join(warnings)})" if warnings else ""
        raise RunDirError(f"{root} holds event files but no scalar{notes}")
    _warn_of_writers(tags, warnings)
    series = {tag: _series(points) for tag, points in tags.items()}
    return RunData(root, "tensorboard", None, series, warnings=warnings)


def _written_at(path: Path) -> tuple[int, str]:
    """The time in ``events.out.tfevents.<time>.<host>``, then the name."""
    stamp = path.name.partition("tfevents.")[2].partition(".")[0]
    return (int(stamp) if stamp.isdigit() else 0, path.name)


def _read_file(
    path: Path, number: int, prefix: str, tags: dict[str, _Points], warnings: list[str]
) -> None:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from tensorboard.compat.proto import event_pb2

    skipped: dict[str, None] = {}
    for record in records(path, warnings):
        try:
            event = event_pb2.Event.FromString(record)
        except DecodeError:
            warnings.append(f"{path}: a record that is no event is left out")
            continue
        if event.session_log.status == event_pb2.SessionLog.START and event.step > 0:
            _purge(tags, prefix, number, event.step)
        for value in event.summary.value:
            found = _scalar(value)
            if value.metadata.plugin_data.plugin_name in _SETTINGS:
                continue
            if found is None:
                skipped.setdefault(prefix + value.tag)
                continue
            points = tags.setdefault(prefix + value.tag, _Points(prefix))
            points.precision = "float64" if found[1] == "float64" else points.precision
            points.steps.append(event.step)
            points.files.append(number)
            points.values.append(found[0])
            points.times.append(event.wall_time)
    names = [tag for tag in skipped if tag not in tags]
    if names:
        warnings.append(f"{path}: left out as no scalars: {listed(names)}")


def records(path: Path, warnings: list[str]) -> Iterator[bytes]:
    """The records of a file in TFRecord framing, up to the first damaged one.

    Framing: length as little-endian uint64, its masked CRC-32C, the record, its masked CRC-32C;
    https://www.tensorflow.org/tutorials/load_data/tfrecord.
    """
    with path.open("rb") as file:
        while head := file.read(12):
            where = file.tell() - len(head)
            length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else _LONGEST
            if length >= _LONGEST or _masked_crc(head[:8]) != head[8:]:
                warnings.append(_damage(path, where, torn=len(head) < 12))
                return
            body, crc = file.read(length), file.read(4)
            if len(body) < length or _masked_crc(body) != crc:
                warnings.append(_damage(path, where, torn=len(crc) < 4))
                return
            yield body


@cache
def _crc32c() -> Callable[[bytes], int]:
    """CRC-32C in compiled code if that is installed, a thousand times faster than in Python."""
    try:
        found = import_module("google_crc32c").value
    except ImportError:
        found = import_module("tensorboard.compat.tensorflow_stub.pywrap_tensorflow").crc32c
    return cast("Callable[[bytes], int]", found)


def _masked_crc(data: bytes) -> bytes:
    crc = _crc32c()(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def _damage(path: Path, where: int, *, torn: bool) -> str:
    what = "ends in the middle of a record" if torn else f"has a damaged record at byte {where}"
    return f"{path} {what}; all records before it are used"


def _scalar(value: Any) -> tuple[float, Precision] | None:
    """A summary value as a number with its precision; None if it is no scalar."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value), "float32"
    if kind != "tensor" or value.metadata.plugin_data.plugin_name not in _SCALAR_PLUGINS:
        return None
    from tensorboard.util.tensor_util import make_ndarray

    try:
        array = make_ndarray(value.tensor)
    except (TypeError, ValueError):
        return None
    if array.size != 1 or array.dtype.kind not in "fiub":
        return None
    wide = array.dtype == np.float64 or array.dtype.kind in "iub"
    return float(array.reshape(())), "float64" if wide else "float32"


def _purge(tags: dict[str, _Points], folder: str, number: int, step: int) -> None:
    """Removes what earlier files of the same folder hold from a step on."""
    for points in tags.values():
        if points.folder != folder:
            continue
        stay = [
            place
            for place, (one, file) in enumerate(zip(points.steps, points.files, strict=True))
            if one < step or file == number
        ]
        points.steps = [points.steps[place] for place in stay]
        points.files = [points.files[place] for place in stay]
        points.values = [points.values[place] for place in stay]
        points.times = [points.times[place] for place in stay]


def _series(points: _Points) -> Series:
    steps = np.array(points.steps, np.int64)
    values = np.array(points.values, np.float64)
    order = np.argsort(steps, kind="stable")
    last = np.ones(len(order), bool)
    last[:-1] = np.diff(steps[order]) != 0
    rows = order[last]
    times = np.array(points.times, np.float64)[rows]
    spans = spans_of(steps[rows])
    return Series(steps[rows], values[rows], spans, precision=points.precision, times=times)


def _warn_of_writers(tags: dict[str, _Points], warnings: list[str]) -> None:
    """Says so when several files hold different values for the same steps of a tag."""
    clashes: dict[str, int] = defaultdict(int)
    for tag, points in tags.items():
        if len(set(points.files)) < 2:
            continue
        seen: dict[int, tuple[int, float]] = {}
        for step, file, value in zip(points.steps, points.files, points.values, strict=True):
            before = seen.get(step)
            if before is not None and before[0] != file and before[1] != value:
                clashes[tag] += 1
            seen[step] = (file, value)
    if clashes:
        count = plural(max(clashes.values()), "step")
        warnings.append(
            f"several event files hold different values for {count} of {listed(clashes)}; the "
            "file begun last counts. Either the run was resumed without purge_step, or several "
            "ranks write"
        )
