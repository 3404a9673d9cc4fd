"""Addresses of hosts: what a name resolves to, which interface leads there, who this host is."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import struct
import sys
import zlib
from pathlib import Path

_FIRST_PORT, _PORTS = 20_000, 10_000  # below the range of which systems take ephemeral ports
_OUTSIDE = "192.0.2.1"  # documentation address (RFC 5737): asked for a route, never sent to


def stable_port(job_id: str, step_id: str = "0") -> int:
    """A port in 20000 .. 29999 that every rank of a job step derives alike.

    Consecutive job ids get different ports, and so do the steps of a job, which may run at the
    same time on one node. Ids that are no numbers (``"1234_7"``) are hashed.

    Example:
        >>> stable_port("17"), stable_port("17", "1"), stable_port("1234_7") == stable_port("12347")
        (20527, 20528, False)
    """
    parts = [
        int(text[-18:]) if re.fullmatch(r"\d+", text, re.ASCII) else zlib.crc32(text.encode())
        for text in (job_id.strip(), step_id.strip())
    ]
    return _FIRST_PORT + (parts[0] * 31 + parts[1]) % _PORTS


def resolve_address(host: str) -> str:
    """The routable IPv4 address of a host name.

    An IPv4 literal is returned as it is, an IPv6 literal in brackets, and a name that does not
    resolve unchanged. Of several addresses one that other hosts can reach goes before a loopback
    one; this machine's own name, if it only resolves to the loopback, gives the address that
    leads outside.

    Example:
        >>> resolve_address("127.0.0.1"), resolve_address("fe80::1"), resolve_address("[::1]")
        ('127.0.0.1', '[fe80::1]', '[::1]')
        >>> resolve_address("no-such-host.invalid")
        'no-such-host.invalid'
    """
    name = host.strip()
    version = _literal(name)
    if version is not None:
        return f"[{name.strip('[]')}]" if version == 6 else name
    addresses = _lookup(name)
    if not addresses:
        return name
    for address in addresses:
        if not ipaddress.ip_address(address).is_loopback:
            return address
    if name != "localhost" and name == socket.gethostname():
        return local_address(_OUTSIDE) or addresses[0]
    return addresses[0]


def bare_host(host: str) -> str:
    """`host` without the brackets of an IPv6 literal, as a socket takes it."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_loopback(host: str) -> bool:
    """True if `host` resolves to this machine's loopback and to nothing else."""
    version = _literal(host)
    addresses = [bare_host(host)] if version else _lookup(host)
    return bool(addresses) and all(ipaddress.ip_address(each).is_loopback for each in addresses)


def resolves(host: str) -> bool:
    """True if `host` is an address or a name that resolves to one."""
    return _literal(host) is not None or bool(_lookup(host))


def local_address(destination: str) -> str | None:
    """This machine's IPv4 address on the way to `destination`, None if no way leads there.

    Nothing is sent: a datagram socket is connected and asked for its own end.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((bare_host(destination), 9))
            address = probe.getsockname()[0]
        except OSError:
            return None
    return None if ipaddress.ip_address(address).is_loopback else str(address)


def interface_of(address: str) -> str | None:
    """The name of the network interface that has this IPv4 address, None if it is not found."""
    if not sys.platform.startswith("linux"):
        return None
    import fcntl  # absent on other systems

    get_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), get_address, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def interface_towards(host: str | None) -> str | None:
    """The network interface on the way to `host`; None if there is none but the loopback."""
    here = None if host is None else local_address(resolve_address(host))
    return None if here is None else interface_of(here)


def network_id() -> str:
    """A text that is the same for processes that reach each other over one loopback.

    Made of the machine's boot and of the network namespace: host names are no proof, as containers
    may share one.
    """
    parts = [_read(Path("/proc/sys/kernel/random/boot_id")) or socket.gethostname()]
    try:
        parts.append(str(Path("/proc/self/ns/net").readlink()))
    except OSError:
        parts.append("")  # no namespaces on this system
    return "/".join(parts)


def node_id() -> str:
    """A text that tells this node from others: the host name, and the machine it is on."""
    return f"{socket.gethostname()}/{network_id()}"


def gloo_uses_loopback() -> bool:
    """True if Gloo would listen on the loopback only, where no other host can reach it.

    Gloo takes the interface of GLOO_SOCKET_IFNAME, else the address this host's name resolves to.
    """
    return not os.environ.get("GLOO_SOCKET_IFNAME") and is_loopback(socket.gethostname())


def _literal(host: str) -> int | None:
    """4 or 6 for an IP address, None for a name."""
    try:
        return ipaddress.ip_address(bare_host(host)).version
    except ValueError:
        return None


def _lookup(name: str) -> list[str]:
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [str(entry[4][0]) for entry in found]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""
