"""Meeting over a store, with a time-out that names who is missing and leaves nobody behind."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import PeerLostError, PeerTimeoutError

_LINGER = 2.0  # seconds; readers are awake, so that milliseconds are the rule

Notice = Callable[[Sequence[int]], None]


def call_roll(
    store: Store,
    rank: int,
    size: int,
    *,
    timeout: float,
    purpose: str,
    payload: str = "",
    notice_after: float | None = None,
    notice: Notice | None = None,
) -> None:
    """Return once all ranks have called this with the same store; `payloads` reads what they left.

    All ranks return, or all raise: whoever runs out of time writes a verdict that those who come
    later read. The collective that follows is thus entered by all or by none.

    Args:
        store: a prefix that is used for this meeting only.
        rank: the caller's rank among the ranks of this meeting.
        size: the number of ranks.
        timeout: seconds to wait for the others.
        purpose: what the ranks meet for, for the message: ``"all_gather"``.
        payload: what to leave for the others.
        notice_after: seconds after which `notice` is called with the ranks that are missing.
        notice: see there.

    Ranks: all of the meeting.
    Collective: none on a group; three requests to the store a rank.

    Raises:
        PeerTimeoutError: some ranks did not come in time; it names them.
        PeerLostError: the process that holds the store is gone.
    """
    try:
        store.set(f"at/{rank}", payload)
        if store.add("count", 1) == size:
            store.compare_set("verdict", "", "all")
        if notice is not None and notice_after is not None and notice_after < timeout:
            if not _wait(store, notice_after):
                notice(_missing(store, size))
            timeout -= notice_after
        if not _wait(store, timeout):
            absent = _missing(store, size)
            if absent:
                store.compare_set("verdict", "", json.dumps([rank, absent]))
            else:
                store.compare_set("verdict", "", "all")
        verdict = store.get("verdict")
        if verdict != b"all":
            linger(store, store.add("count", 0))
    except dist.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        raise PeerLostError(
            f"{purpose}: the process that holds the store is gone ({reason})"
        ) from error
    if verdict != b"all":
        first, absent = json.loads(verdict)
        who = "this rank" if first == rank else f"rank {first}"
        raise PeerTimeoutError(
            f"{purpose}: {name_ranks(absent)} of {size} did not arrive while {who} waited",
            absent,
        )


def meeting(store: Store, name: str, rank: int) -> tuple[Store, int]:
    """A fresh prefix of `store` for this rank's next meeting of this name, and its number.

    The calls are counted in the store itself: a process that was started again, and a store that
    was, both stay in step with the others.
    """
    attempt = store.add(f"{name}/calls/{rank}", 1)
    return PrefixStore(f"{name}/{attempt}", store), attempt


def payloads(store: Store, size: int) -> list[str]:
    """What the ranks left in the meeting of this store, in rank order."""
    return [bytes(each).decode() for each in store.multi_get([f"at/{r}" for r in range(size)])]


def linger(store: Store, readers: int) -> None:
    """Count this rank as one that has read, and wait a moment for the other readers.

    Called before a meeting is left for good, by an error or with a group that is made: the process
    that serves the store may end right after, and the others would see a lost connection.
    """
    deadline, pause = time.monotonic() + _LINGER, 0.005
    try:
        arrived = store.add("read", 1)
        while arrived < readers and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(2 * pause, 0.2)
            arrived = store.add("read", 0)
    except dist.DistNetworkError:
        return  # the serving process has seen everybody, and left


def dismiss(store: Store, size: int) -> None:
    """Remove the traces of a meeting that everybody has left."""
    for key in ("count", "verdict", "read", *(f"at/{rank}" for rank in range(size))):
        store.delete_key(key)


def _wait(store: Store, seconds: float) -> bool:
    """True once the verdict is there, False when time is up."""
    try:
        store.wait(["verdict"], timedelta(seconds=max(0.001, seconds)))
    except (RuntimeError, ValueError):
        # how the kinds of store say that time is up; a store that is gone fails here again
        return bool(store.check(["verdict"]))
    return True


def _missing(store: Store, size: int) -> list[int]:
    return [rank for rank in range(size) if not store.check([f"at/{rank}"])]
