"""One round: all ranks' workers agree on the windows that every rank has passed, and reduce them.

A round is a generator of collectives: it yields what is to be communicated and is sent the result,
so that any driver, a process group or a test that interleaves ranks at will, can run it.

A round takes one snapshot of this rank's streams (`Offer`) and uses nothing newer. Every branch
and every message length below follows from reduced or exchanged data, never from local state:

1. one MAX of a header: for each agreed stream minus its watermark and minus its oldest closed
   window, flags, and the limbs in use;
2. where a flag is up, one exchange of what each rank has that the schema lacks, of its watermarks
   and of its oldest closed windows;
3. where windows are agreed, one SUM and one MAX of their lanes;
4. where those show a doubt (ranks logged different steps, a value that should be the same is not,
   replicas differ), one exchange that settles it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distmetrics.comm.communicator import Op
from distmetrics.exchange.doubts import Warnings, find_doubts
from distmetrics.exchange.message import Agreed, Message, Row
from distmetrics.exchange.schema import COLLECTIVE, Schema, StreamSchema
from distmetrics.exchange.spans import (
    Spans,
    fields_of,
    from_fields,
    own_spans,
    told_spans,
    united,
)
from distmetrics.exchange.topology import Topology
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.labels import NEVER, first_step, label_of, mark_of, step_of
from distmetrics.window.stream import Window, limb_range

Int64Array = NDArray[np.int64]
LEAVES = NEVER - 1
"""Told instead of a last step by a rank that takes part in no later round."""
MOST = 64
"""Windows that are reduced in one round, at most; labels that a rank lists."""


class AllReduce(NamedTuple):
    """A collective: the elementwise sum or maximum of an int64 array."""

    array: Int64Array
    op: Op


class AllGather(NamedTuple):
    """A collective: every rank's JSON, in rank order; `absent` stands for ranks that have left."""

    payload: bytes
    absent: bytes


Round = Generator[AllReduce | AllGather, Any, "Outcome"]


@dataclass(frozen=True)
class Offered:
    """One stream of a rank at the beginning of a round.

    Attributes:
        every: steps of a window; None: one window until a flush.
        pace: what this rank knows of the stream's steps, as `Pace`.
        watermark: the first label that this rank may still close.
        idle: whether nothing is open, so that the watermark may be raised.
        windows: the oldest closed windows that have not been reduced, by label, up to `MOST`; they
            do not change any more.
        table: the rank's keys.
        latest: the last step logged here, -1 for none.
    """

    every: int | None
    pace: int
    watermark: int
    idle: bool
    windows: Mapping[int, Window]
    table: KeyTable
    latest: int


@dataclass(frozen=True)
class Offer:
    """What a rank brings to a round.

    Attributes:
        streams: its streams by name.
        promised: watermarks of agreed streams that this rank has not made.
        closed: whether the rank will log nothing more at all.
        waiting: the streams that a collective call of this rank waits for, and the watermark up
            to which this rank has closed them.
        positions: on rank 0, the label of each stream through which all is written; else empty.
        leaves: whether the rank leaves the others after this round; it is closed and all it had
            is written.
        gone: the ranks that have left before.
    """

    streams: Mapping[str, Offered]
    promised: Mapping[str, int]
    closed: bool
    waiting: Mapping[str, int]
    positions: Mapping[str, int] = field(default_factory=dict)
    leaves: bool = False
    gone: Collection[int] = ()

    @property
    def latest(self) -> int:
        """The last step of the logger itself; `NEVER` once closed, `LEAVES` in the last round."""
        if self.leaves:
            return LEAVES
        root = self.streams.get("")
        if self.closed or root is None:
            return NEVER if self.closed else -1
        return max(root.latest, first_step(root.watermark) - 1)


