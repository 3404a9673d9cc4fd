"""The thread that takes windows to records: rounds with the other ranks' workers, in order.

Workers wait for workers, never for a training thread.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from distmetrics.comm.communicator import Communicator, name_ranks
from distmetrics.derivations import Derivations
from distmetrics.errors import DeclarationConflict, DistmetricsError, PeerLostError
from distmetrics.exchange.message import Row
from distmetrics.exchange.round import AllReduce, Outcome, Round, run_round
from distmetrics.exchange.schema import COLLECTIVE, Schema
from distmetrics.exchange.topology import Topology
from distmetrics.reduced import Reduced, Results
from distmetrics.window.stream import NEVER
from distmetrics.worker.checkpoint import STATE, capture
from distmetrics.worker.holdups import Holdups
from distmetrics.worker.streams import Streams
from distmetrics.worker.writer import Writer

IDLE = 0.5
"""Seconds between rounds in which nothing waits, at most."""
GATHERING = 0.25
"""Seconds between rounds while closed windows wait, so that several share a round."""
SPOOLING = 0.2
"""Seconds between looks for closed windows to spool while a round is under way."""
NAMING = 0.4
"""Seconds in which the ranks that are left notice that one is gone, before the absent are named."""
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
        raise_lost: a lost peer is told as an error to raise, not as a text.
        idle: seconds between rounds in which nothing waits, at most; less than the others wait.
        holdups: names ranks for which records wait; on the rank that says so.
        derivations: the derived keys.
    """

    def __init__(
        self,
        streams: Streams,
        communicator: Communicator,
        topology: Topology,
        writer: Writer | None,
        tell: Callable[[str | DistmetricsError], None],
        attempt: int = 0,
        raise_lost: bool = False,
        idle: float = IDLE,
        holdups: Holdups | None = None,
        derivations: Derivations | None = None,
    ) -> None:
        self.results = Results(topology, derivations)
        self.rounds = 0
        self.failure: Exception | None = None
        self._streams = streams
        self._communicator = communicator
        self._topology = topology
        self._writer = writer
        self._tell = tell
        self._attempt = attempt
        self._raise_lost = raise_lost
        self._idle = idle
        self._holdups = holdups
        self._latest: list[int] = []
        self._schema = Schema()
        self._positions: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._warned: set[str] = set()
        self._wake = threading.Event()
        self._abandoned = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="distmetrics", daemon=True)
        self._spooler = threading.Thread(target=self._spool, name="distmetrics-spool", daemon=True)

    def start(self) -> None:
        """Begin the rounds."""
        self._thread.start()
        if self._streams.spooling:
            self._spooler.start()

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
                try:
                    outcome = drive(self.meet(), self._communicator)
                except PeerLostError as error:
                    if self._meet_again(error):
                        continue
                    break
                if outcome.finished:
                    break
                self._pause(outcome)
        except Exception as error:  # noqa: BLE001 - it must reach the training thread, whatever it is
            self.failure = error
            self._tell(_unexpected(error))
        finally:
            self._communicator.close()
            self._release(
                self.failure
                or DistmetricsError("the logger was closed while this call waited for other ranks")
            )
            self._ended.set()
            self._streams.close()

    def _spool(self) -> None:
        """Keep the spool up to date, whatever the rounds wait for."""
        while not self._ended.wait(SPOOLING):
            self._streams.collect()

    def meet(self) -> Round:
        """One round with the other workers and what follows from it, as a generator."""
        self._wake.clear()
        offer = self._streams.offer(self._positions)
        outcome = yield from run_round(offer, self._schema, self._topology)
        self.rounds += 1
        self._latest = outcome.latest
        self._streams.settle(outcome, self._schema)
        if self._holdups is not None:
            self._holdups.look(outcome, self._streams.backlog(), time.monotonic())
        reduced = self.results.add(outcome.rows, [stream.name for stream in self._schema])
        if self._writer is not None:
            self._commit(self._writer, outcome.rows, reduced)
        self._report(outcome)
        self._serve(outcome)
        if STATE in outcome.arrived and not outcome.more:
            opens = self._streams.open_windows()
            state = yield from capture(offer, opens, self._schema, self.results, self._topology)
            self._serve_state(state, outcome)
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
            self._reached[row.stream.name] = row.label
        if writer.committed:  # only then may the others forget it
            self._positions = dict(self._reached)

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
        for ticket in list(self._streams.waiting):
            ticket.absent = {
                rank: outcome.latest[rank] for rank in outcome.absent.get(ticket.stream, [])
            }
        for ticket in self._streams.take(outcome.arrived - {STATE}):
            if self._writer is not None:
                self._writer.drain(SETTLING)
            ticket.reached = outcome.raised[ticket.stream]
            called = ticket.stream.startswith(COLLECTIVE)
            label = ticket.reached - 1 if called else None  # of this call and no other
            ticket.values = self.results.last(ticket.stream, label)
            ticket.done.set()

    def _serve_state(self, state: dict[str, Any], outcome: Outcome) -> None:
        for ticket in self._streams.take({STATE}):
            ticket.values = state
            ticket.reached = outcome.raised[STATE]
            ticket.done.set()

    def _pause(self, outcome: Outcome) -> None:
        if outcome.more or self._streams.waiting or self._streams.closed:
            return  # a closed rank's next round begins when the others' does
        self._wake.wait(min(GATHERING, self._idle) if self._streams.backlog() else self._idle)

    # --- peers that vanish ---

    def _meet_again(self, error: PeerLostError) -> bool:
        """Tell that a peer is lost, and wait until all ranks are connected again.

        Returns:
            Whether they are; False where this rank is to leave.
        """
        absent: list[int] | None = None
        while not self._abandoned:
            try:
                missing = self._communicator.regroup(NAMING if absent is None else IDLE)
                if not missing:
                    self._recover()
                    if absent:
                        self._tell(f"{name_ranks(absent)} can be reached again: the logger goes on")
                    self.failure = None
                    return True
            except PeerLostError as again:
                missing, error = [], again
            if absent is None:
                absent = missing
                self.failure = self._lost(error, missing)
                self._tell(self.failure if self._raise_lost else str(self.failure))
            self._release(self.failure or error)
            if self._streams.closed:
                return False
            self._wake.wait(IDLE)
            self._wake.clear()
        return False

    def _lost(self, error: PeerLostError, missing: list[int]) -> PeerLostError:
        """The error that names the rank, its last step and what waits for it."""
        rank = missing[0] if missing else None
        step = self._latest[rank] if rank is not None and self._latest else None
        keys = self._streams.keys_of("")
        who = name_ranks(missing) if missing else "a rank"
        said = "" if step is None or step >= NEVER else f" after step {step}"
        holds = f" (keys {', '.join(map(repr, keys[:4]))})" if keys else ""
        return PeerLostError(
            f"{who} is lost{said}: {error}. The training goes on; {self._streams.backlog()} closed "
            f"windows{holds} and those to come {self._keeping}",
            rank,
            step,
            keys[0] if keys else None,
        )

    @property
    def _keeping(self) -> str:
        if self._streams.spooling:
            return "wait in the spool, from which `distmetrics merge RUN_DIR` completes the record"
        return "are kept in memory until the ranks are connected again, for want of a spool"

    def _recover(self) -> None:
        """Agree again on what a broken round may have left different."""
        state = {"schema": self._schema.state(), "positions": self._positions}
        told = [
            json.loads(part) for part in self._communicator.all_gather(json.dumps(state).encode())
        ]
        schema = Schema()
        schema.unite([peer["schema"] for peer in told])
        self._schema = schema
        self._streams.rewind(told[0]["positions"])

    def _release(self, error: Exception) -> None:
        for ticket in self._streams.break_off():
            ticket.error = error
            ticket.done.set()


def _unexpected(error: Exception) -> DistmetricsError:
    wrapped = DistmetricsError(
        f"the logger's worker ended: {type(error).__name__}: {error}; nothing more is reduced"
    )
    wrapped.__cause__ = error
    return wrapped
