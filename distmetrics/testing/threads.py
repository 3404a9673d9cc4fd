"""Ranks as threads of one process: the fastest way to run code on several ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from distmetrics.comm import communicator
from distmetrics.comm.inprocess import InProcessWorld
from distmetrics.errors import InvalidValue

Result = TypeVar("Result")


def run_ranks_in_process(
    fn: Callable[..., Result], world_size: int, *args: Any, timeout: float = 60.0
) -> list[Result]:
    """What `fn(*args)` returns on each of `world_size` ranks, in rank order.

    The ranks are threads of this process. Loggers and the functions of `distmetrics` see them as
    ranks (`distmetrics.get_rank()`); torch.distributed does not.

    Args:
        fn: called once for each rank.
        world_size: the number of ranks.
        args: passed to `fn`.
        timeout: seconds for all of them.

    Raises:
        TimeoutError: some ranks did not end in time; it names them.
        Exception: the first that a rank raised, with a note that names the rank.

    Example:
        >>> import distmetrics as dm
        >>> run_ranks_in_process(lambda: dm.get_rank() * 10, 3)
        [0, 10, 20]
    """
    check_world_size(world_size)
    world = InProcessWorld(world_size)
    results: dict[int, Result] = {}
    errors: list[tuple[int, BaseException]] = []

    def run(rank: int) -> None:
        communicator.set_current(world.endpoint(rank))
        try:
            results[rank] = fn(*args)
        except BaseException as error:  # noqa: BLE001 - re-raised in the caller's thread
            errors.append((rank, error))
            world.abort()
        finally:
            communicator.set_current(None)

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}", daemon=True)
        for rank in range(world_size)
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        rank, error = errors[0]
        raise with_rank(error, rank)
    late = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
    if late:
        world.abort()
        names = communicator.name_ranks(late)
        raise TimeoutError(f"{names} of {world_size} did not end within {timeout:g} s")
    return [results[rank] for rank in range(world_size)]


def check_world_size(world_size: object) -> None:
    """Raise `InvalidValue` unless there is at least one rank."""
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise InvalidValue(f"world_size is a number of ranks, at least 1, not {world_size!r}")


def with_rank(error: BaseException, rank: int) -> BaseException:
    """The error with a note of the rank that raised it."""
    if hasattr(error, "add_note"):  # Python 3.11 and later
        error.add_note(f"raised on rank {rank}")
    return error
