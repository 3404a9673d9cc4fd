"""What is said of ranks that did not come to a collective call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import PeerTimeoutError
from distmetrics.exchange.schema import COLLECTIVE
from distmetrics.worker.checkpoint import STATE
from distmetrics.worker.events import Ticket

REDUCE = f"{COLLECTIVE}reduce"
"""The stream of what `Logger.reduce` is given."""
_NAMED = 8


def absence(
    ticket: Ticket, step: int, call: str, keys: Sequence[str], peer_timeout: float
) -> PeerTimeoutError:
    """The error of a call that others did not come to: who they are and where they are instead.

    Args:
        ticket: of the call.
        step: at which it was made, -1 for none.
        call: its name.
        keys: some of the keys that it was to reduce.
        peer_timeout: how long it has waited, in seconds.
    """
    absent = dict(ticket.absent)
    logged = f" (keys {', '.join(map(repr, keys[:4]))})" if keys else ""
    who = last_steps(absent) if absent else "some ranks"
    at = f" at step {step}" if step >= 0 else ""
    return PeerTimeoutError(
        f"{call}{at}{logged}: {who} did not call it within peer_timeout={peer_timeout:g} s"
        f"{_others(ticket.elsewhere)}; every rank must call it",
        tuple(absent),
    )


def last_steps(absent: Mapping[int, int]) -> str:
    """Ranks and their last steps."""
    last = ", ".join(
        f"rank {rank}: {'none' if step < 0 else step}"
        for rank, step in list(absent.items())[:_NAMED]
    )
    return f"{name_ranks(list(absent))} (last steps: {last})"


def _others(elsewhere: Mapping[int, Sequence[str]]) -> str:
    """What ranks that did not come wait for instead."""
    waits = [
        f"rank {rank} in {' and '.join(map(_call_of, streams))}"
        for rank, streams in list(elsewhere.items())[:_NAMED]
    ]
    return f" (waiting meanwhile: {', '.join(waits)})" if waits else ""


def _call_of(stream: str) -> str:
    """The call that waits for a stream."""
    if stream.startswith(COLLECTIVE):
        return {REDUCE: "reduce", STATE: "state_dict"}.get(stream, stream)
    return f"flush(wait=True) of {stream!r}" if stream else "flush(wait=True)"
