"""Completing the record of a run that died: what was spooled and not written, reduced offline.

The rounds are those of the live run, held among the spools of all ranks in this one process, so
that the values have the same bits.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distmetrics.comm.communicator import Op, name_ranks
from distmetrics.comm.inprocess import reduce_arrays
from distmetrics.derivations import Derivations
from distmetrics.errors import DistmetricsWarning
from distmetrics.exchange.round import MOST, AllReduce, Offer, Offered, Outcome, Round, run_round
from distmetrics.exchange.schema import COLLECTIVE, Schema, prefix_of
from distmetrics.exchange.topology import RecordedMesh, Topology
from distmetrics.record import Record
from distmetrics.reduced import Reduced, Results
from distmetrics.reductions import State
from distmetrics.registry import Registry
from distmetrics.rundir import METRICS, SPOOL, describe, lock
from distmetrics.sinks import JsonlSink, Run
from distmetrics.snapshot.table import KeyTable
from distmetrics.spool.read import SpooledRank, read_spool
from distmetrics.window.labels import NEVER, label_of, step_of


@dataclass
class Merged:
    """What `merge` did.

    Attributes:
        written: the rows that it appended to ``metrics.jsonl``.
        waiting: what some rank has not passed, as texts that tell the windows and the ranks.
    """

    written: list[Record] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


def merge(
    run_dir: str | Path, spool_dirs: Iterable[str | Path] = (), partial: bool = False
) -> Merged:
    """Append to ``metrics.jsonl`` what a run had spooled and not written.

    Needs no process group and may be called any number of times: rows that are there are known by
    their logger, window and late step, and are not written again. A torn last line is ignored.

    Args:
        run_dir: of a run that is over.
        spool_dirs: further folders with spools, of nodes that do not share `run_dir`.
        partial: also write windows that not every rank has passed; such a row names the ranks
            whose part is missing.

    Ranks: none.
    Collective: none.

    Raises:
        RunDirError: there is no run, or a process still writes to it.
    """
    run_dir = Path(run_dir)
    description = describe(run_dir)
    with lock(run_dir):
        return complete(run_dir, description, spool_dirs, partial)


def complete(
    run_dir: Path,
    description: Mapping[str, Any],
    spool_dirs: Iterable[str | Path] = (),
    partial: bool = False,
) -> Merged:
    """What `merge` does, for whoever holds the lock of the run directory and has read run.json."""
    found = Merged()
    rows = read_rows(run_dir / METRICS)
    for attempt, ranks in sorted(_spools(run_dir, description, spool_dirs).items()):
        offline = _Offline(description, attempt, ranks, rows)
        found.written += offline.reduce(partial)
        found.waiting += offline.waiting()
    if found.written:
        sink = JsonlSink(run_dir / METRICS)
        sink.open(Run(None, run_dir.name, Registry()))
        sink.write_many(found.written)
        sink.close()
    return found


def read_rows(path: Path) -> list[Record]:
    """The records of a ``metrics.jsonl``; lines that are torn or damaged are left out."""
    rows = []
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                try:
                    rows.append(Record.from_json(line))
                except ValueError:
                    continue
    return rows


def keep_last(rows: Iterable[Record]) -> list[Record]:
    """The rows that are not superseded: of each attempt those before the next one's first step.

    A child whose steps are its own, such as epochs, has a first step of its own. A late row belongs
    to the window that it came with: where that is superseded, its step was logged again too.
    """
    rows = list(rows)
    first: dict[int, dict[str | None, int]] = {}
    for row in rows:
        if not row.late:
            steps = first.setdefault(row.attempt, {})
            steps[row.logger] = min(steps.get(row.logger, row.first_step), row.first_step)

    def limit(steps: Mapping[str | None, int], logger: str | None) -> int:
        return min(steps.get(logger, NEVER), steps.get(None, NEVER))

    return [
        row
        for row in rows
        if all(
            (row.window if row.late else row.step) < limit(steps, row.logger)
            for attempt, steps in first.items()
            if attempt > row.attempt
        )
    ]


def carried_over(
    rows: Iterable[Record], attempt: int, first_step: int, marks: Mapping[str, int]
) -> list[Record]:
    """The rows that an attempt has to write again as its own.

    A checkpoint may lie within a window, which the attempt writes whole. From the first step of
    that window on it supersedes earlier rows, also those of children that were complete then.

    Args:
        rows: of the run.
        attempt: that goes on from the checkpoint.
        first_step: of the window in which the checkpoint lies.
        marks: for each stream the label below which it was complete.
    """
    return [
        replace(row, attempt=attempt)
        for row in keep_last(rows)
        if row.attempt < attempt
        and (row.window if row.late else row.step) >= first_step
        and label_of(row.window) + row.repeat < marks.get(row.logger or "", 0)
    ]


def _spools(
    run_dir: Path, description: Mapping[str, Any], spool_dirs: Iterable[str | Path]
) -> dict[int, dict[int, SpooledRank]]:
    found: dict[int, dict[int, SpooledRank]] = {}
    for folder in (run_dir / SPOOL, *map(Path, spool_dirs)):
        for attempt, ranks in read_spool(folder, description.get("id", "")).items():
            found.setdefault(attempt, {}).update(ranks)
    return found


def identity(row: Record) -> tuple[str, int, int | None]:
    """What makes a row of an attempt one row: its logger, label and late step."""
    label = label_of(row.window) + row.repeat
    return row.logger or "", label, row.step if row.late else None


class _Offline:
    """The ranks of one attempt, by their spools."""

    def __init__(
        self,
        description: Mapping[str, Any],
        attempt: int,
        ranks: Mapping[int, SpooledRank],
        rows: Sequence[Record],
    ) -> None:
        self._attempt = attempt
        mine = [row for row in rows if row.attempt == attempt]
        self._written = {identity(row) for row in mine}
        self._positions: dict[str, int] = {}
        for name, label, _ in self._written:
            self._positions[name] = max(self._positions.get(name, -1), label)
        known = _attempt(description, attempt)
        self._world_size = _world_size(known, ranks, mine)
        self._ranks = [ranks.get(rank, SpooledRank()) for rank in range(self._world_size)]
        mesh = known.get("mesh")
        self._topologies = [
            Topology(rank, self._world_size, None if mesh is None else RecordedMesh(**mesh))
            for rank in range(self._world_size)
        ]
        registry = Registry.from_declarations(
            description["registry"], description["default"], description["strict"]
        )
        self._results = Results(self._topologies[0], Derivations(registry, _warn))
        self._continue(mine)
        self._sent: dict[str, int] = {}

    def reduce(self, partial: bool) -> list[Record]:
        """The rows that are not written yet, in order."""
        found = self._rounds(partial=False)
        return found + self._rounds(partial=True) if partial else found

    def waiting(self) -> list[str]:
        """The windows that are left, and the ranks that have not passed them."""
        found: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        names = dict.fromkeys(name for rank in self._ranks for name in rank.streams)
        for name in names:
            labels = {label for rank in self._ranks for label in self._left(rank, name)}
            for label in sorted(labels):
                ranks = tuple(self._behind(name, label))
                found.setdefault((name, ranks), []).append(step_of(label))
        return [_waiting(name, ranks, windows) for (name, ranks), windows in found.items()]

    def _continue(self, rows: Sequence[Record]) -> None:
        """Take up the running totals where the last written row of each stream left them.

        Those that no row of this attempt holds begin as the attempt itself did.
        """
        totals: dict[str, dict[str, State]] = {}
        for rank in self._ranks:
            for name, stream in rank.streams.items():
                plain = {key: State.from_plain(value) for key, value in stream.totals.items()}
                totals.setdefault(name, {}).update(plain)
        for row in rows:
            name, prefix = row.logger or "", prefix_of(row.logger or "")
            tables = [rank.streams[name].table for rank in self._ranks if name in rank.streams]
            for key in dict.fromkeys(key for table in tables for key in table):
                state = total_of(row, prefix + key.name) if key.reduction.cumulative else None
                if state is not None:
                    totals.setdefault(name, {})[key.name] = state
        for name in {*totals, *self._positions}:
            self._results.continue_from(name, self._positions.get(name, -1), totals.get(name, {}))

    def _rounds(self, partial: bool) -> list[Record]:
        schemas = [Schema() for _ in self._ranks]
        found: list[Record] = []
        while True:
            rounds = [
                run_round(self._offer(rank, partial), schema, topology)
                for rank, schema, topology in zip(
                    self._ranks, schemas, self._topologies, strict=True
                )
            ]
            outcome = _together(rounds)
            for row in outcome.rows:
                self._sent[row.stream.name] = row.label
            names = [stream.name for stream in schemas[0]]
            for reduced in self._results.add(outcome.rows, names):
                record = self._record(reduced)
                if identity(record) not in self._written:
                    self._written.add(identity(record))
                    found.append(record)
            if not outcome.rows and not outcome.more:
                return found

    def _record(self, reduced: Reduced) -> Record:
        missing = self._behind(reduced.row.stream.name, reduced.row.label)
        return reduced.record(self._world_size, self._attempt, missing)

    def _behind(self, name: str, label: int) -> list[int]:
        """The ranks that may have had more to add to a window."""
        return [rank for rank, spooled in enumerate(self._ranks) if spooled.lacks(name, label)]

    def _left(self, rank: SpooledRank, name: str) -> list[int]:
        stream = rank.streams.get(name)
        sent = self._sent.get(name, -1)
        labels = [] if stream is None else sorted(stream.windows)
        return [label for label in labels if label > sent and not name.startswith(COLLECTIVE)]

    def _offer(self, rank: SpooledRank, partial: bool) -> Offer:
        marks = {
            name: NEVER if partial else rank.passed(name, self._positions.get(name, -1))
            for name in rank.watermarks
            if not name.startswith(COLLECTIVE)
        }
        names = dict.fromkeys(name for spooled in self._ranks for name in spooled.streams)
        streams = {}
        for name in names:
            if name.startswith(COLLECTIVE):
                continue
            stream = rank.streams.get(name)
            if stream is None and not partial:
                continue
            every = next(r.streams[name].every for r in self._ranks if name in r.streams)
            labels = self._left(rank, name)[:MOST]
            streams[name] = Offered(
                every,
                False,
                NEVER if partial else marks.get(name, 0),
                True,
                {} if stream is None else {label: stream.windows[label] for label in labels},
                KeyTable() if stream is None else stream.table,
                -1,
            )
        closed = partial or marks.get("", 0) >= NEVER
        promised = {name: mark for name, mark in marks.items() if name not in streams}
        return Offer(streams, promised, closed, {})


def _waiting(name: str, ranks: Sequence[int], windows: Sequence[int]) -> str:
    """Windows that wait for the same ranks, for people."""
    which = f"window {windows[0]}"
    if len(windows) > 1:
        which = f"{len(windows)} windows ({windows[0]} to {windows[-1]})"
    where = f" of child {name!r}" if name else ""
    verb = "waits" if len(windows) == 1 else "wait"
    return f"{which}{where} {verb} for {name_ranks(ranks) if ranks else 'windows before them'}"


def _warn(text: str) -> None:
    warnings.warn(text, DistmetricsWarning, stacklevel=2)


def total_of(row: Record, key: str) -> State | None:
    """The state of a running total up to a row, by the key's name there; None: it has none."""
    value = row.values.get(key)
    if isinstance(value, int):
        return State.of_int(value)
    return State.from_plain(row.exact[key]) if key in row.exact else None