@dataclass
class Outcome:
    """What a round came to, the same on every rank.

    Attributes:
        rows: the reduced rows, in the order in which they are written.
        left: streams with windows left that could be reduced at once.
        more: whether there are any.
        finished: whether every rank has closed and nothing is left.
        positions: for each stream the label through which rank 0 has written everything.
        latest: for each rank the last step of the logger itself, `NEVER` once it is closed.
        conflicts: declarations that differ, as texts.
        warnings: what was found to differ, by key.
        raised: streams that every rank waits for, and the watermark to which all are raised.
        arrived: of these, those of which nothing is left to be reduced.
        absent: for each stream that some rank waits for, the ranks that do not.
        elsewhere: of these, the streams that they wait for instead, by rank.
        ended: for each collective call that some rank waits for, the ranks that have closed.
        leavers: the ranks that take part in no later round.
    """

    rows: list[Row] = field(default_factory=list)
    left: set[str] = field(default_factory=set)
    more: bool = False
    finished: bool = False
    positions: dict[str, int] = field(default_factory=dict)
    latest: list[int] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    raised: dict[str, int] = field(default_factory=dict)
    arrived: set[str] = field(default_factory=set)
    absent: dict[str, list[int]] = field(default_factory=dict)
    elsewhere: dict[int, list[str]] = field(default_factory=dict)
    ended: dict[str, list[int]] = field(default_factory=dict)
    leavers: list[int] = field(default_factory=list)


class _Pending(NamedTuple):
    """What the ranks together have closed of a stream."""

    watermark: int
    oldest: int
    labels: Mapping[int, tuple[int, ...]] | None
    """label to late steps; None where all is one run on the grid"""
    horizon: int
    """labels above it may be missing from `labels`"""


# --- 1. the header ------------------------------------------------------------------------------

_FLAG, _OPEN, _HI, _LO, _FIXED = range(5)


def run_round(offer: Offer, schema: Schema, topology: Topology) -> Round:
    """A round of this rank; `schema` is updated in step with the other ranks.

    Collective: 1 all-reduce where nothing is agreed, else 3; and up to two all-gathers.
    """
    outcome = Outcome()
    header = yield AllReduce(_header(offer, schema, topology), Op.MAX)
    fixed = _FIXED + topology.world_size
    latest = header[_FIXED:fixed].tolist()
    outcome.latest = [NEVER if step == LEAVES else step for step in latest]
    outcome.leavers = [rank for rank, step in enumerate(latest) if step == LEAVES]
    marks = fixed + 3 * len(list(schema))
    pending = {}
    for stream, fields in zip(schema, header[fixed:marks].reshape(-1, 3).tolist(), strict=True):
        pending[stream.name] = _Pending(-fields[0], -fields[1], None, NEVER)
        outcome.positions[stream.name] = fields[2]
    spans = from_fields(schema, header[marks:].tolist())
    if header[_FLAG]:
        gathered = yield AllGather(_state(offer, schema), _ABSENT)
        peers = [json.loads(payload) for payload in gathered]
        outcome.conflicts = schema.learn([peer["streams"] for peer in peers])
        pending = {stream.name: _listed(stream, peers) for stream in schema}
        told = {name: [_said(peer, name).get("spans", {}) for peer in peers] for name in pending}
        spans = {s.name: united(s, spans.get(s.name, ()), told[s.name]) for s in schema}
        _note_arrivals(peers, outcome)
    agreed = _agree(schema, pending, outcome)
    outcome.arrived = {name for name in outcome.raised if name not in outcome.left}
    outcome.more = bool(outcome.left)
    outcome.finished = (
        not header[_OPEN] and not agreed and all(p.oldest >= NEVER for p in pending.values())
    )
    if agreed:
        outcome.rows = yield from _reduce(offer, agreed, header, spans, topology, outcome)
    return outcome


def _header(offer: Offer, schema: Schema, topology: Topology) -> Int64Array:
    lo, hi = limb_range(w for s in offer.streams.values() for w in s.windows.values())
    flagged = bool(offer.waiting) or any(
        _needs_exchange(stream, schema.get(name), name in schema.aside)
        for name, stream in offer.streams.items()
    )
    header = [int(flagged), int(not offer.closed), hi, -lo]
    latest = [NEVER if rank in offer.gone else -1 for rank in range(topology.world_size)]
    latest[topology.rank] = offer.latest
    header += latest
    for stream in schema:
        position = offer.positions.get(stream.name, -1)
        header += (-_watermark(offer, stream), -_oldest(offer, stream), position)
    for stream in schema:
        offered = offer.streams.get(stream.name)
        windows = {} if offered is None else offered.windows
        table = KeyTable() if offered is None else offered.table
        header += fields_of(own_spans(stream, windows.values(), table))
    return np.array(header, np.int64)


