"""Records in a list, for tests and notebooks."""

from __future__ import annotations

from distmetrics.record import Record
from distmetrics.sinks.contract import Run


class MemorySink:
    """Keeps every record in `records`, in the order in which they came.

    Attributes:
        records: all records so far.
        run: what the sink was opened with, None before.

    Example:
        >>> sink = MemorySink()
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        >>> [record.values["loss"] for record in sink.records]
        [0.25]
    """

    name = "memory"
    direct = True

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.run: Run | None = None

    @property
    def handle(self) -> list[Record]:
        """The list of records."""
        return self.records

    def open(self, run: Run) -> None:
        """Remember what the run is."""
        self.run = run

    def write(self, record: Record) -> None:
        """Keep the record."""
        self.records.append(record)

    def close(self) -> None:
        """Nothing: the records stay."""
