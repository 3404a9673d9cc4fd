"""A training whose every number is known: what ranks log, and the rows that this must give."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import distmetrics as dm
from distmetrics.record import Record
from distmetrics.rundir import METRICS

EVERY = 2


def registry() -> dm.Registry:
    """A weighted average, a count per step, running totals of ints and of floats, a maximum."""
    made = dm.Registry()
    made.average("loss", weight="tokens")
    made.total("seen")
    made.total("energy")
    made.maximum("worst")
    return made


def outputs(rank: int, step: int) -> dict[str, Any]:
    """What a rank logs at a step."""
    draw = random.Random(rank * 1_000_003 + step)
    losses = [draw.uniform(-1, 1) * 10.0 ** draw.randrange(-6, 6) for _ in range(2)]
    return {
        "loss": losses,
        "tokens": [draw.randrange(1, 9) for _ in losses],
        "seen": draw.randrange(1 << 40),
        "energy": draw.uniform(0, 1e9),
        "worst": max(losses),
    }


def expected(
    windows: Iterable[int], world_size: int, every: int = EVERY
) -> dict[int, dict[str, Any]]:
    """The values of each window, by its label, where all ranks logged all steps from 0 on."""
    wanted = set(windows)
    rows: dict[int, dict[str, Any]] = {}
    seen, energy = 0, Fraction(0)
    for label in range(every - 1, max(wanted, default=-1) + 1, every):
        steps = range(label - every + 1, label + 1)
        said = [outputs(rank, step) for step in steps for rank in range(world_size)]
        pairs = [(x, w) for one in said for x, w in zip(one["loss"], one["tokens"], strict=True)]
        seen += sum(one["seen"] for one in said)
        energy += sum(Fraction(one["energy"]) for one in said)
        tokens = sum(w for _, w in pairs)
        if label in wanted:
            rows[label] = {
                "loss": math.fsum(w * x for x, w in pairs) / tokens,
                "tokens": tokens // every if tokens % every == 0 else tokens / every,
                "seen": seen,
                "energy": float(energy),
                "worst": max(one["worst"] for one in said),
            }
    return rows


def rows_of(run_dir: Path) -> list[Record]:
    """The records of a run, whose lines are whole but perhaps for a torn last one."""
    path = run_dir / METRICS
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    assert len(whole) >= len(lines) - 1
    return [Record.from_json(line) for line in whole]


def check_rows(
    rows: Iterable[Record], windows: Iterable[int], world_size: int, every: int = EVERY
) -> None:
    """Every one of these windows is there once, in order, with the right bits, and no other."""
    rows, wanted = list(rows), list(windows)
    assert [row.window for row in rows] == wanted
    want = expected(wanted, world_size, every)
    for row in rows:
        assert row.missing_ranks == ()
        assert {key: _bits(value) for key, value in row.values.items()} == {
            key: _bits(value) for key, value in want[row.window].items()
        }, f"window {row.window}"


def _bits(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value


def labels(steps: int, every: int = EVERY) -> list[int]:
    """The windows of steps 0 .. steps-1."""
    return list(range(every - 1, steps, every))
