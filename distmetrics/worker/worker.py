"""The thread that takes windows to records: rounds with the other ranks' workers, in order.

Workers wait for workers, never for a training thread.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from distmetrics.comm.communicator import Communicator, name_ranks
from distmetrics.comm.reunion import Missing
from distmetrics.derivations import Derivations
from distmetrics.errors import DeclarationConflict, DistmetricsError, PeerLostError, in_words
from distmetrics.exchange.message import Row
from distmetrics.exchange.round import AllReduce, Outcome, Round, run_round
from distmetrics.exchange.schema import COLLECTIVE, Schema
from distmetrics.exchange.topology import Topology
from distmetrics.reduced import Reduced, Results
from distmetrics.worker.calls import Answer, Calls, differing
from distmetrics.worker.checkpoint import STATE, capture
from distmetrics.worker.events import Ticket
from distmetrics.worker.holdups import Holdups
from distmetrics.worker.peers import Peers
from distmetrics.worker.streams import Streams
from distmetrics.worker.writer import Writer

_LOG = logging.getLogger("distmetrics")
IDLE = 0.5
"""Seconds between rounds in which nothing waits, at most."""
GATHERING = 0.25
"""Seconds between rounds while closed windows wait, so that several share a round."""
SPOOLING = 0.2
"""Seconds between looks for closed windows to spool while a round is under way."""
BREATH = 0.02
"""Seconds between two writes to the spool, at least."""
NAMING = 0.25
"""Seconds in which the ranks that are left notice that one is gone, before it is looked for."""
STRAGGLING = 1.0
"""Seconds by which ranks may notice later than others that one has been silent for too long."""
STAYING = 2.0
"""Seconds for which a closed rank waits for lost ones that may come back."""
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
                result = communicator.all_gather(request.payload, request.absent)
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
        silence: seconds after which a rank that does not answer, though it may live, is lost.
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
        silence: float = 60.0,
        holdups: Holdups | None = None,
        derivations: Derivations | None = None,
    ) -> None:
        self.results = Results(topology, derivations)
        self.rounds = 0
        self.failure: Exception | None = None
        self.apart = False
        self._streams = streams
        self._communicator = communicator
        self._topology = topology
        self._writer = writer
        self._tell = tell
        self._attempt = attempt
        self._raise_lost = raise_lost
        self._idle = idle
        self._silence = silence
        self._holdups = holdups
        self._peers = Peers()
        self._calls = Calls()
        self._owed: list[Ticket] = []
        self._met = time.monotonic()
        self._leaving = False
        self._finished = False
        self._schema = Schema()
        self._positions: dict[str, int] = {}
        self._reached: dict[str, int] = {}
        self._warned: set[str] = set()
        self._wake = threading.Event()
        self._abandoned = False
        self._failing = threading.Lock()
        self._fault: Exception | None = None
        self._ended = threading.Event()
        self._flushed = threading.Event()
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

    def spool_soon(self) -> None:
        """Take what was flushed to the spool at once."""
        self._flushed.set()

    def join(self, timeout: float | None) -> bool:
        """Whether the worker has ended within `timeout` seconds: all ranks closed, or it failed."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._spooler.is_alive():  # it goes on after a failure
            self._ended.set()
            self._flushed.set()
            self._spooler.join(timeout)
        return True

    def leave(self) -> None:
        """Leave once all that this rank has logged is written; the others go on without it."""
        self._leaving = self._writer is None  # without the rank that writes nobody can go on
        self._wake.set()

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
                self._finished = outcome.finished
                if outcome.finished or self._topology.rank in outcome.leavers:
                    break
                if outcome.leavers:
                    who = name_ranks(outcome.leavers)
                    if self._meet_again(PeerLostError(f"{who} left, and the others reconnect")):
                        continue
                    break
                self._pause(outcome)
        except Exception as error:  # noqa: BLE001 - it must reach the training thread, whatever it is
            self._fail(error)
            self._streams.give_up()
        finally:
            self._communicator.close(self._finished)
            self._pay()
            self._release(
                self.failure
                or DistmetricsError("the logger was closed while this call waited for other ranks")
            )
            if not self._spooler.is_alive():
                self._streams.close()
            elif self._streams.closed or self._abandoned:
                self._ended.set()
                self._flushed.set()

    def _spool(self) -> None:
        """Keep the spool up to date, whatever the rounds wait for or end by."""
        try:
            while not self._ended.is_set():
                self._flushed.wait(SPOOLING)
                self._flushed.clear()
                self._streams.collect()
                self._ended.wait(BREATH)  # what is flushed meanwhile goes together
            self._streams.collect()
        except Exception as error:  # noqa: BLE001 - it must reach the training thread
            self._fail(error)
            self._wake.set()  # the rounds end by it too
        finally:
            self._streams.close()

    def collect(self) -> None:
        """Take in what this rank has logged, in any thread; where that fails the user is told."""
        try:
            self._streams.collect()
        except Exception as error:  # noqa: BLE001 - it must reach the training thread
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """This rank's worker ends by a fault of its own, which several threads may come upon."""
        with self._failing:
            if error is self._fault:
                return
            self._fault = self.failure = error
        _LOG.error("the logger's worker failed", exc_info=error)
        self._tell(
            f"the logger's worker ended: {in_words(error)}; the training goes on, "
            f"but nothing more of this rank is reduced: {self._fate()}"
        )

    def _fate(self) -> str:
        """What becomes of what this rank has logged, now that its worker has ended."""
        streams = self._streams
        if not streams.spooling:
            return "what is not written is lost, for want of a spool"
        merging = "`distmetrics merge RUN_DIR` completes the record"
        if streams.failure is None:
            return f"closed windows wait in the spool, and {merging}"
        if streams.spooled_step < 0:
            return "what it has logged is lost"
        return f"what it has logged after step {streams.spooled_step} is lost; through it {merging}"

    def meet(self) -> Round:
        """One round with the other workers and what follows from it, as a generator."""
        self._wake.clear()
        offer = self._streams.offer(self._positions)
        offer = replace(
            offer,
            leaves=self._leaving and offer.closed and not self._streams.kept,
            gone=self._peers.gone,
        )
        outcome = yield from run_round(offer, self._schema, self._topology)
        self._met = time.monotonic()
        self.rounds += 1
        self._peers.note(outcome)
        self._streams.settle(outcome, self._schema)
        if self._holdups is not None:
            self._holdups.look(outcome, self._streams.backlog(), time.monotonic())
        reduced = self.results.add(outcome.rows, [stream.name for stream in self._schema])
        if self._writer is not None:
            self._commit(self._writer, outcome.rows, reduced)
        self._report(outcome)
        self._serve(outcome)
        if STATE in outcome.arrived and STATE not in outcome.ended and not outcome.more:
            opens = self._streams.open_windows()
            state = yield from capture(offer, opens, self._schema, self.results, self._topology)
            self._answer({STATE: Answer(outcome.raised[STATE], state)})
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
        self._note_absent(outcome)
        if STATE in outcome.ended:
            self._let_go(self._streams.calls.refuse({STATE: self._stateless(outcome.ended[STATE])}))
        answers = {}
        for name in sorted(outcome.arrived - {STATE}):
            reached = outcome.raised[name]
            label = reached - 1 if name.startswith(COLLECTIVE) else None  # of this call, no other
            closed = outcome.ended.get(name, ())
            answers[name] = Answer(reached, self.results.last(name, label), closed)
        self._answer(answers)
        if not outcome.more:
            self._pay()

    def _note_absent(self, outcome: Outcome) -> None:
        """Let the waiting calls know whom they wait for, as long as some rank waits for them."""
        for ticket in self._streams.calls:
            name = ticket.stream
            if name in outcome.absent:
                absent = outcome.absent[name]
                ticket.absent = {rank: outcome.latest[rank] for rank in absent}
                ticket.elsewhere |= outcome.elsewhere
                ticket.elsewhere = {r: s for r, s in ticket.elsewhere.items() if r in absent}
            elif name in outcome.raised:
                ticket.absent, ticket.elsewhere = {}, {}

    def _stateless(self, closed: Sequence[int]) -> PeerLostError:
        """Why there is no state to be had once ranks have closed."""
        has = "has closed its logger" if len(closed) == 1 else "have closed their loggers"
        return PeerLostError(
            f"state_dict: {name_ranks(closed)} {has}, and a state of the others would lack "
            "that part of the windows that are not over; take the state before any rank closes",
            closed[0],
            self._peers.last_step(closed[0]),
        )

    def _pay(self) -> None:
        """Let the calls return that have returned on other ranks before."""
        owed, self._owed = self._owed, []
        self._let_go(owed)

    def _answer(self, answers: Mapping[str, Answer]) -> None:
        """Let the calls that wait for these streams return."""
        for name, answer in answers.items():
            self._calls.note(name, answer)
        self._let_go(self._streams.calls.answer(answers))

    def _let_go(self, tickets: Sequence[Ticket]) -> None:
        """Let calls return, of which it is known what they return."""
        if tickets and self._writer is not None:
            self._writer.drain(SETTLING)
        for ticket in tickets:
            ticket.done.set()

    def _pause(self, outcome: Outcome) -> None:
        if outcome.more or self._streams.calls or self._streams.closed:
            return  # a closed rank's next round begins when the others' does
        self._wake.wait(min(GATHERING, self._idle) if self._streams.backlog() else self._idle)

    # --- peers that vanish ---

    def _meet_again(self, error: PeerLostError) -> bool:
        """Wait until all ranks are connected again, and tell who is missing.

        Returns:
            Whether they are; False where this rank is to leave.
        """
        began = time.monotonic()
        # the others notice in their next round
        patience = max(NAMING, self._met + self._idle + NAMING - began)
        self.apart = True
        while not self._abandoned:
            if self._streams.failure is not None:
                raise self._streams.failure
            missing: Missing | None = None
            try:
                missing = self._communicator.regroup(patience, self._peers.gone)
                if missing is None:
                    self._recover()
                    self.apart = False
                    self._welcome()
                    return True
            except PeerLostError as again:
                error = again
            if missing is not None and missing.finished:
                self._finished = True  # the others have seen the end of the last round
                return False
            waited = time.monotonic() - began
            self._look_for_losses(missing, waited, error)
            if self.failure is not None:
                self._release(self.failure)
                if self._streams.closed and waited >= STAYING:
                    return False
            patience = self._idle
            self._wake.wait(self._idle)
            self._wake.clear()
        return False

    def _look_for_losses(
        self, missing: Missing | None, waited: float, error: PeerLostError
    ) -> None:
        """Tell of the ranks that are lost, where nobody has been told of them.

        A rank that is only slow is not lost as long as its process lives and its silence is short.
        """
        silence = time.monotonic() - self._met
        mute = silence > self._silence and waited > STRAGGLING
        if missing is None:  # all were found, and could not be connected
            if self.failure is None and mute:
                self._tell_lost(error, [])
            return
        if self.failure is not None and self._streams.closed:
            return  # others leave while this rank does
        silent = missing.silent if mute else ()
        if self._peers.newly_lost((*missing.dead, *silent)):
            why = error if missing.dead else PeerLostError(f"no answer for {silence:.1f} s")
            self._tell_lost(why, sorted((*missing.dead, *silent)))

    def _tell_lost(self, why: PeerLostError, missing: list[int]) -> None:
        if self._streams.spooling:
            keeping = "wait in the spool: `distmetrics merge RUN_DIR` completes the record"
        else:
            keeping = "are kept in memory until the ranks are connected again, for want of a spool"
        waiting, keys = self._streams.backlog(), self._streams.keys()
        lost = self._peers.lose(missing, why, waiting, keys, keeping)
        self.failure = lost
        self._tell(lost if self._raise_lost else str(lost))

    def _welcome(self) -> None:
        """All ranks are connected again."""
        found = self._peers.found_again()
        if found or self.failure is not None:
            who = name_ranks(found) if found else "all ranks"
            self._tell(f"{who} can be reached again: the logger goes on, nothing is lost")
        self.failure = None

    def _recover(self) -> None:
        """Agree again on what a broken round may have left different: rank 0's word holds."""
        state: dict[str, Any] = {"schema": self._schema.state(), "calls": self._calls.counts}
        state["broken"] = self._streams.calls.has_broken
        if self._writer is not None:
            state |= {"reached": self._reached, "results": self.results.told()}
        parts = self._communicator.all_gather(json.dumps(state).encode())
        told = [json.loads(part) for part in parts if part]
        schema = Schema()
        schema.unite([peer["schema"] for peer in told])
        self._schema = schema
        self._streams.rewind(told[0]["reached"])
        self.results.adopt(told[0]["results"])
        self._catch_up([peer["calls"] for peer in told])
        if any(peer["broken"] for peer in told):
            with self._streams.calls.telling_broken() as counts:
                parts = self._communicator.all_gather(json.dumps(counts).encode())
                counted = [json.loads(part) if part else {} for part in parts]
                refused = self._streams.calls.align(counted)
            self._let_go(refused)

    def _catch_up(self, counts: Sequence[Mapping[str, int]]) -> None:
        """Answer the calls that have returned on other ranks, once all is reduced here too."""
        streams = differing(counts)
        if not streams:
            return
        mine = json.dumps(self._calls.told(streams)).encode()
        parts = [part for part in self._communicator.all_gather(mine) if part]
        missed = self._calls.catch_up(counts, [json.loads(part) for part in parts])
        self._owed += self._streams.calls.answer_missed(missed)
        self._streams.catch_up({name: answer.reached for name, answer in missed.items()})

    def _release(self, error: Exception) -> None:
        for ticket in self._streams.break_off(isinstance(error, PeerLostError)):
            ticket.error = error
            ticket.done.set()
        if self._streams.failure is not None:
            self._fail(self._streams.failure)
