"""Ranks as processes on Gloo: torch is imported once, then the ranks are forked."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from distmetrics.comm.communicator import name_ranks
from distmetrics.testing.threads import check_world_size, with_rank

Result = TypeVar("Result")


class RankError(RuntimeError):
    """A rank ended without a result, or with an exception that cannot be sent."""


def run_ranks(
    fn: Callable[..., Result], world_size: int, *args: Any, timeout: float = 60.0
) -> list[Result]:
    """What `fn(*args)` returns on each of `world_size` processes, in rank order.

    The processes are forked, so that `fn` may be a local function; each has an initialised Gloo
    group on loopback, the environment of a launcher and one thread. None outlives the call.

    Args:
        fn: called once in each process; its result is pickled.
        world_size: the number of ranks.
        args: passed to `fn`.
        timeout: seconds for all of them.

    Raises:
        TimeoutError: some ranks did not end in time; it names them.
        RankError: a rank ended without a result.
        Exception: the first that a rank raised, with a note that names the rank.
    """
    check_world_size(world_size)
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="distmetrics-") as folder:
        processes, ends = [], []
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(world_size):
            here, there = context.Pipe(duplex=False)
            process = context.Process(
                target=_run,
                args=(rank, world_size, f"{folder}/store", there, fn, args),
                name=f"rank {rank}",
                daemon=False,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
                process.start()
            there.close()
            processes.append(process)
            ends.append(here)
        try:
            return _collect(processes, ends, timeout)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for end in ends:
                end.close()


def _collect(processes: list[Any], ends: list[Connection], timeout: float) -> list[Any]:
    """The results, or the first error."""
    world_size = len(ends)
    results: dict[int, Any] = {}
    deadline = time.monotonic() + timeout
    while len(results) < world_size:
        open_ends = {end: rank for rank, end in enumerate(ends) if rank not in results}
        ready = wait(list(open_ends), max(0.0, deadline - time.monotonic()))
        if not ready:
            late = name_ranks(sorted(open_ends.values()))
            raise TimeoutError(f"{late} of {world_size} did not end within {timeout:g} s")
        for end in ready:
            rank = open_ends[end]  # type: ignore[index]
            results[rank] = _received(rank, end, processes[rank])  # type: ignore[arg-type]
    for process in processes:
        process.join(max(0.1, deadline - time.monotonic()))
    return [results[rank] for rank in range(world_size)]


def _received(rank: int, end: Connection, process: Any) -> Any:
    try:
        error, result, trace = pickle.loads(end.recv_bytes())  # noqa: S301 - from our own child
    except EOFError:
        process.join(5)
        raise RankError(
            f"rank {rank} ended without a result (exit code {process.exitcode})"
        ) from None
    if error is None:
        return result
    raise with_rank(error, rank) from RankError(f"on rank {rank}:\n{trace}")


def _run(
    rank: int, world_size: int, store: str, end: Connection, fn: Callable[..., Any], args: Any
) -> None:
    """The life of one rank."""
    code = 1
    try:
        _set_up(rank, world_size, store)
        end.send_bytes(pickle.dumps((None, fn(*args), "")))
        code = 0
    except BaseException as error:  # noqa: BLE001 - sent to the caller, whatever it is
        trace = traceback.format_exc()
        try:
            sent = pickle.dumps((error, None, trace))
            pickle.loads(sent)  # noqa: S301 - some exceptions can be pickled but not read back
        except Exception:  # noqa: BLE001 - not to be pickled, in any of many ways
            sent = pickle.dumps((RankError(f"{type(error).__name__}: {error}"), None, trace))
        end.send_bytes(sent)
    finally:
        end.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without the handlers at exit that were inherited


def _set_up(rank: int, world_size: int, store: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world_size),
            "GROUP_RANK": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
    )
    if sys.platform == "darwin":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo0"
    meeting = FileStore(store, world_size)
    dist.init_process_group(
        "gloo",
        store=meeting,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=60),
    )
    # a rank that ends at once would break the connections that others are still making
    meeting.set(f"connected/{rank}", "")
    meeting.wait([f"connected/{other}" for other in range(world_size)])
