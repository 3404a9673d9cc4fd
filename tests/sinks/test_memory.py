"""Records in a list."""

from __future__ import annotations

from distmetrics.sinks import MemorySink
from tests.sinks.records import record, run


def test_keeps_records_in_order_after_close() -> None:
    """Every record is in the list, in the order in which it came, also after close."""
    sink, here = MemorySink(), run()
    sink.open(here)
    for step in (5, 3):
        sink.write(record(step))
    sink.close()
    assert [row.step for row in sink.records] == [5, 3]
    assert sink.run is here
    assert sink.handle is sink.records
