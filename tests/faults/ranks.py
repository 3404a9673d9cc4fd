"""Ranks as processes that a test kills, stops and watches: forked after torch was imported once."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch

import distmetrics as dm
from tests.comm.forks import free_port

PATIENCE = 60.0
"""Seconds that a test waits for anything a rank should do, on a busy machine."""


class Said(NamedTuple):
    """What a rank has told the test.

    Attributes:
        what: its name.
        data: what came with it.
        at: when, in seconds of the machine's monotonic clock.
    """

    what: str
    data: Any
    at: float


class Life:
    """A rank's own end: it tells the test what it does, and waits for the test's word."""

    def __init__(self, rank: int, end: Connection) -> None:
        self.rank = rank
        self._end = end
        self._sending = threading.Lock()

    def say(self, what: str, data: Any = None) -> None:
        """Tell the test something; from any thread."""
        with self._sending:
            self._end.send(Said(what, data, time.monotonic()))

    @property
    def heard(self) -> bool:
        """Whether the test has said something that was not heard yet."""
        return self._end.poll()

    def hear(self, what: str) -> Any:
        """Wait until the test calls `Rank.tell` with this name."""
        heard, data = self._end.recv()
        assert heard == what, f"expected {what!r}, heard {heard!r}"
        return data

    def die(self, point: str) -> None:
        """Say that a point was reached, and die there by SIGKILL."""
        self.say("reached", point)
        os.kill(os.getpid(), signal.SIGKILL)

    def stop(self, point: str) -> None:
        """Say that a point was reached, and stop there until the test continues the process."""
        self.say("reached", point)
        os.kill(os.getpid(), signal.SIGSTOP)


class Rank:
    """The test's end of a rank."""

    def __init__(self, rank: int, process: Any, end: Connection) -> None:
        self.rank = rank
        self.process = process
        self.heard: list[Said] = []
        self._end = end
        self._expected: Counter[str] = Counter()

    @property
    def pid(self) -> int:
        return int(self.process.pid)

    def expect(self, what: str, timeout: float = PATIENCE) -> Said:
        """The next thing of this name that the rank says, or has said already.

        Raises:
            AssertionError: it does not come in time, or the rank ended without it.
        """
        deadline = time.monotonic() + timeout
        while True:
            told = [said for said in self.heard if said.what == what]
            if self._expected[what] < len(told):
                self._expected[what] += 1
                return told[self._expected[what] - 1]
            self._listen(what, deadline)

    def last(self, what: str) -> Any:
        """What the rank has said last under this name, as of now."""
        while self._end.poll():
            try:
                self._listen(what, 0.0)
            except AssertionError:  # it has ended
                break
        return next(said.data for said in reversed(self.heard) if said.what == what)

    def _listen(self, what: str, deadline: float) -> None:
        ready = wait([self._end], max(0.0, deadline - time.monotonic()))
        so_far = [said.what for said in self.heard]
        assert ready, f"rank {self.rank} did not say {what!r} in time; it said {so_far}"
        try:
            said = self._end.recv()
        except EOFError:
            raise AssertionError(
                f"rank {self.rank} ended without saying {what!r}; it said {so_far}"
            ) from None
        if said.what == "failed":
            raise AssertionError(f"rank {self.rank} failed:\n{said.data}")
        self.heard.append(said)

    def tell(self, what: str, data: Any = None) -> None:
        """Let the rank go on that waits in `Life.hear`."""
        self._end.send((what, data))

    def send(self, number: signal.Signals) -> float:
        """Send a signal; when."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def result(self, timeout: float = PATIENCE) -> Any:
        """What the rank's function returned."""
        return self.expect("result", timeout).data

    def end(self, timeout: float = PATIENCE) -> int:
        """Wait until the process has ended; its exit code, minus the signal that ended it."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"rank {self.rank} did not end in time"
        return int(self.process.exitcode)


@contextlib.contextmanager
def ranks(
    world_size: int,
    fn: Callable[..., Any],
    *args: Any,
    prepare: Callable[[int], object] = lambda rank: None,
    master: str = "127.0.0.1",
) -> Iterator[list[Rank]]:
    """Processes that each run ``fn(life, *args)``; none outlives the context.

    They have the variables of a launcher and a process group whose store rank 0 serves, so that
    the store goes down with it.

    Args:
        world_size: the number of ranks.
        fn: what each does; its result is pickled.
        args: passed to `fn`.
        prepare: called with the rank in each process before its group is made.
        master: where rank 0 serves the store.
    """
    context = multiprocessing.get_context("fork")
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    port = free_port()
    started: list[Rank] = []
    try:
        for rank in range(world_size):
            here, there = context.Pipe()
            process = context.Process(
                target=_live, args=(rank, world_size, (master, port), there, prepare, fn, args)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
                process.start()
            there.close()
            started.append(Rank(rank, process, here))
        yield started
    finally:
        for rank in started:
            if rank.process.is_alive():
                rank.process.kill()
            rank.process.join(10)
            rank.process.close()
            rank._end.close()


def _live(
    rank: int,
    world_size: int,
    master: tuple[str, int],
    end: Connection,
    prepare: Callable[[int], object],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    code = 1
    life = Life(rank, end)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)
        warnings.resetwarnings()
        warnings.simplefilter("always", dm.DistmetricsWarning)
        warnings.showwarning = lambda message, *_, **__: life.say("warned", str(message))
        prepare(rank)
        if world_size > 1:
            os.environ.update(
                RANK=str(rank),
                WORLD_SIZE=str(world_size),
                LOCAL_RANK=str(rank),
                LOCAL_WORLD_SIZE=str(world_size),
                MASTER_ADDR=master[0],
                MASTER_PORT=str(master[1]),
            )
            dm.setup_distributed("gloo", timeout=60)
        life.say("result", fn(life, *args))
        code = 0
    except BaseException:  # noqa: BLE001 - told to the parent, whatever it is
        life.say("failed", traceback.format_exc())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
