"""Processes with a launcher's variables, forked after torch was imported once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from distmetrics.testing import run_ranks


def free_port() -> int:
    """A port that nobody uses, below those that systems give to clients."""
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
            return port


def by_hand(world_size: int, port: int | None = None, **more: str) -> list[dict[str, str]]:
    """The variables that a user sets by hand, for each rank."""
    port = port or free_port()
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            **more,
        }
        for rank in range(world_size)
    ]


def run_together(
    fn: Callable[..., Any], world_size: int, *args: Any, timeout: float = 60
) -> list[Any]:
    """`run_ranks`, in which no rank ends before all others have begun and ended.

    A rank that leaves at once would break the connections that others are still making.
    """

    def together(*given: Any) -> Any:
        group = dist.group.WORLD
        assert group is not None
        group.allreduce([torch.zeros(1)]).wait()
        result = fn(*given)
        group.allreduce([torch.zeros(1)]).wait()
        return result

    return run_ranks(together, world_size, *args, timeout=timeout)


def fork(
    fn: Callable[..., Any], environs: Sequence[Mapping[str, str]], *args: Any, timeout: float = 60
) -> list[Any]:
    """What `fn(*args)` returned in a process for each of `environs`.

    "Type: text" of what it raised; "EOFError" for a process that was killed.
    """
    context = multiprocessing.get_context("fork")
    gc.collect()
    processes, ends = [], []
    for environ in environs:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(there, environ, fn, args))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            process.start()
        there.close()
        processes.append(process)
        ends.append(here)
    try:
        deadline = time.monotonic() + timeout
        results: list[Any] = []
        for end in ends:
            assert wait([end], max(0.0, deadline - time.monotonic())), "a rank did not end in time"
            try:
                results.append(end.recv())
            except EOFError:
                results.append("EOFError")
        return results
    finally:
        for process, end in zip(processes, ends, strict=True):
            process.kill()
            process.join()
            end.close()


def _run(
    end: Connection, environ: Mapping[str, str], fn: Callable[..., Any], args: Sequence[Any]
) -> None:
    try:
        # a store of the parent would wait in its destructor for threads that are not forked
        gc.freeze()
        os.environ.update(environ)
        try:
            end.send(fn(*args))
        except BaseException as error:  # noqa: BLE001 (a failed assertion of pytest is one)
            traceback.print_exc()
            end.send(f"{type(error).__name__}: {error}")
    finally:
        end.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
