"""Ranks find each other again, and tell those that are dead from those that are only slow."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from distmetrics.comm.reunion import Guest, Host, Missing

WORLD_SIZE = 3
AT_ONCE = 0.05
PATIENCE = 20.0


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Rank 0 of three, on loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = Host(WORLD_SIZE, PATIENCE)
    yield made
    made.close(finished=False)


@pytest.fixture
def guests(host: Host) -> Iterator[list[Guest]]:
    """The other two, of which rank 0 knows that they live."""
    made = [Guest(host.place, rank, PATIENCE) for rank in range(1, WORLD_SIZE)]
    while len(host._lines) < len(made):
        threading.Event().wait(0.005)
    yield made
    for guest in made:
        guest.close(finished=False)


def _together(host: Host, guests: list[Guest]) -> list[Any]:
    """What all of them find, each in a thread of its own."""
    found: dict[int, Any] = {}

    def gather(rank: int, who: Host | Guest) -> None:
        found[rank] = who.gather(0, PATIENCE, ())

    threads = [
        threading.Thread(target=gather, args=(rank, who))
        for rank, who in enumerate([host, *guests])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [found[rank] for rank in range(WORLD_SIZE)]


def test_all_that_ask_meet(host: Host, guests: list[Guest]) -> None:
    """Each learns the same of the new group, and how to connect."""
    meetings = _together(host, guests)
    assert meetings[0] == meetings[1] == meetings[2]
    assert meetings[0].members == (0, 1, 2)
    host.store(meetings[0]).set("key", "value")
    assert guests[0].store(meetings[1]).get("key") == b"value"


@pytest.mark.usefixtures("guests")
def test_ranks_that_do_not_come_are_silent_while_they_live(host: Host) -> None:
    """They may be slow or stopped: nobody can tell from here."""
    assert host.gather(0, AT_ONCE, ()) == Missing((), (1, 2))


def test_a_guest_learns_who_else_is_missing(host: Host, guests: list[Guest]) -> None:
    """Rank 0 answers for the others; it is not missing itself as long as it answers."""
    assert guests[0].gather(0, AT_ONCE, ()) == Missing((), (2,))


@pytest.mark.parametrize("finished", [False, True])
def test_a_rank_whose_process_has_ended_is_dead(
    host: Host, guests: list[Guest], finished: bool
) -> None:
    """That is known long before patience ends, to all; a last word tells that all is done."""
    guests[1].close(finished)
    assert host.gather(0, PATIENCE, ()) == Missing((2,), (1,), finished)
    dead = guests[0].gather(0, PATIENCE, ())
    assert dead == Missing((2,), (), finished)


@pytest.mark.parametrize("finished", [False, True])
def test_rank_0_that_has_ended_is_dead(host: Host, guests: list[Guest], finished: bool) -> None:
    """The others see it without asking anybody."""
    host.close(finished)
    assert guests[0].gather(0, PATIENCE, ()) == Missing((0,), (), finished)


def test_those_that_have_left_are_not_missing(host: Host, guests: list[Guest]) -> None:
    """The others meet without them."""
    guests[1].close(finished=False)
    thread = threading.Thread(target=guests[0].gather, args=(0, PATIENCE, [2]))
    thread.start()
    meeting = host.gather(0, PATIENCE, [2])
    thread.join(PATIENCE)
    assert not isinstance(meeting, Missing)
    assert meeting.members == (0, 1)


def test_strangers_are_not_answered(host: Host, guests: list[Guest]) -> None:
    """Without the word of this run nothing is said, and the ranks meet all the same."""
    address = (host.place.hosts[0], host.place.port)
    for words in (b"{}\n", b'{"token": "x", "rank": 1, "epoch": 0, "gone": []}\n', b"GET /\n"):
        with socket.create_connection(address, timeout=PATIENCE) as stranger:
            stranger.sendall(words)
            assert stranger.recv(100) == b""
    assert not isinstance(_together(host, guests)[0], Missing)
