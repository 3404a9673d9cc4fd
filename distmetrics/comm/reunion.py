"""How ranks find each other again after their group has broken: rank 0 listens, the others ask.

The store of the launch is of no use for this: it may have gone down with the lost rank, and asking
it over a link that is cut blocks for minutes. A request here is one short connection with a
time-out of its own, so that a rank knows within a second who is missing.

Who is missing may be dead or only slow. One more connection between each rank and rank 0 tells: it
carries nothing but a last word, and the system closes it at the end of a process, however that
comes.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from torch._C._distributed_c10d import Store, TCPStore

from distmetrics.comm.address import bare_host, is_loopback, local_address, resolve_address
from distmetrics.comm.forked import close_in_children

ANSWER = 1.0
"""Seconds that rank 0 has to answer."""
FRESH = 2.0
"""Seconds for which a rank that has asked counts as waiting."""
_POLL = 0.04
_FINISHED = b"."
_LONGEST = 1 << 20
_ANYWHERE = "192.0.2.1"  # documentation address (RFC 5737): asked for a route, never sent to


class Place(NamedTuple):
    """Where rank 0 listens, and the word by which it knows its ranks."""

    hosts: tuple[str, ...]
    port: int
    token: str

    def to_text(self) -> str:
        """As one text, for a store."""
        return json.dumps(self)

    @classmethod
    def from_text(cls, text: str) -> Place:
        """What `to_text` has made."""
        hosts, port, token = json.loads(text)
        return cls(tuple(hosts), int(port), str(token))


@dataclass(frozen=True)
class Meeting:
    """A new group: its ranks, and the store by which they connect.

    Attributes:
        epoch: counts the groups of a communicator.
        members: its ranks.
        port: of the store, on rank 0's host.
    """

    epoch: int
    members: tuple[int, ...]
    port: int


class Missing(NamedTuple):
    """The ranks that did not come to a meeting.

    Attributes:
        dead: those whose processes have ended, or that have closed their communicator.
        silent: the others: they are slow or stopped, or the link to them is cut.
        finished: whether one of the dead has left because everything was done.
    """

    dead: tuple[int, ...]
    silent: tuple[int, ...]
    finished: bool = False


class Unreachable(OSError):
    """Rank 0 does not answer."""


class Host:
    """Rank 0's side: it knows who waits, and calls the meeting once all do.

    Args:
        world_size: the number of ranks.
        timeout: seconds that the store of a meeting waits.

    Raises:
        OSError: no socket can be opened.
    """

    def __init__(self, world_size: int, timeout: float) -> None:
        self._members = set(range(world_size))
        self._timeout = timeout
        self._asked: dict[int, float] = {}
        self._lines: dict[int, socket.socket] = {}
        self._meeting: Meeting | None = None
        self._store: Store | None = None
        self._changed = threading.Condition()
        hosts = addresses()
        self._socket = socket.create_server(
            (hosts[0] if len(hosts) == 1 else "", 0), backlog=min(1024, 2 * world_size)
        )
        close_in_children(self._socket)
        self.place = Place(hosts, self._socket.getsockname()[1], secrets.token_hex(16))
        thread = threading.Thread(target=self._serve, name="distmetrics-reunion", daemon=True)
        thread.start()

    def gather(self, epoch: int, patience: float, gone: Iterable[int]) -> Meeting | Missing:
        """The next meeting; the ranks that are missing, where they do not come in time.

        Args:
            epoch: of rank 0's last meeting.
            patience: seconds to wait; less where a rank is dead.
            gone: ranks that have left for good.
        """
        deadline = time.monotonic() + patience
        with self._changed:
            self._members -= set(gone)
            while missing := self._missing():
                left = deadline - time.monotonic()
                if left <= 0 or missing.dead:
                    return missing
                self._changed.wait(min(left, _POLL))
            self._store = TCPStore(
                bare_host(self.place.hosts[0]),
                0,
                None,
                True,
                timedelta(seconds=self._timeout),
                wait_for_workers=False,
            )
            self._meeting = Meeting(epoch + 1, tuple(sorted(self._members)), self._store.port)
            self._asked.clear()
            return self._meeting

    def store(self, meeting: Meeting) -> Store:
        """The store of a meeting."""
        assert self._store is not None
        return self._store

    def close(self, finished: bool) -> None:
        """Listen no more; tell whoever has missed it that everything is done, if it is."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        with self._changed:
            for line in self._lines.values():
                _hang_up(line, finished)

    def _missing(self) -> Missing | None:
        """Who does not wait for the meeting; None where everybody does."""
        since = time.monotonic() - FRESH
        others = sorted(self._members - {0})
        last = {member: _last_word(self._lines.get(member)) for member in others}
        dead = tuple(member for member in others if last[member] is not None)
        silent = tuple(m for m in others if m not in dead and self._asked.get(m, -1.0) < since)
        return Missing(dead, silent, _FINISHED in last.values()) if dead or silent else None

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(_POLL)  # out of file descriptors, or the peer has left again
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                connection.settimeout(ANSWER)
                question = _read(connection)
                if not hmac.compare_digest(str(question["token"]), self.place.token):
                    raise ValueError("not one of ours")
                if question.get("stays"):
                    self._keep(int(question["rank"]), connection)
                    continue
                connection.sendall(json.dumps(self._answer(question)).encode() + b"\n")
            connection.close()

    def _keep(self, rank: int, line: socket.socket) -> None:
        """Watch a rank's life by a connection from now on."""
        close_in_children(line)
        line.setblocking(False)
        with self._changed:
            former = self._lines.get(rank)
            self._lines[rank] = line
        if former is not None:
            former.close()

    def _answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        rank, epoch, gone = int(question["rank"]), int(question["epoch"]), question["gone"]
        with self._changed:
            self._members -= {int(other) for other in gone}
            meeting = self._meeting
            if meeting is not None and meeting.epoch > epoch and rank in meeting.members:
                return {"meeting": [meeting.epoch, meeting.members, meeting.port]}
            if question.get("leaves"):
                self._asked.pop(rank, None)
                return {}
            self._asked[rank] = time.monotonic()
            self._changed.notify_all()
            return {"missing": self._missing() or Missing((), ())}