def _watermark(offer: Offer, stream: StreamSchema) -> int:
    offered = offer.streams.get(stream.name)
    return offer.promised.get(stream.name, 0) if offered is None else offered.watermark


def _oldest(offer: Offer, stream: StreamSchema) -> int:
    offered = offer.streams.get(stream.name)
    return NEVER if offered is None else min(offered.windows, default=NEVER)


def _needs_exchange(offered: Offered, stream: StreamSchema | None, aside: bool) -> bool:
    """Whether this rank has something of a stream that the header cannot say."""
    if aside:
        return False
    if stream is None or stream.every != offered.every or offered.pace & ~stream.pace:
        return True
    return bool(stream.unknown(offered.table)) or _is_irregular(offered)


def _is_irregular(offered: Offered) -> bool:
    """Whether the closed windows are no consecutive run on the grid."""
    labels = sorted(offered.windows)[:MOST]
    if not labels:
        return False
    if offered.every is None or any(offered.windows[label].late for label in labels):
        return True
    first = step_of(labels[0])
    run = [label_of(first + offered.every * i) for i in range(len(labels))]
    return labels != run or (first + 1) % offered.every > 0


# --- 2. the exchange ----------------------------------------------------------------------------


def _state(offer: Offer, schema: Schema) -> bytes:
    """What this rank has that the header cannot say, as JSON."""
    streams = {}
    for name, offered in offer.streams.items():
        known = schema.get(name)
        keys = StreamSchema(name, offered.every) if known is None else known
        unknown = keys.unknown(offered.table)
        streams[name] = {
            "every": offered.every,
            "pace": int(offered.pace),
            "keys": unknown,
            "spans": told_spans(unknown, offered.windows.values(), offered.table),
            "watermark": offered.watermark,
            "idle": offered.idle,
            "labels": [
                (label, sorted(offered.windows[label].late))
                for label in sorted(offered.windows)[:MOST]
            ],
        }
    said = {
        "streams": streams,
        "promised": dict(offer.promised),
        "closed": offer.closed,
        "waiting": dict(offer.waiting),
    }
    return json.dumps(said).encode()


def _said(peer: Mapping[str, Any], stream: str) -> Mapping[str, Any]:
    """What a rank said of a stream."""
    said: Mapping[str, Any] = peer["streams"].get(stream, {})
    return said


_ABSENT = json.dumps({"streams": {}, "promised": {}, "closed": True, "waiting": {}}).encode()
"""What a rank has that has left: nothing, and nothing to come."""


def _listed(stream: StreamSchema, peers: Sequence[Mapping[str, Any]]) -> _Pending:
    """What the ranks together have closed of a stream, by their own lists."""
    watermark = horizon = NEVER
    goal = _goal(stream.name, peers)
    if goal is not None and stream.name.startswith(COLLECTIVE):
        return _called(goal)
    labels: dict[int, set[int]] = {}
    for peer in peers:
        mine = peer["streams"].get(stream.name)
        if mine is None:
            # a stream that is new to this rank: it has promised nothing, unless it is closed
            unmade = NEVER if peer["closed"] else 0
            watermark = min(watermark, peer["promised"].get(stream.name, unmade))
            continue
        reached = mine["watermark"]
        if goal is not None and mine["idle"]:
            reached = max(reached, goal)
        watermark = min(watermark, reached)
        for label, late in mine["labels"]:
            labels.setdefault(label, set()).update(late)
        if len(mine["labels"]) >= MOST:
            horizon = min(horizon, mine["labels"][-1][0])
    found = {label: tuple(sorted(labels[label])) for label in sorted(labels)}
    return _Pending(watermark, min(found, default=NEVER), found, horizon)


def _called(goal: int) -> _Pending:
    """The window of a collective call in which all ranks are: the same one, whatever its label.

    Ranks may have made a different number of calls that the others did not come to.
    """
    return _Pending(goal, goal - 1, {goal - 1: ()}, NEVER)


def _goal(name: str, peers: Sequence[Mapping[str, Any]]) -> int | None:
    """The watermark to which a stream is raised on every rank, since all are in a collective call.

    The highest that any rank has closed it to: ranks may have logged different numbers of steps.
    """
    if not all(peer["closed"] or name in peer["waiting"] for peer in peers):
        return None
    return max((peer["waiting"][name] for peer in peers if name in peer["waiting"]), default=None)