def _attempt(description: Mapping[str, Any], attempt: int) -> Mapping[str, Any]:
    """What run.json says of an attempt."""
    found = [entry for entry in description["attempts"] if entry["attempt"] == attempt]
    return found[0] if found else description


def _world_size(
    known: Mapping[str, Any], ranks: Mapping[int, SpooledRank], rows: Sequence[Record]
) -> int:
    """The number of ranks of an attempt: by the run's own word, its rows and its spools."""
    return max(int(known["world_size"]), max(ranks) + 1, *(row.world_size for row in rows), 1)


def _together(rounds: Sequence[Round]) -> Outcome:
    """Hold a round among generators; the outcome, which is the same for all."""
    answers: list[Any] = [None] * len(rounds)
    while True:
        requests = []
        for round_, answer in zip(rounds, answers, strict=True):
            try:
                requests.append(round_.send(answer))
            except StopIteration as end:
                outcome: Outcome = end.value
        if not requests:
            return outcome
        first = requests[0]
        if isinstance(first, AllReduce):
            arrays = [request.array for request in requests if isinstance(request, AllReduce)]
            total = reduce_arrays(arrays, Op(first.op))
            answers = [total.copy() for _ in rounds]
        else:
            answers = [[r.payload for r in requests if not isinstance(r, AllReduce)]] * len(rounds)
