"""What the audit says of one key."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """How the value of a key depends on the number of ranks; the worst first."""

    NONFINITE = "nonfinite"
    """NaN or infinite in some runs, at steps where it is finite in others."""
    MISSING = "missing"
    """Logged in some runs only."""
    GROWS_WITH_RANKS = "grows_with_ranks"
    """value ~ W: a mean was summed."""
    SHRINKS_WITH_RANKS = "shrinks_with_ranks"
    """value ~ 1/W: a count was averaged."""
    GROWS_WITH_SQRT = "grows_with_sqrt"
    """value ~ sqrt(W): the squares of replicas were added."""
    SHRINKS_WITH_SQRT = "shrinks_with_sqrt"
    """value ~ 1/sqrt(W): the norm of one shard."""
    CONSTANT_FACTOR = "constant_factor"
    """k times as large, with k from something else than the number of ranks."""
    RANK_LOCAL = "rank_local"
    """Scatters about the right value, the more the more ranks: one rank's own value."""
    WEIGHTING = "weighting"
    """A little off from the first step on: parts of unequal size count alike."""
    UNDECIDED = "undecided"
    """Different, but not in a way that could be told apart with the steps at hand."""
    NOISE = "noise"
    """Scatter that does not depend on the number of ranks."""
    DRIFT = "drift"
    """Equal at first, then apart: rounding in the training itself."""
    EXPECTED_SCALING = "expected_scaling"
    """Declared as extensive or per rank, and behaves like it."""
    CLOSE = "close"
    """Equal within the tolerance."""
    IDENTICAL = "identical"
    """Equal in every bit that the files hold."""

    def __str__(self) -> str:
        return self.value


_ORDER = {kind: place for place, kind in enumerate(Kind)}

FAULTS = frozenset(
    {
        Kind.NONFINITE,
        Kind.MISSING,
        Kind.GROWS_WITH_RANKS,
        Kind.SHRINKS_WITH_RANKS,
        Kind.GROWS_WITH_SQRT,
        Kind.SHRINKS_WITH_SQRT,
        Kind.CONSTANT_FACTOR,
        Kind.RANK_LOCAL,
        Kind.WEIGHTING,
        Kind.UNDECIDED,
    }
)
"""Kinds that fail an audit."""

STRICT_FAULTS = FAULTS | {Kind.NOISE, Kind.DRIFT}
"""Kinds that fail a strict one."""


@dataclass(frozen=True)
class Verdict:
    """What the audit says of one key.

    Attributes:
        key: the key.
        kind: the verdict.
        exponent: p of the fitted value ~ W^p; None where it cannot be fitted.
        max_rel_diff: the largest difference between two runs at one step where all are finite,
            relative to the larger of the two (or to a tenth of the key's median, if that is larger
            still); None where nothing could be compared.
        steps: the number of steps that were compared.
        confidence: how sure the verdict is, from 0 to 1.
        remedy: one line of registry code, with a comment.
        reason: the evidence, in a sentence or two.
        factors: world size to the median ratio of its values to those of the smallest world size.
        notes: further facts about how the key was compared.
    """

    key: str
    kind: Kind
    exponent: float | None = None
    max_rel_diff: float | None = None
    steps: int = 0
    confidence: float = 1.0
    remedy: str = ""
    reason: str = ""
    factors: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def is_fault(self, *, strict: bool = False) -> bool:
        """Whether the verdict fails an audit; `strict` counts drift and noise too."""
        return self.kind in (STRICT_FAULTS if strict else FAULTS)

    def to_dict(self) -> dict[str, Any]:
        """The verdict as the JSON report holds it."""
        return {
            "verdict": self.kind.value,
            "exponent": self.exponent,
            "max_rel_diff": self.max_rel_diff,
            "steps": self.steps,
            "confidence": self.confidence,
            "remedy": self.remedy,
            "reason": self.reason,
            "factors": {str(size): factor for size, factor in self.factors.items()},
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return (
            f"{self.key}: {self.kind.value} (confidence {self.confidence:.2f}, "
            f"{self.steps} {'step' if self.steps == 1 else 'steps'}): {self.reason}\n"
            f"    {self.remedy}"
        )


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """The verdicts in order: kinds as in `Kind`, within a kind the larger difference first."""
    return sorted(verdicts, key=lambda one: (_ORDER[one.kind], -(one.max_rel_diff or 0.0), one.key))
