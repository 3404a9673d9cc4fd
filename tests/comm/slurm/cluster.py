"""A throw-away Slurm on this machine: real daemons, several node names, nothing left behind.

    python tests/comm/slurm/cluster.py DIRECTORY     # runs until it is interrupted
    SLURM_CONF=DIRECTORY/slurm.conf srun -N2 -n4 hostname

Needs root, and Debian's `slurm-wlm` (built for several slurmd on a machine) and `munge`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc", "sinfo")


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "the daemons need root"


@contextlib.contextmanager
def cluster(
    state: Path, nodes: Sequence[str], ports: Sequence[int], cpus: int = 8
) -> Iterator[Path]:
    """A running cluster's configuration file; the daemons end with the block.

    Args:
        state: a directory for all of its files, made if need be.
        nodes: the nodes' names, which need not resolve.
        ports: one for the controller and one for each node.
        cpus: of each node, invented.
    """
    (state / "munge").mkdir(parents=True)
    (state / "controller").mkdir()
    for part in (state, state / "munge"):
        part.chmod(0o755)  # munge refuses a socket that others cannot reach
    key = state / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    config = state / "slurm.conf"
    config.write_text(_configuration(state, nodes, ports, cpus))
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", "--num-threads=2"]
    munged += [f"--socket={state}/munge/socket", f"--pid-file={state}/munge/pid"]
    munged += [f"--log-file={state}/munge/log", f"--seed-file={state}/munge/seed"]
    daemons = []
    try:
        daemons.append(_daemon(munged))
        _wait_until((state / "munge" / "socket").exists, "munged", state)
        daemons.append(_daemon(["slurmctld", "-D", "-c", "-f", str(config)]))
        for name in nodes:
            (state / f"spool.{name}").mkdir()
            daemons.append(_daemon(["slurmd", "-D", "-N", name, "-f", str(config)]))
        _wait_until(lambda: _idle(config) == len(nodes), "the nodes", state)
        yield config
    finally:
        for daemon in reversed(daemons):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGTERM)
        for daemon in daemons:
            try:
                daemon.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def _configuration(state: Path, nodes: Sequence[str], ports: Sequence[int], cpus: int) -> str:
    host = socket.gethostname().split(".")[0]
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
        "RealMemory=1000 State=UNKNOWN"
        for name, port in zip(nodes, ports[1:], strict=True)
    ]
    text = (HERE / "slurm.conf.in").read_text()
    values = {
        "CONTROLLER": f"{host}(127.0.0.1)",
        "PORT": str(ports[0]),
        "STATE": str(state),
        "NODES": "\n".join(lines),
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _daemon(command: Sequence[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
    )


def _idle(config: Path) -> int:
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    environ = {**os.environ, "SLURM_CONF": str(config)}
    shown = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=20, check=False
    )
    return len(shown.stdout.split())


def _wait_until(condition: object, what: str, state: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline:
            logs = "\n".join(path.read_text()[-2000:] for path in state.rglob("*log"))
            raise TimeoutError(f"{what} did not come up within {seconds:g} s:\n{logs}")
        time.sleep(0.1)


if __name__ == "__main__":
    reason = missing()
    if reason:
        sys.exit(reason)
    with cluster(Path(sys.argv[1]).resolve(), ["n1", "n2", "n3"], range(17000, 17004)) as path:
        print(f"export SLURM_CONF={path}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
