"""What an exchange needs of a process group: all-reduce of int64 arrays, all-gather of bytes.

Three implementations: `Single` (one process), `Gloo` (a group of its own beside the training's
groups) and the in-process one of `distmetrics.comm.inprocess`, which lets threads act as ranks.
"""

from __future__ import annotations

import enum
import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.distributed_c10d import PrefixStore, Store

from distmetrics.comm.forked import closed_in_children
from distmetrics.comm.reunion import Guest, Host, Missing, Place
from distmetrics.errors import PeerLostError, PeerTimeoutError

Int64Array = NDArray[np.int64]


class Op(enum.Enum):
    """How an all-reduce combines the ranks' integers."""

    SUM = "sum"
    MAX = "max"


class Communicator(Protocol):
    """A fixed set of ranks that meet in collectives. Used from one thread at a time.

    Every method is called by all ranks, in the same order. A rank that is gone or does not come
    within the time-out of the communicator makes it raise `PeerLostError`; after that the
    communicator is of no use but to be closed.
    """

    @property
    def rank(self) -> int:
        """This rank, 0 .. world_size - 1."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    def all_reduce(self, array: Int64Array, op: Op) -> Int64Array:
        """The elementwise sum or maximum over the ranks; `array` may be overwritten.

        Collective: 1. All ranks give the same shape.
        """

    def all_gather(self, payload: bytes, absent: bytes = b"") -> list[bytes]:
        """Every rank's payload, in rank order; payloads may differ in length.

        Args:
            payload: this rank's.
            absent: what stands for a rank that has left the group.

        Collective: 2 (lengths, then payloads).
        """

    def regroup(self, patience: float, gone: Collection[int] = ()) -> Missing | None:
        """Connect the ranks again after a `PeerLostError`, if they all ask for it in time.

        Args:
            patience: seconds to wait for them; it may be less where a rank is dead.
            gone: ranks that have left for good: the others go on without them.

        Ranks: all but those that are gone.

        Returns:
            The ranks that did not ask; None where all are connected again.

        Raises:
            PeerLostError: the ranks found each other but could not be connected, or cannot be at
                all; it may be tried again.
        """

    def close(self, finished: bool = False) -> None:
        """Give up the group; pending collectives of other ranks fail.

        Args:
            finished: everything is done; ranks that have missed it learn it when they regroup.
        """


class Single:
    """The communicator of one process: every collective returns what it was given."""

    rank = 0
    world_size = 1

    def all_reduce(self, array: Int64Array, op: Op) -> Int64Array:
        return array

    def all_gather(self, payload: bytes, absent: bytes = b"") -> list[bytes]:
        return [payload]

    def regroup(self, patience: float, gone: Collection[int] = ()) -> Missing | None:
        return None

    def close(self, finished: bool = False) -> None:
        """Nothing is held."""


class Gloo:
    """A Gloo group over all ranks of a store, apart from the groups of the training.

    It is made without the default group's registry, so that it outlives
    `destroy_process_group` and has a time-out of its own.

    Args:
        store: where the ranks find each other; a prefix that no other group uses.
        rank: this rank.
        world_size: the number of ranks.
        timeout: seconds that a collective waits for a peer.
        lasting: whether the ranks can be connected again, for which rank 0 listens on a port.

    Ranks: all.
    Collective: connects every pair of ranks.
    """

    def __init__(
        self, store: Store, rank: int, world_size: int, timeout: float, lasting: bool = False
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._timeout = timeout
        self._epoch = 0
        self._members = list(range(world_size))
        self._reunion = _reunion(store, rank, world_size, timeout) if lasting else None
        self._group: Any = self._connect(PrefixStore("0", store))

    def all_reduce(self, array: Int64Array, op: Op) -> Int64Array:
        if len(self._members) == 1:
            return array
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.SUM if op is Op.SUM else dist.ReduceOp.MAX)
        array = np.ascontiguousarray(array)
        self._run(lambda group: group.allreduce([torch.from_numpy(array)], options))
        return array

    def all_gather(self, payload: bytes, absent: bytes = b"") -> list[bytes]:
        size, here = len(self._members), self._members.index(self.rank)
        lengths = np.zeros(size, np.int64)
        lengths[here] = len(payload)
        lengths = self.all_reduce(lengths, Op.SUM)
        width = int(lengths.max())
        mine = np.zeros(width, np.uint8)
        mine[: len(payload)] = np.frombuffer(payload, np.uint8)
        parts = [np.zeros(width, np.uint8) for _ in range(size)]
        if size == 1:
            parts = [mine]
        elif width:
            tensors = [torch.from_numpy(part) for part in parts]
            self._run(lambda group: group.allgather([tensors], [torch.from_numpy(mine)]))
        given = [absent] * self.world_size
        for member, part, length in zip(self._members, parts, lengths.tolist(), strict=True):
            given[member] = part[:length].tobytes()
        return given

    def regroup(self, patience: float, gone: Collection[int] = ()) -> Missing | None:
        self._group = None  # closes its connections, so that the others notice
        if self._reunion is None:
            raise PeerLostError("the ranks of this group do not connect again")
        try:
            found = self._reunion.gather(self._epoch, patience, gone)
            if isinstance(found, Missing):
                return found
            self._epoch = found.epoch
            self._members = list(found.members)
            if len(self._members) > 1:
                self._group = self._connect(self._reunion.store(found))
        except RuntimeError as error:
            raise PeerLostError(
                f"the ranks cannot be connected again ({_reason(error)})"
            ) from error
        return None

    def close(self, finished: bool = False) -> None:
        self._group = None
        if self._reunion is not None:
            self._reunion.close(finished)

    def _connect(self, store: Store) -> Any:
        timeout = timedelta(seconds=self._timeout)
        size, here = len(self._members), self._members.index(self.rank)
        with closed_in_children():
            return dist.ProcessGroupGloo(PrefixStore("gloo", store), here, size, timeout)

    def _run(self, start: Callable[[Any], Any]) -> None:
        began = time.monotonic()
        if self._group is None:
            raise PeerLostError("the group of this communicator was closed")
        try:
            start(self._group).wait()
        except RuntimeError as error:
            # Gloo raises plain RuntimeErrors: tell a time-out from a closed connection by time
            waited = time.monotonic() - began
            what = (
                f"no answer for {waited:.1f} s"
                if waited >= 0.95 * self._timeout
                else f"a connection was closed ({_reason(error)})"
            )
            raise PeerLostError(what) from error


def _reunion(store: Store, rank: int, world_size: int, timeout: float) -> Host | Guest:
    """Where the ranks find each other again, told to them by a store while there is one."""
    if rank == 0:
        host = Host(world_size, timeout)
        store.set("reunion", host.place.to_text())
        return host
    return Guest(Place.from_text(store.get("reunion").decode()), rank, timeout)


def _reason(error: Exception) -> str:
    """What a message of Gloo or of a store says, without places in its code and advice."""
    text = str(error).splitlines()[0].split("] ", 1)[-1]
    return text.split(". ")[0]


class Endpoint(Protocol):
    """A rank that lives in a thread of this process (see `distmetrics.comm.inprocess`)."""

    rank: int
    world_size: int

    def connect(self, timeout: float, start_timeout: float) -> Communicator:
        """The next communicator of this rank with its peers."""


_thread = threading.local()


def current() -> Endpoint | None:
    """The in-process rank that this thread acts as, None for an ordinary process."""
    return getattr(_thread, "endpoint", None)


def set_current(endpoint: Endpoint | None) -> None:
    """Make this thread act as an in-process rank."""
    _thread.endpoint = endpoint


_opened = itertools.count()


def connect(
    timeout: float,
    start_timeout: float,
    notice_after: float,
    notice: Callable[[str], None],
    lasting: bool = False,
) -> Communicator:
    """A communicator over all ranks, on a group of its own.

    Args:
        timeout: seconds that a collective on it waits for a peer.
        start_timeout: seconds to wait for all ranks to call this.
        notice_after: seconds after which absent ranks are named through `notice`.
        notice: receives the text.
        lasting: whether the ranks can be connected again after a `PeerLostError`.

    Ranks: all, in the same order as their other calls of this function.
    Collective: connects every pair of ranks; the default group is not used.

    Raises:
        PeerTimeoutError: some ranks did not come within `start_timeout`; it names them.
    """
    endpoint = current()
    if endpoint is not None:
        return endpoint.connect(timeout, start_timeout)
    if not (dist.is_available() and dist.is_initialized()):
        return Single()
    if dist.get_world_size() == 1:
        return Single()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    default = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    store = PrefixStore(f"distmetrics/{next(_opened)}", default)
    _arrive(store, rank, world_size, start_timeout, notice_after, notice)
    return Gloo(PrefixStore("group", store), rank, world_size, timeout, lasting)


def _arrive(
    store: Store,
    rank: int,
    world_size: int,
    start_timeout: float,
    notice_after: float,
    notice: Callable[[str], None],
) -> None:
    """Wait until every rank has come, naming those that have not."""
    store.set(f"arrived/{rank}", "1")
    keys = [f"arrived/{peer}" for peer in range(world_size)]
    began = time.monotonic()
    told = False
    while True:
        waited = time.monotonic() - began
        until = start_timeout if told else min(notice_after, start_timeout)
        if waited < until:
            try:
                store.wait(keys, timedelta(seconds=max(0.05, until - waited)))
            except (RuntimeError, ValueError):  # how the kinds of store say that time is up
                pass
            else:
                return
        absent = [peer for peer, key in enumerate(keys) if not store.check([key])]
        if not absent:
            return
        waited = time.monotonic() - began
        if waited >= start_timeout:
            raise PeerTimeoutError(
                f"{name_ranks(absent)} of {world_size} did not make this logger within "
                f"start_timeout={start_timeout:g} s; every rank must make the same loggers in "
                "the same order",
                absent,
            )
        if not told and waited >= notice_after:
            told = True
            notice(f"waiting for {name_ranks(absent)} to make the same logger ({waited:.0f} s)")


def name_ranks(ranks: Sequence[int]) -> str:
    """Ranks as text for messages: "rank 3", "ranks 1, 2 and 5"."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(rank) for rank in ranks[:16]]
    if len(ranks) > len(shown):
        return f"ranks {', '.join(shown)} and {len(ranks) - len(shown)} more"
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}"
