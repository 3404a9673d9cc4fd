"""Closed windows as JSON-able values, many in one line, and back to the same bits."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distmetrics.exact import Limbs
from distmetrics.reductions import Counter
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.lanes import Lanes, Slot
from distmetrics.window.steps import Steps
from distmetrics.window.stream import Window
from distmetrics.window.tallies import Tallies


def encode_windows(stream: str, windows: Mapping[int, Window]) -> dict[str, Any]:
    """Sealed windows of a stream, by label."""
    slots, parts = [], []
    for position, window in enumerate(windows.values()):
        for late, slot in ((None, window.main), *window.late.items()):
            lanes = slot.lanes
            if lanes is None:
                continue
            digits = lanes.sums.digits
            sizes = (len(lanes.counters), lanes.sums.lo, digits.shape[1], len(lanes.tallies.cells))
            slots.append((position, late, *sizes))
            parts += [digits.reshape(-1), lanes.counters.reshape(-1), lanes.maxes]
            parts += [lanes.tallies.cells, lanes.tallies.counts]
    data = np.concatenate(parts).astype("<i8").tobytes() if parts else b""
    return {
        "kind": "windows",
        "stream": stream,
        "labels": list(windows),
        "steps": [window.steps.runs for window in windows.values()],
        "seconds": [window.seconds for window in windows.values()],
        "late": [list(window.late) for window in windows.values()],
        "slots": slots,
        "data": base64.b64encode(data).decode(),
    }


def decode_windows(line: Mapping[str, Any], table: KeyTable) -> dict[int, Window]:
    """The windows of a line that `encode_windows` made.

    Args:
        line: the line.
        table: the keys of the stream, of which the lanes cover the first ones.
    """
    windows = []
    for runs, seconds, late in zip(line["steps"], line["seconds"], line["late"], strict=True):
        window = Window(0.0, steps=Steps(runs), late={step: Slot() for step in late})
        window.seconds = seconds
        windows.append(window)
    data = np.frombuffer(base64.b64decode(line["data"]), "<i8").astype(np.int64)
    start = 0
    for position, late, keys, lo, limbs, cells in line["slots"]:
        extent = table.extent_of(keys)
        shapes: Sequence[tuple[int, ...]] = (
            (extent.rows, limbs),
            (keys, len(Counter)),
            (extent.fields,),
            (cells,),
            (cells,),
        )
        arrays = []
        for shape in shapes:
            size = int(np.prod(shape))
            arrays.append(data[start : start + size].reshape(shape))
            start += size
        lanes = Lanes(Limbs(lo, arrays[0]), arrays[1], arrays[2], Tallies(arrays[3], arrays[4]))
        window = windows[position]
        (window.main if late is None else window.late[late]).lanes = lanes
    return dict(zip(line["labels"], windows, strict=True))
