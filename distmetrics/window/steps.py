"""Sets of steps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np


class Steps:
    """A set of steps as sorted runs ``[first, last]``; cheap where they are consecutive."""

    def __init__(self, runs: Iterable[Iterable[int]] = ()) -> None:
        self.runs: list[list[int]] = [list(run) for run in runs]

    def __bool__(self) -> bool:
        return bool(self.runs)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.runs)

    @property
    def first(self) -> int:
        """The lowest step."""
        return self.runs[0][0]

    @property
    def last(self) -> int:
        """The highest step."""
        return self.runs[-1][1]

    def add(self, step: int) -> None:
        """Add one step."""
        runs = self.runs
        if not runs or step > runs[-1][1] + 1:
            runs.append([step, step])
        elif step == runs[-1][1] + 1:
            runs[-1][1] = step
        elif step < runs[-1][0]:
            self.runs = union([self, Steps([[step, step]])]).runs

    def digest(self) -> int:
        """A non-negative 62-bit hash, the same in every process."""
        packed = np.array(self.runs, "<i8").tobytes()
        return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little") >> 2


def union(sets: Iterable[Steps]) -> Steps:
    """The steps that are in any of the sets."""
    merged: list[list[int]] = []
    for first, last in sorted(run for steps in sets for run in steps.runs):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return Steps(merged)
