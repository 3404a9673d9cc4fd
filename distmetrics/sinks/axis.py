"""A key whose value is the x-axis of charts: samples or tokens so far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distmetrics.errors import InvalidValue
from distmetrics.record import Record, Scalar
from distmetrics.sinks.scalars import scalars

if TYPE_CHECKING:
    from distmetrics.registry import Registry

_KINDS = ("axis", "total")


class Axis:
    """Follows a running total from record to record.

    Args:
        key: as the logger's own records have it.

    >>> samples = Axis("samples")
    >>> def at(**values):
    ...     return samples.of(Record(step=9, first_step=0, window=9, time=0.0, values=values))
    >>> at(loss=0.5), at(loss=0.5, samples=128), at(acc=0.75)
    (0, 128, 128)
    """

    def __init__(self, key: str) -> None:
        if not key:
            raise InvalidValue("axis= is the name of a key, not an empty text")
        self.key = key
        self._last: Scalar = 0

    def check(self, registry: Registry) -> None:
        """Raise `InvalidValue` where the key is no running total."""
        reduction = registry.resolve(self.key).reduction
        if reduction is None or reduction.kind not in _KINDS:
            found = "ignored" if reduction is None else str(reduction)
            raise InvalidValue(
                f"axis={self.key!r} is registered as {found}; an x-axis is a "
                f"running total: registry.axis({self.key!r})"
            )

    def of(self, record: Record) -> Scalar:
        """The key's value in a record, or the last one before; 0 before the first."""
        value = scalars(record).get(self.key)
        if value is not None and value - value == 0:  # neither NaN nor infinite
            self._last = value
        return self._last
