"""A sink of any manners, made harmless."""

from __future__ import annotations

import inspect
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from distmetrics.record import Record
from distmetrics.sinks import IsolatedSink, MemorySink, Run, Sink
from tests.sinks.records import record, run

PATIENCE = 20.0
"""Seconds after which a test gives up waiting; none waits that long."""


class Scripted(MemorySink):
    """A memory sink that first does what the test says.

    Args:
        before: called with the number of the `write` call, from 1, before the record is kept.
    """

    name = "scripted"
    direct = False

    def __init__(self, before: Callable[[int], None] = lambda call: None) -> None:
        super().__init__()
        self.before = before
        self.calls = 0
        self.closed = 0

    def write(self, row: Record) -> None:
        self.calls += 1
        self.before(self.calls)
        super().write(row)

    def close(self) -> None:
        self.closed += 1


class Gate:
    """Holds a sink's thread until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.leave = threading.Event()

    def __call__(self, _call: int = 0) -> None:
        self.reached.set()
        assert self.leave.wait(PATIENCE)


def isolated(sink: Sink, **options: int) -> tuple[IsolatedSink, list[str]]:
    """The sink, isolated and opened, and what is reported of it."""
    said: list[str] = []
    wrapped = IsolatedSink(sink, said.append, **options)
    wrapped.open(run())
    return wrapped, said


def steps(sink: MemorySink) -> list[int]:
    """The steps that reached the sink."""
    return [row.step for row in sink.records]


def test_records_arrive_in_order() -> None:
    """Single records and batches reach the sink in the order in which they were given."""
    sink = Scripted()
    wrapped, said = isolated(sink)
    wrapped.write(record(5))
    wrapped.write_many([record(3), record(6)])
    assert wrapped.drain(PATIENCE)
    assert steps(sink) == [5, 3, 6]
    assert wrapped.close(PATIENCE)
    assert wrapped.stats() == {"queued": 0, "written": 3, "dropped": 0, "errors": 0}
    assert (sink.closed, said) == (1, [])


def test_records_given_before_open_arrive() -> None:
    """What was queued before the sink is opened is written once it is."""
    sink = Scripted()
    wrapped = IsolatedSink(sink, print)
    wrapped.write(record(1))
    assert not wrapped.drain(0)
    wrapped.open(run())
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [1]


def test_three_network_errors_cost_three_records() -> None:
    """A ConnectionError on calls 3 to 5 is counted thrice, said once, and stops nothing else."""

    def fail(call: int) -> None:
        if 3 <= call <= 5:
            raise ConnectionError(f"call {call}")

    sink = Scripted(fail)
    wrapped, said = isolated(sink)
    wrapped.write_many([record(step) for step in range(10)])
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [0, 1, 5, 6, 7, 8, 9]
    assert wrapped.stats() == {"queued": 0, "written": 7, "dropped": 0, "errors": 3}
    (message,) = said
    assert "'scripted'" in message
    assert "step 2" in message
    assert "ConnectionError: call 3" in message


def test_hung_sink_drops_beyond_its_queue() -> None:
    """A hung sink never blocks the caller; what finds no room is dropped, counted, said once."""
    gate = Gate()
    sink = Scripted(gate)
    wrapped, said = isolated(sink, capacity=4)
    wrapped.write(record(0))
    assert gate.reached.wait(PATIENCE)  # record 0 is in the sink, and still counts
    for step in range(1, 7):
        wrapped.write(record(step))
    wrapped.write_many([record(7), record(8)])
    assert wrapped.stats() == {"queued": 4, "written": 0, "dropped": 5, "errors": 0}
    assert not wrapped.drain(0.01)
    (message,) = said
    assert "step 4" in message
    assert "metrics.jsonl" in message
    gate.leave.set()
    assert wrapped.drain(PATIENCE)
    wrapped.write(record(9))
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [0, 1, 2, 3, 9]
    assert wrapped.stats() == {"queued": 0, "written": 5, "dropped": 5, "errors": 0}
    assert len(said) == 1


def test_batch_fills_the_room_that_is_left() -> None:
    """Of a batch too large for the queue the first records are taken."""
    gate = Gate()
    sink = Scripted(gate)
    wrapped, _ = isolated(sink, capacity=3)
    wrapped.write_many([record(step) for step in range(5)])
    assert wrapped.stats()["dropped"] == 2
    gate.leave.set()
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [0, 1, 2]


def test_failing_open_is_said_and_records_are_dropped() -> None:
    """A sink that cannot open gets no record and no close; its error is reported."""

    class Broken(Scripted):
        def open(self, run: Run) -> None:
            raise OSError("no such server")

    sink = Broken()
    wrapped, said = isolated(sink)
    wrapped.write_many([record(1), record(2)])
    assert wrapped.close(PATIENCE)
    assert wrapped.handle is None
    assert wrapped.stats() == {"queued": 0, "written": 0, "dropped": 2, "errors": 1}
    assert (sink.records, sink.closed) == ([], 0)
    (message,) = said
    assert "opening: OSError: no such server" in message


def test_failing_close_is_said() -> None:
    """An error in close is reported and counted, and close still returns."""

    class Broken(Scripted):
        def close(self) -> None:
            raise SystemExit(3)  # even this

    wrapped, said = isolated(Broken())
    wrapped.write(record(1))
    assert wrapped.close(PATIENCE)
    assert wrapped.stats() == {"queued": 0, "written": 1, "dropped": 0, "errors": 1}
    assert "closing: SystemExit: 3" in said[0]


def test_close_is_bounded_and_idempotent() -> None:
    """Close gives up in time on a hung sink, says so once, and a later call may find it closed."""
    gate = Gate()
    sink = Scripted(gate)
    wrapped, said = isolated(sink)
    wrapped.write_many([record(1), record(2)])
    began = time.monotonic()
    assert not wrapped.close(0.05)
    assert not wrapped.close(0)
    assert time.monotonic() - began < PATIENCE / 2
    (message,) = said
    assert "2 records" in message
    wrapped.write(record(3))  # too late: dropped
    gate.leave.set()
    assert wrapped.close(PATIENCE)
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [1, 2]
    assert sink.closed == 1
    assert wrapped.stats()["dropped"] == 1


def test_never_opened_sink_closes() -> None:
    """A sink that was never opened is closed at once, without a call."""
    sink = Scripted()
    assert IsolatedSink(sink, print).close(0)
    assert sink.closed == 0


def test_slow_opening_does_not_block() -> None:
    """While a sink opens, records queue up and nobody waits; its handle waits for it."""
    gate = Gate()

    class Slow(Scripted):
        def open(self, run: Run) -> None:
            gate()
            super().open(run)

    sink = Slow()
    wrapped, _ = isolated(sink)
    wrapped.write(record(1))
    assert wrapped.stats()["queued"] == 1
    gate.leave.set()
    assert wrapped.handle is sink.records
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [1]


def test_report_that_raises_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    """A report that raises does not end the sink's thread; the message goes to logging."""

    def fail(call: int) -> None:
        if call == 1:
            raise ValueError("first")

    def report(message: str) -> None:
        raise RuntimeError("nobody listens")

    sink = Scripted(fail)
    wrapped = IsolatedSink(sink, report)
    wrapped.open(run())
    wrapped.write_many([record(1), record(2)])
    assert wrapped.close(PATIENCE)
    assert steps(sink) == [2]
    assert "ValueError: first" in caplog.text