class Guest:
    """The side of any other rank.

    Args:
        place: where rank 0 listens.
        rank: this rank.
        timeout: seconds that the store of a meeting waits.
    """

    def __init__(self, place: Place, rank: int, timeout: float) -> None:
        self._place = place
        self._timeout = timeout
        self._hosts = list(place.hosts)
        self._words: dict[str, Any] = {"token": place.token, "rank": rank, "epoch": 0, "gone": []}
        self._waits = False
        self._line: socket.socket | None = None
        self._show_life()

    def gather(self, epoch: int, patience: float, gone: Iterable[int]) -> Meeting | Missing:
        """The next meeting; the ranks that are missing, where they do not come in time.

        Args:
            epoch: of this rank's last meeting.
            patience: seconds to wait; less where a rank is dead.
            gone: ranks that have left for good.
        """
        self._words |= {"epoch": epoch, "gone": sorted(gone)}
        self._waits = True
        if self._line is None or _last_word(self._line) == b"":
            self._show_life()  # rank 0 may live though the connection was cut
        deadline = time.monotonic() + patience
        while True:
            try:
                answer = self._ask(self._words)
            except Unreachable:
                word = _last_word(self._line)
                alive = word is None
                answer = {"missing": [[], [0]] if alive else [[0], [], word == _FINISHED]}
            if "meeting" in answer:
                number, members, port = answer["meeting"]
                self._waits = False
                return Meeting(int(number), tuple(members), int(port))
            dead, silent, *rest = answer["missing"]
            if dead or time.monotonic() >= deadline:
                none = () if dead or silent else (0,)
                return Missing(tuple(dead), (*silent, *none), any(rest))
            time.sleep(_POLL)

    def store(self, meeting: Meeting) -> Store:
        """The store of a meeting."""
        timeout = timedelta(seconds=self._timeout)
        host = bare_host(self._hosts[0])
        return TCPStore(host, meeting.port, None, False, timeout, wait_for_workers=False)

    def close(self, finished: bool) -> None:
        """Wait no more; tell rank 0 that everything is done, if it is."""
        if self._waits:
            with contextlib.suppress(Unreachable):
                self._ask({**self._words, "leaves": True})
        if self._line is not None:
            _hang_up(self._line, finished)

    def _show_life(self) -> None:
        """Let rank 0 see by a connection whether this process lives, and the other way round.

        Where that fails nothing is lost but time: a dead rank then counts as a silent one.
        """
        with contextlib.suppress(Unreachable):
            line, _ = self._say({**self._words, "stays": True}, lambda connection: None)
            close_in_children(line)
            line.setblocking(False)
            self._line = line

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """What rank 0 answers.

        Raises:
            Unreachable: it does not.
        """
        connection, answer = self._say(question, _read)
        connection.close()
        return dict(answer)

    def _say(
        self, words: dict[str, Any], listen: Callable[[socket.socket], Any]
    ) -> tuple[socket.socket, Any]:
        """The connection to the first of rank 0's addresses that takes it, and what is heard.

        Raises:
            Unreachable: none does.
        """
        reason: Exception | None = None
        for host in list(self._hosts):
            connection = None
            try:
                address = (bare_host(host), self._place.port)
                connection = socket.create_connection(address, timeout=ANSWER)
                connection.sendall(json.dumps(words).encode() + b"\n")
                heard = listen(connection)
            except (OSError, ValueError) as error:
                reason = error
                if connection is not None:
                    connection.close()
                continue
            self._hosts.remove(host)
            self._hosts.insert(0, host)  # asked first from now on
            return connection, heard
        raise Unreachable(f"rank 0 does not answer: {reason}")


def addresses() -> tuple[str, ...]:
    """The addresses at which Gloo's peers reach this host, the likeliest first."""
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0]
    if named:
        found = _address_of(named)
        if found is not None:
            return (found,)
    mine = [resolve_address(socket.gethostname()), local_address(_ANYWHERE)]
    known = tuple(dict.fromkeys(host for host in mine if host and not is_loopback(host)))
    return known or ("127.0.0.1",)


def _address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface; None where it cannot be told."""
    if interface.startswith("lo"):
        return "127.0.0.1"
    if not sys.platform.startswith("linux"):
        return None
    import fcntl  # absent on other systems

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(probe.fileno(), get_address, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def _last_word(line: socket.socket | None) -> bytes | None:
    """What the other end of a line has said before it was closed; None while it is open."""
    if line is None:
        return None
    try:
        return line.recv(len(_FINISHED), socket.MSG_PEEK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _hang_up(line: socket.socket, finished: bool) -> None:
    with contextlib.suppress(OSError):  # the other end may be gone
        if finished:
            line.send(_FINISHED)
    line.close()


def _read(connection: socket.socket) -> Any:
    """A line of JSON.

    Raises:
        ValueError: it is too long, or no JSON.
    """
    deadline = time.monotonic() + ANSWER
    read = b""
    while not read.endswith(b"\n"):
        if len(read) > _LONGEST or time.monotonic() > deadline:
            raise ValueError("no line")
        part = connection.recv(1 << 16)
        if not part:
            raise ValueError("the line is cut off")
        read += part
    return json.loads(read)
