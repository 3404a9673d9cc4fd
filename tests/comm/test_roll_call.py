"""Meeting over a store."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from distmetrics.comm.roll_call import call_roll, dismiss, meeting, payloads
from distmetrics.errors import PeerLostError, PeerTimeoutError


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Each kind of store."""
    if request.param == "hash":
        yield dist.HashStore()
    elif request.param == "file":
        yield dist.FileStore(str(tmp_path / "store"), -1)
    else:
        yield dist.TCPStore(
            "127.0.0.1", 0, None, True, timedelta(seconds=5), wait_for_workers=False
        )
    gc.collect()  # no server may be left to a process that a later test forks


def in_threads(fns: Sequence[Callable[[], Any]]) -> list[Any]:
    """What each returned or raised, run at the same time."""
    results: list[Any] = [None] * len(fns)

    def run(index: int) -> None:
        try:
            results[index] = fns[index]()
        except (PeerTimeoutError, PeerLostError) as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(fns))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def client_of(store: Any) -> Any:
    """A further connection to the store, as another process has it."""
    if isinstance(store, dist.TCPStore):
        return dist.TCPStore("127.0.0.1", store.port, None, False, timedelta(seconds=5))
    return store


def test_all_ranks_meet_and_read_what_the_others_left(store: Any) -> None:
    """Also when one comes late."""
    late = threading.Event()
    stores = [client_of(store) for _ in range(3)]

    def rank(number: int) -> list[str]:
        if number == 2:
            late.wait(10)
        call_roll(stores[number], number, 3, timeout=20, purpose="test", payload=f"p{number}")
        return payloads(stores[number], 3)

    def release() -> None:
        store.wait(["at/0", "at/1"], timedelta(seconds=10))
        late.set()

    results = in_threads([*(lambda n=n: rank(n) for n in range(3)), release])
    assert results[:3] == [["p0", "p1", "p2"]] * 3


def test_absent_ranks_are_named_and_latecomers_told(store: Any) -> None:
    """Whoever comes after the verdict raises the same: it is not left in a collective alone."""
    stores = [client_of(store) for _ in range(2)]
    results = in_threads(
        [lambda n=n: call_roll(stores[n], n, 4, timeout=0.3, purpose="test") for n in range(2)]
    )
    for result in results:
        assert isinstance(result, PeerTimeoutError)
        assert result.ranks == (2, 3)
        assert "ranks 2 and 3 of 4 did not arrive" in str(result)
    with pytest.raises(PeerTimeoutError, match="ranks 2 and 3 of 4") as late:
        call_roll(store, 2, 4, timeout=30, purpose="test")
    assert late.value.ranks == (2, 3)


def test_absent_ranks_are_noticed_before_time_is_up() -> None:
    """Once, with the ranks that are missing."""
    noticed: list[list[int]] = []
    with pytest.raises(PeerTimeoutError):
        call_roll(
            dist.HashStore(),
            0,
            3,
            timeout=0.2,
            purpose="test",
            notice_after=0.1,
            notice=lambda absent: noticed.append(list(absent)),
        )
    assert noticed == [[1, 2]]


def test_a_store_that_is_gone_is_a_lost_peer() -> None:
    """The process that served it has ended."""
    server: Any = dist.TCPStore(
        "127.0.0.1", 0, None, True, timedelta(seconds=5), wait_for_workers=False
    )
    client = dist.TCPStore("127.0.0.1", server.port, None, False, timedelta(seconds=5))
    del server
    with pytest.raises(PeerLostError, match="the process that holds the store is gone"):
        call_roll(client, 1, 2, timeout=5, purpose="test")


def test_meetings_of_one_name_are_counted_apart(store: Any) -> None:
    """A second meeting does not see the traces of the first; a dismissed one leaves none."""
    first, one = meeting(store, "m", 0)
    second, two = meeting(store, "m", 0)
    _, other = meeting(store, "m", 1)
    assert (one, two, other) == (1, 2, 1)
    call_roll(first, 0, 1, timeout=5, purpose="test")
    assert first.check(["verdict"])
    assert not second.check(["verdict"])
    dismiss(first, 1)
    assert not any(first.check([key]) for key in ("verdict", "count", "at/0"))
