"""Several hosts on one machine: network namespaces joined by a bridge, with names of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


def missing() -> str:
    """Why no hosts can be made here; empty if they can."""
    absent = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: iproute2, util-linux)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"dm-{uuid.uuid4().hex[:8]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False)
    if made.returncode:
        return f"network namespaces cannot be made: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=True)
    return ""


@dataclass(frozen=True)
class Hosts:
    """Hosts by name, with their addresses."""

    prefix: str
    folder: Path
    addresses: Mapping[str, str]

    def command(self, host: str, command: Sequence[str]) -> list[str]:
        """`command` as a process on `host`: its network, its name, its /etc/hosts."""
        # nsenter, as `ip netns exec` also remounts /sys
        inside = f'hostname {host}; mount --bind {self.folder}/{host} /etc/hosts; exec "$@"'
        enter = ["nsenter", f"--net=/run/netns/{self.prefix}{host}", "unshare", "-u", "-m"]
        return [*enter, "sh", "-c", inside, "sh", *command]


@contextlib.contextmanager
def hosts(
    folder: Path, names: Sequence[str], *, names_on_loopback: bool = False
) -> Iterator[Hosts]:
    """Hosts of these names that reach each other, each over an interface `eth0`.

    Args:
        folder: for their /etc/hosts files.
        names: their host names.
        names_on_loopback: map each host's own name to 127.0.1.1, as Debian's installer does.
    """
    prefix = f"dm-{uuid.uuid4().hex[:6]}-"
    addresses = {name: f"10.77.0.{index}" for index, name in enumerate(names, 1)}
    switch = f"{prefix}sw"
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for index, (name, address) in enumerate(addresses.items()):
            host = f"{prefix}{name}"
            _ip("netns", "add", host)
            peer = ("peer", "name", f"v{index}", "netns", switch)
            _ip("link", "add", "eth0", "netns", host, "type", "veth", *peer)
            _ip("-n", switch, "link", "set", f"v{index}", "master", "br0", "up")
            _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", host, "link", "set", "lo", "up")
            _ip("-n", host, "link", "set", "eth0", "up")
            own = {name: "127.0.1.1"} if names_on_loopback else {}
            lines = [f"{where} {each}" for each, where in {**addresses, **own}.items()]
            (folder / name).write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        yield Hosts(prefix, folder, addresses)
    finally:
        for name in (*names, "sw"):
            if (Path("/run/netns") / f"{prefix}{name}").exists():
                _ip("netns", "del", f"{prefix}{name}")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=20)