def test_state_is_the_sinks_or_the_runs() -> None:
    """State is the sink's own once it is open, else what the run was resumed with."""

    class Remembers(Scripted):
        def state(self) -> dict[str, str]:
            return {"id": "new"}

    gate = Gate()
    wrapped = IsolatedSink(Remembers(gate), print)
    assert wrapped.state() == {}
    wrapped.open(run(state={"id": "old"}))
    wrapped.write(record(1))
    assert gate.reached.wait(PATIENCE)
    assert wrapped.state() == {"id": "new"}
    gate.leave.set()
    assert wrapped.close(PATIENCE)
    plain = IsolatedSink(Scripted(), print)
    plain.open(run(state={"id": "old"}))
    assert plain.close(PATIENCE)
    assert plain.state() == {"id": "old"}


def test_many_writers_lose_nothing() -> None:
    """Records of several threads are all written or counted as dropped."""
    sink = Scripted()
    wrapped, _ = isolated(sink, capacity=50)

    def write() -> None:
        for step in range(500):
            wrapped.write(record(step))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrapped.close(PATIENCE)
    counts = wrapped.stats()
    assert counts["written"] == len(sink.records)
    assert counts["written"] + counts["dropped"] == 2000


def test_a_thread_a_sink_and_no_wakeups_between() -> None:
    """Each isolated sink has one daemon thread, which ends with close."""
    wrapped, _ = isolated(Scripted())
    names = [thread.name for thread in threading.enumerate() if thread.daemon]
    assert names.count("distmetrics-scripted") == 1
    assert wrapped.close(PATIENCE)
    assert "distmetrics-scripted" not in [thread.name for thread in threading.enumerate()]


def test_hung_close_does_not_hold_the_process() -> None:
    """A process whose sink sleeps for a minute in close ends at once after close gave up."""
    script = inspect.cleandoc(
        """
        import threading
        from distmetrics.sinks import IsolatedSink, MemorySink, Run

        class Sleepy(MemorySink):
            def close(self):
                threading.Event().wait(60)

        sink = IsolatedSink(Sleepy(), print)
        sink.open(Run(None, "x", None))
        print(sink.close(0.2))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.splitlines()[-1] == "False"
    assert "did not close within 0.2 s" in done.stdout
