"""The thread that takes windows to records: rounds with the other ranks' workers, in order.

Workers wait for workers, never for a training thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from distmetrics.comm.communicator import Communicator
from distmetrics.errors import DeclarationConflict, DistmetricsError, PeerLostError
from distmetrics.exchange.message import Row
from distmetrics.exchange.round import AllReduce, Outcome, Round, run_round
from distmetrics.exchange.schema import COLLECTIVE, Schema
from distmetrics.exchange.topology import Topology
from distmetrics.reduced import Reduced, Results
from distmetrics.worker.streams import Streams
from distmetrics.worker.writer import Writer

IDLE = 0.5
"""Seconds between rounds in which nothing waits, at most."""
GATHERING = 0.25
"""Seconds between rounds while closed windows wait, so that several share a round."""
SETTLING = 1.0
"""Seconds that rank 0 gives its sinks before a collective call returns."""


def drive(round_: Round, communicator: Communicator) -> Outcome:
    """Run a round over a communicator.

    Raises:
        PeerLostError: a peer is gone.
    """
    try:
        request = next(round_)
        while True:
            result: Any
            if isinstance(request, AllReduce):
                result = communicator.all_reduce(request.array, request.op)
            else:
                result = communicator.all_gather(request.payload)
            request = round_.send(result)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


class Worker:
    """One rank's worker of one logger.

    Args:
        streams: what the training thread did.
        communicator: a group of the workers' own.
        topology: which ranks are replicas.
        writer: the sinks, on rank 0.
        tell: receives what the training thread should learn at its next call: a text to warn of,
            or an error to raise.
        attempt: of the run.
    """

    def __init__(
        self,
        streams: Streams,
        communicator: Communicator,
        topology: Topology,
        writer: Writer | None,
        tell: Callable[[str | DistmetricsError], None],
        attempt: int = 0,
    ) -> None:
        self.results = Results(topology)
        self.rounds = 0
        self.failure: Exception | None = None
        self._streams = streams
        self._communicator = communicator
        self._topology = topology
        self._writer = writer
        self._tell = tell
        self._attempt = attempt
        self._schema = Schema()
        self._positions: dict[str, int] = {}
        self._warned: set[str] = set()
        self._wake = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="distmetrics", daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()

    def wake(self) -> None:
        """Begin the next round at once."""
        self._wake.set()

    def join(self, timeout: float | None) -> bool:
        """Whether the worker has ended within `timeout` seconds: all ranks closed, or it failed."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Leave after the round under way, whoever still waits."""
        self._abandoned = True
        self._wake.set()

    def _run(self) -> None:
        try:
            while not self._abandoned:
                outcome = drive(self.meet(), self._communicator)
                if outcome.finished:
                    break
                self._pause(outcome)
        except PeerLostError as error:
            self._fail(self._lost(error))
        except Exception as error:  # noqa: BLE001 - it must reach the training thread, whatever it is
            self._fail(error)
        finally:
            self._communicator.close()
            self._release(
                DistmetricsError("the logger was closed while this call waited for other ranks")
            )

    def meet(self) -> Round:
        """One round with the other workers and what follows from it, as a generator."""
        self._wake.clear()
        offer = self._streams.offer(self._positions)
        outcome = yield from run_round(offer, self._schema, self._topology)
        self.rounds += 1
        self._streams.settle(outcome, self._schema)
        reduced = self.results.add(outcome.rows)
        if self._writer is not None:
            self._commit(self._writer, outcome.rows, reduced)
        self._report(outcome)
        self._serve(outcome)
        return outcome

    def _commit(self, writer: Writer, rows: list[Row], reduced: list[Reduced]) -> None:
        """Write the records, then let the others forget what they hold."""
        records = [
            row.record(self._topology.world_size, self._attempt)
            for row in reduced
            if not row.row.stream.name.startswith(COLLECTIVE)
        ]
        writer.write(records)
        for row in rows:
            self._positions[row.stream.name] = row.label

    def _report(self, outcome: Outcome) -> None:
        for text in outcome.conflicts:
            self._tell(DeclarationConflict(text))
        for key, text in outcome.warnings:
            if key not in self._warned:
                self._warned.add(key)
                self._tell(text)
        for error in self._streams.take_errors():
            self._tell(error)

    def _serve(self, outcome: Outcome) -> None:
        """Give the waiting calls what they wait for."""
        waiting = self._streams.waiting
        for ticket in list(waiting):
            ticket.absent = {
                rank: outcome.latest[rank] for rank in outcome.absent.get(ticket.stream, [])
            }
            if ticket.stream in outcome.arrived:
                if self._writer is not None:
                    self._writer.drain(SETTLING)
                waiting.remove(ticket)
                ticket.values = self.results.last(ticket.stream)
                ticket.reached = outcome.raised[ticket.stream]
                ticket.done.set()

    def _pause(self, outcome: Outcome) -> None:
        if outcome.more or self._streams.waiting or self._streams.closed:
            return  # a closed rank's next round begins when the others' does
        self._wake.wait(GATHERING if self._streams.backlog() else IDLE)

    def _lost(self, error: PeerLostError) -> PeerLostError:
        left = self._streams.backlog()
        return PeerLostError(
            f"{error}; {left} closed windows of this rank were not reduced, and nothing more will "
            "be written",
            error.rank,
            error.step,
            error.key,
        )

    def _fail(self, error: Exception) -> None:
        self.failure = error
        self._tell(str(error) if isinstance(error, PeerLostError) else _unexpected(error))
        self._release(error)

    def _release(self, error: Exception) -> None:
        self._streams.collect()
        for ticket in list(self._streams.waiting):
            self._streams.waiting.remove(ticket)
            ticket.error = error
            ticket.done.set()


def _unexpected(error: Exception) -> DistmetricsError:
    wrapped = DistmetricsError(
        f"the logger's worker ended: {type(error).__name__}: {error}; nothing more is reduced"
    )
    wrapped.__cause__ = error
    return wrapped
