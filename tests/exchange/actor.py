"""One rank's training: it does what a program says with a real logger."""

from __future__ import annotations

import hashlib
import itertools
from typing import Any

import distmetrics as dm
from tests.exchange.oracle import Given
from tests.exchange.program import EDGES, Burst, Flush, Log, Op, Reduce, Schedule

KINDS = ["count", "total", "average", "maximum", "minimum", "same"]
"""The reduction of a key, by its first letter (minimum: n); h is a histogram, x has two."""


def make_registry() -> dm.Registry:
    """One pattern for each reduction."""
    registry = dm.Registry()
    for kind in KINDS:
        pattern = "n*" if kind == "minimum" else f"{kind[0]}*"
        getattr(registry, kind)(pattern)
    registry.histogram("h*", edges=EDGES)
    return registry


def value_of(rank: int, order: int, key: str, step: int | None) -> int:
    """A number that no other contribution has; for `same` keys one that seldom differs.

    Half of the totals are large, and take limbs that others do not.
    """
    told = f"{key} {step}"
    if key[0] != "s" or step is None or step % 4 == 3:
        told += f" {rank} {order}"
    value = int.from_bytes(hashlib.blake2b(told.encode(), digest_size=5).digest(), "little")
    return value << 64 if key[0] == "t" and value % 2 else value


class Actor:
    """A rank's training.

    Args:
        number: the rank.
        schedule: what the ranks do.
        logger: the rank's logger.

    Attributes:
        given: the contributions of the call under way, None before the first.
    """

    def __init__(self, number: int, schedule: Schedule, logger: dm.Logger) -> None:
        self.given: tuple[Given, ...] | None = None
        self._number = number
        self._schedule = schedule
        self._logger = logger
        self._order = itertools.count()

    def do(self, op: Op) -> None:
        """One event, but for the end."""
        match op:
            case Log(stream, step, keys):
                self.scope(stream).log(self._values(keys, step), step=step)
            case Burst(stream, start, count):
                for step in range(start, start + count):
                    self.scope(stream).log(self._values(("c0",), step), step=step)
            case Flush(stream, step, wait):
                self.scope(stream).flush(step, wait=wait)
            case Reduce():
                self.reduce(op)

    def reduce(self, op: Reduce) -> dict[str, Any]:
        """The values of a synchronous reduction."""
        return self._logger.reduce(self._values(op.keys, None))

    def scope(self, stream: str) -> Any:
        """The logger or its child."""
        if not stream:
            return self._logger
        return self._logger.child(stream, every=self._schedule.every_of(stream, self._number))

    def _values(self, keys: tuple[str, ...], step: int | None) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        given = []
        order = next(self._order)
        for key in keys:
            value = value_of(self._number, order, key, step)
            weight = value % 5 + 1 if key[:2] == "aw" else None
            outputs[key] = self._tagged(key, value, weight)
            given.append(Given(self._number, order, key, value, weight, -1))
        self.given = tuple(given)
        return outputs

    def _tagged(self, key: str, value: int, weight: int | None) -> Any:
        if key[0] == "x":
            return dm.Count(value) if self._number % 2 else dm.Average(value)
        return value if weight is None else dm.Average(value, weight=weight)
