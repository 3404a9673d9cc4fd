"""Whether the runs saw batches of different size, which must be said before anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from distmetrics.audit.remedy import looks_like_mean, quoted
from distmetrics.audit.verdict import Kind, Verdict
from distmetrics.runs import RunData

_BATCH = re.compile(
    r"sample|example|sequence|image|token|(global|total)_?batch|batch_?size|instances|"
    r"(^|[^a-z])(seen|seqs|items|docs|documents|bsz|gbs)([^a-z]|$)"
)
_NO_BATCH = re.compile(r"per_?|/s$|rate|loss|acc|mean|avg|ratio|frac|max|min|norm|time")
_GROWING = frozenset({Kind.GROWS_WITH_RANKS, Kind.EXPECTED_SCALING})
_SAME_DATA = frozenset({Kind.IDENTICAL, Kind.CLOSE, Kind.DRIFT})


@dataclass(frozen=True)
class GlobalBatch:
    """A count of the data of one step that differs between the world sizes.

    Attributes:
        key: the key of the count.
        sizes: world size to its median over the steps.
        same_data: losses and the like are equal in all runs, at least at first, so that the
            runs saw the same data after all, and the count is wrong.
    """

    key: str
    sizes: Mapping[int, float]
    same_data: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The finding as JSON holds it."""
        sizes = {str(size): count for size, count in self.sizes.items()}
        return {"key": self.key, "sizes": sizes, "same_data": self.same_data}

    def __str__(self) -> str:
        told = ", ".join(
            f"{count:g} at {size} {'rank' if size == 1 else 'ranks'}"
            for size, count in self.sizes.items()
        )
        if self.same_data:
            return (
                f"{self.key} is {told} in one step: the global batch differs, or, since losses "
                "agree, every rank counts the same data."
            )
        return (
            f"The global batch differs: {self.key} is {told} in one step. The runs saw different "
            "data, so every other verdict is about that too. Give each rank 1/W of a fixed batch, "
            f"or compare by samples with --x {self.key}."
        )

    def explained(self, verdict: Verdict) -> Verdict:
        """The verdict on the count itself with the remedy that fits."""
        if verdict.key != self.key or verdict.kind is Kind.EXPECTED_SCALING:
            return verdict
        name = quoted(self.key)
        if self.same_data:
            return replace(
                verdict,
                remedy=f'registry.count({name}, replicated_over=("tensor",))  # every rank counts '
                "the same data: only one of each set of replicas may",
            )
        return replace(
            verdict,
            remedy=f'registry.count({name}, scaling="extensive")  # the global batch itself grows '
            "with the ranks: split a fixed batch over them, or declare it so",
            reason=f"{verdict.reason}; the global batch differs",
        )


def find_global_batch(verdicts: Sequence[Verdict], runs: Sequence[RunData]) -> GlobalBatch | None:
    """The count that shows batches of different size at different world sizes; None if none does.

    Counts named after samples come before those of tokens. A count that falls with the ranks is no
    sign of it: it is one that was averaged.
    """
    candidates = [one for one in verdicts if one.kind in _GROWING and _names_batch(one.key)]
    for verdict in sorted(candidates, key=lambda one: ("token" in one.key.lower(), len(one.key))):
        values = {
            run.world_size: run.series[verdict.key].values
            for run in runs
            if verdict.key in run.series and run.world_size is not None
        }
        counts = all(np.all(one == np.rint(one)) and np.all(one >= 0) for one in values.values())
        medians = {size: float(np.median(one)) for size, one in values.items()}
        ordered = list(medians.values())
        if counts and len(ordered) > 1 and ordered[-1] > ordered[0] > 0:
            return GlobalBatch(verdict.key, medians, _same_data(verdicts))
    return None


def _same_data(verdicts: Sequence[Verdict]) -> bool:
    return any(one.kind in _SAME_DATA and looks_like_mean(one.key) for one in verdicts)


def _names_batch(key: str) -> bool:
    name = key.lower()
    return _BATCH.search(name) is not None and _NO_BATCH.search(name) is None
