"""The state of a logger at a checkpoint: running totals, steps, and the windows that are open.

It is merged over ranks, so that it can be loaded at any world size, and made of plain Python
values, so that ``torch.load(weights_only=True)`` reads it back.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from distmetrics import exact
from distmetrics.exchange.message import Agreed, Message, Row
from distmetrics.exchange.round import AllGather, AllReduce, Offer, Offered, merge_lanes
from distmetrics.exchange.schema import COLLECTIVE, Schema, StreamSchema, declare
from distmetrics.exchange.spans import told_spans, united
from distmetrics.exchange.topology import Topology
from distmetrics.reduced import Results, row_states
from distmetrics.reductions import Counter, State
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.lanes import Lanes, Slot
from distmetrics.window.steps import Steps, union
from distmetrics.window.stream import Window, limb_range
from distmetrics.window.tallies import Tallies
from distmetrics.worker.saved import VERSION

STATE = f"{COLLECTIVE}state"
"""The stream by whose flush the ranks meet to take a checkpoint."""


def capture(
    offer: Offer,
    opens: Mapping[str, Window],
    schema: Schema,
    results: Results,
    topology: Topology,
) -> Generator[AllReduce | AllGather, Any, dict[str, Any]]:
    """The state of all agreed streams, the same on every rank.

    Args:
        offer: what this rank brought to the round.
        opens: its open windows, folded; they stay open.
        schema: what is agreed.
        results: the running totals.
        topology: which ranks are replicas.

    Ranks: all, when every closed window has been reduced.
    Collective: 1 all-gather, 2 all-reduces and at most another all-gather.
    """
    mine = {
        name: _told(offered, opens.get(name), schema.get(name))
        for name, offered in offer.streams.items()
    }
    said = {"limbs": limb_range(opens.values()), "streams": mine}
    nothing = {"limbs": limb_range(()), "streams": {}}
    told = yield AllGather(json.dumps(said).encode(), json.dumps(nothing).encode())
    peers = [json.loads(part) for part in told]
    limbs = (min(p["limbs"][0] for p in peers), max(p["limbs"][1] for p in peers))
    if limbs[0] >= limbs[1]:
        limbs = (0, 0)  # nothing open has a sum
    real = [stream for stream in schema if not stream.name.startswith(COLLECTIVE)]
    messages = []
    for stream in real:
        of = [p["streams"][stream.name] for p in peers if stream.name in p["streams"]]
        late = tuple(sorted({step for part in of for step in part["late"]}))
        window = opens.get(stream.name)
        own = offer.streams.get(stream.name)
        table = KeyTable() if own is None else own.table
        windows = {} if window is None else {0: window}
        spans = united(stream, (), [part["spans"] for part in of])
        agreed = [Agreed(stream, 0, late)]
        messages.append(Message(stream, agreed, windows, table, limbs, spans, topology))
    yield from merge_lanes(messages, topology)
    captured = {}
    for stream, message in zip(real, messages, strict=True):
        of = [p["streams"][stream.name] for p in peers if stream.name in p["streams"]]
        captured[stream.name] = {
            "every": stream.every,
            "watermark": max(part["watermark"] for part in of),
            "latest": max(part["latest"] for part in of),
            "unnamed": any(part["unnamed"] for part in of),
            "steps": union(Steps(part["steps"]) for part in of).runs,
            "seconds": max(part["seconds"] for part in of),
            "totals": results.totals(stream.name),
            "open": [_plain(row) for row in message.rows() if row.counters.any()],
        }
    return {"version": VERSION, "streams": captured}


def _told(stream: Offered, window: Window | None, agreed: StreamSchema | None) -> dict[str, Any]:
    """What a rank says of a stream."""
    keys = () if window is None or agreed is None else agreed.table
    windows = () if window is None else (window,)
    return {
        "spans": told_spans([key.name for key in keys], windows, stream.table),
        "watermark": stream.watermark,
        "latest": stream.latest,
        "late": [] if window is None else sorted(window.late),
        "steps": [] if window is None else window.steps.runs,
        "unnamed": window is not None and window.unnamed,
        "seconds": 0.0 if window is None else window.seconds,
    }


def _plain(row: Row) -> dict[str, Any]:
    """The merged lanes of an open window, or of a late step in it."""
    keys = row.stream.table.keys[: len(row.counters)]
    return {
        "late": row.late,
        "keys": {
            key.name: {"declaration": declare(key), "state": state.to_plain()}
            for key, state in zip(keys, row_states(row), strict=True)
            # what is told apart by rank means nothing where the ranks may be others
            if row.counters[key.index].any() and key.reduction.at_rank is None
        },
    }


def restored_window(
    saved: Mapping[str, Any], table: KeyTable, topology: Topology, now: float
) -> Window | None:
    """What was open when the state was captured, as this rank's part of it; None: nothing.

    Rank 0 takes it all, and its replicas what is replicated, so that they agree.

    Args:
        saved: a stream of the state.
        table: the stream's keys; it has those of the state already.
        topology: of the run that goes on.
        now: the rank's clock.
    """
    if not saved["open"] and not saved["steps"]:
        return None
    window = Window(
        now - saved["seconds"], steps=Steps(saved["steps"]), unnamed=saved["unnamed"], used=now
    )
    for part in saved["open"]:
        lanes = _lanes(part["keys"], table, topology)
        if part["late"] is None:
            window.main.lanes = lanes
        else:
            window.late[part["late"]] = Slot(lanes=lanes)
    return window


def _lanes(keys: Mapping[str, Any], table: KeyTable, topology: Topology) -> Lanes:
    lanes = Lanes.empty(table.extent())
    tallies: dict[int, dict[int, int]] = {}
    units = [0] * table.rows
    states = {name: State.from_plain(entry["state"]) for name, entry in keys.items()}
    lo = min((state.lo for state in states.values() if state.units), default=exact.UNIT_LIMB)
    for name, state in states.items():
        key = table.get(name)
        assert key is not None
        if 0 not in topology.group_of(key.metric.replicated_over):
            continue
        for offset, unit in enumerate(state.units):
            units[key.row + offset] = unit << 32 * (state.lo - lo)
        lanes.counters[key.index] = state.counters
        lanes.counters[key.index, Counter.REPLICA] = 0
        tallies |= {key.tally + i: counts for i, counts in enumerate(state.tallies)}
        lanes.maxes[key.field : key.field + len(state.maxes)] = np.array(state.maxes, np.int64)
    lanes.sums = exact.from_units(units, lo)
    lanes.tallies = Tallies.of(tallies)
    return lanes


def totals_of(saved: Mapping[str, Any]) -> dict[str, State]:
    """The running totals of a stream of the state, by key."""
    return {key: State.from_plain(plain) for key, plain in saved["totals"].items()}