def _note_arrivals(peers: Sequence[Mapping[str, Any]], outcome: Outcome) -> None:
    outcome.elsewhere = {rank: list(p["waiting"]) for rank, p in enumerate(peers) if p["waiting"]}
    closed = [rank for rank, peer in enumerate(peers) if peer["closed"]]
    for name in dict.fromkeys(name for peer in peers for name in peer["waiting"]):
        if closed and name.startswith(COLLECTIVE):
            outcome.ended[name] = closed
        goal = _goal(name, peers)
        if goal is not None:
            outcome.raised[name] = goal
            continue
        outcome.absent[name] = [
            rank
            for rank, peer in enumerate(peers)
            if not peer["closed"] and name not in peer["waiting"]
        ]


# --- agreement ----------------------------------------------------------------------------------


def _agree(schema: Schema, pending: Mapping[str, _Pending], outcome: Outcome) -> list[Agreed]:
    """The windows below every rank's watermark, the oldest of each stream first, up to `MOST`."""
    agreed: list[Agreed] = []
    for stream in schema:
        found = pending[stream.name]
        ready = _ready(stream, found)
        room = MOST - len(agreed)
        agreed += [Agreed(stream, label, late) for label, late in ready[:room]]
        limit = min(found.watermark, found.horizon + 1)
        if len(ready) > room:
            limit = ready[room][0]
        if limit < found.watermark and found.oldest < found.watermark:
            outcome.left.add(stream.name)
    return agreed


def _ready(stream: StreamSchema, found: _Pending) -> list[tuple[int, tuple[int, ...]]]:
    if found.labels is not None:
        limit = min(found.watermark, found.horizon + 1)
        return [(label, late) for label, late in found.labels.items() if label < limit]
    if found.oldest >= found.watermark or stream.every is None:
        return []
    stride = mark_of(stream.every)
    most = found.oldest + stride * (MOST + 1)
    return [(label, ()) for label in range(found.oldest, min(found.watermark, most), stride)]


# --- 3. the lanes, 4. doubts --------------------------------------------------------------------


def _reduce(
    offer: Offer,
    agreed: list[Agreed],
    header: Int64Array,
    spans: Spans,
    topology: Topology,
    outcome: Outcome,
) -> Generator[AllReduce | AllGather, Any, list[Row]]:
    """The merged lanes of the agreed windows, as rows in the order in which they are written."""
    limbs = (-int(header[_LO]), int(header[_HI]))
    if limbs[0] >= limbs[1]:
        limbs = (0, 0)
    messages = []
    for stream, group in itertools.groupby(agreed, key=lambda window: window.stream):
        offered = offer.streams.get(stream.name)
        windows = {} if offered is None else offered.windows
        if stream.name.startswith(COLLECTIVE) and stream.name in outcome.raised:
            label = outcome.raised[stream.name] - 1
            windows = dict(zip([label], windows.values(), strict=False))
        table = KeyTable() if offered is None else offered.table
        ranges = (limbs, spans[stream.name])
        messages.append(Message(stream, list(group), windows, table, *ranges, topology))
    outcome.warnings = yield from merge_lanes(messages, topology)
    return [row for message in messages for row in message.rows()]


def merge_lanes(
    messages: Sequence[Message], topology: Topology
) -> Generator[AllReduce | AllGather, Any, Warnings]:
    """Add up the ranks' messages and settle what is in doubt; what a user should know.

    Collective: 2 all-reduces, and an all-gather where something is in doubt.
    """
    warnings: Warnings = []
    sums = yield AllReduce(np.concatenate([message.sums() for message in messages]), Op.SUM)
    maxes = yield AllReduce(np.concatenate([message.maxes() for message in messages]), Op.MAX)
    for message in messages:
        sums, maxes = message.take(sums, maxes)
    doubts = find_doubts(messages)
    if doubts:
        mine = json.dumps([doubt.mine() for doubt in doubts]).encode()
        told = yield AllGather(mine, json.dumps([doubt.nothing for doubt in doubts]).encode())
        peers = [json.loads(payload) for payload in told]
        for index, doubt in enumerate(doubts):
            warnings += doubt.settle([peer[index] for peer in peers], topology)
    return warnings
