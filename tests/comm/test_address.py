"""Addresses of hosts."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.comm import address, resolve_address, stable_port


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """A name service of the test's own."""
    known: dict[str, list[str]] = {}

    def getaddrinfo(host: str, *_: Any) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


def test_a_host_name_resolves_to_a_routable_address(names: dict[str, list[str]]) -> None:
    """Of several addresses one that others can reach."""
    names["node1"] = ["127.0.1.1", "10.0.0.7"]
    assert resolve_address("node1") == "10.0.0.7"


def test_an_unresolvable_name_is_left_alone(names: dict[str, list[str]]) -> None:
    """What resolves it later may know more."""
    assert not names
    assert resolve_address("nowhere") == "nowhere"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::1", "[::1]"),
        ("[fe80::1]", "[fe80::1]"),
        ("2001:db8::7", "[2001:db8::7]"),
    ],
)
def test_literals_are_left_alone(given: str, expected: str) -> None:
    """IPv4 as it is, IPv6 in brackets."""
    assert resolve_address(given) == expected


def test_localhost_is_the_loopback(names: dict[str, list[str]]) -> None:
    """Who says localhost means it."""
    names["localhost"] = ["127.0.0.1"]
    assert resolve_address("localhost") == "127.0.0.1"


def test_this_hosts_name_on_the_loopback_gives_the_way_outside(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian maps a host's own name to 127.0.1.1, which no other host can reach."""
    names["me"] = ["127.0.1.1"]
    names["other"] = ["127.0.1.1"]
    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    monkeypatch.setattr(address, "local_address", lambda _: "10.0.0.5")
    assert resolve_address("me") == "10.0.0.5"
    assert resolve_address("other") == "127.0.1.1"
    monkeypatch.setattr(address, "local_address", lambda _: None)
    assert resolve_address("me") == "127.0.1.1"


def test_gloo_on_the_loopback_is_noticed(
    names: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless GLOO_SOCKET_IFNAME names an interface."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostname", lambda: "me")
    assert not address.gloo_uses_loopback()
    names["me"] = ["127.0.1.1"]
    assert address.gloo_uses_loopback()
    names["me"] = ["127.0.1.1", "10.0.0.5"]
    assert not address.gloo_uses_loopback()
    names["me"] = ["127.0.1.1"]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert not address.gloo_uses_loopback()


def test_interfaces_are_found_by_address() -> None:
    """The loopback is everywhere; an unused address is nowhere."""
    assert address.interface_of("127.0.0.1") in {name for _, name in socket.if_nameindex()}
    assert address.interface_of("192.0.2.77") is None


@given(st.integers(1, 10**12), st.integers(0, 5))
def test_ports_are_stable_and_those_of_consecutive_jobs_and_steps_differ(
    job: int, step: int
) -> None:
    """Two jobs, or two steps, may share a node."""
    port = stable_port(str(job), str(step))
    assert port == stable_port(str(job), str(step))
    assert 20000 <= port < 30000
    assert port != stable_port(str(job + 1), str(step))
    assert port != stable_port(str(job), str(step + 1))


@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=10))
def test_any_job_id_gives_a_port(job: str, step: str) -> None:
    """Ids of arrays are no numbers; ids may be of any length."""
    assert 20000 <= stable_port(job, step) < 30000


def test_nodes_are_told_apart_by_name_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers with other names on one machine, and machines with one name, are nodes apart."""
    here = address.node_id()
    assert here == address.node_id()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    assert address.node_id() != here
