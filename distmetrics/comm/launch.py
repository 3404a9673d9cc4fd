"""What the launcher said: rank, world size, place on the node, and where the ranks meet."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from distmetrics.comm.address import stable_port
from distmetrics.comm.placement import Placement, from_arguments, from_variables
from distmetrics.comm.slurm import expand_nodelist
from distmetrics.comm.slurm_task import SlurmTask
from distmetrics.comm.variables import find
from distmetrics.errors import DistmetricsWarning, LaunchError


@dataclass(frozen=True)
class LaunchEnv:
    """What a process knows of its launch.

    Attributes:
        launcher: ``"explicit"`` (arguments), ``"torchrun"``, ``"env"`` (RANK and WORLD_SIZE set by
            hand), ``"slurm"``, ``"single"``, or ``"in-process"`` (a thread that acts as a rank).
        rank: this process's rank, 0 .. world_size - 1.
        world_size: the number of processes.
        local_rank: the rank among the processes of this node.
        local_world_size: the number of processes on this node.
        node_rank: this node's index.
        ranks_per_node: the number of ranks on each node, by node_rank; empty where the variables
            do not tell (`setup_distributed` looks at the hosts and returns it).
        master_addr: the host where the ranks meet, as it was given; None where nothing tells.
        master_port: its port.
        job_id: the scheduler's name of the job, as text; None without a scheduler.
        sources: for the fields above, the variables (or the rule) each came from.
        notes: contradictions between variables and how they were resolved, a sentence each.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    ranks_per_node: tuple[int, ...] = ()
    master_addr: str | None = None
    master_port: int | None = None
    job_id: str | None = None
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))
        if not 0 <= self.rank < self.world_size:
            raise LaunchError(
                f"{self._named('rank')} is not within 0 .. world_size - 1, with "
                f"{self._named('world_size')}"
            )
        if not 0 <= self.local_rank < self.local_world_size <= self.world_size:
            raise LaunchError(
                f"{self._named('local_rank')}, {self._named('local_world_size')} and "
                f"{self._named('world_size')} do not fit together: 0 <= local_rank < "
                "local_world_size <= world_size"
            )

    def _named(self, name: str) -> str:
        return f"{name} {getattr(self, name)} ({self.sources.get(name, 'given')})"

    @classmethod
    def detect(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        master_addr: str | None = None,
        master_port: int | None = None,
    ) -> LaunchEnv:
        """What arguments and variables say, in this order of precedence.

        1. `rank` and `world_size` given here; 2. RANK and WORLD_SIZE (torchrun, or set by hand);
        3. Slurm, values of the step before those of the job; 4. a single process.
        MASTER_ADDR and MASTER_PORT go before what is derived from Slurm's node list and job id.

        Contradictions are resolved so, each with one line of warning on rank 0: a step's number of
        tasks beats its job's; the number of tasks beats the tasks per node that were asked for;
        the shell of a batch script or of ``salloc`` (no step) is a single process.

        Args:
            environ: the variables, `os.environ` by default.
            rank: beats every variable; needs `world_size`.
            world_size: beats every variable; needs `rank`.
            master_addr: beats MASTER_ADDR.
            master_port: beats MASTER_PORT.

        Ranks: local.
        Collective: none.

        Raises:
            LaunchError: one variable of a pair is missing, or one is malformed; it is named.

        Example:
            >>> env = LaunchEnv.detect({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"})
            >>> env.launcher, env.rank, env.world_size, env.sources["rank"]
            ('env', 1, 2, 'RANK')
            >>> LaunchEnv.detect({}).launcher
            'single'
        """
        variables = os.environ if environ is None else environ
        if rank is not None or world_size is not None:
            place = from_arguments(variables, rank, world_size)
        else:
            place = from_variables(variables)
        addr, port, sources = _meeting_place(place, variables, master_addr, master_port)
        if place.notes and place.rank == 0:
            warnings.warn("; ".join(place.notes), DistmetricsWarning, stacklevel=2)
        return cls(
            launcher=place.launcher,
            rank=place.rank,
            world_size=place.world_size,
            local_rank=place.local_rank,
            local_world_size=place.local_world_size,
            node_rank=place.node_rank,
            ranks_per_node=place.ranks_per_node,
            master_addr=addr,
            master_port=port,
            job_id=place.job_id,
            sources={**place.sources, **sources},
            notes=place.notes,
        )


def _meeting_place(
    place: Placement, environ: Mapping[str, str], addr: str | None, port: int | None
) -> tuple[str | None, int | None, dict[str, str]]:
    """The address and the port where the ranks meet, and where each came from."""
    sources: dict[str, str] = {}
    found_addr, found_port = find(environ, "MASTER_ADDR"), find(environ, "MASTER_PORT")
    if addr is not None:
        sources["master_addr"] = "argument master_addr"
    elif found_addr is not None:
        addr, sources["master_addr"] = found_addr.text.strip(), found_addr.name
    if port is not None:
        sources["master_port"] = "argument master_port"
    elif found_port is not None:
        port, sources["master_port"] = found_port.number, found_port.name
    if place.world_size > 1 and place.launcher == "slurm":
        task = SlurmTask.read(environ)
        if addr is None and task.nodelist is not None:
            addr = expand_nodelist(task.nodelist.text)[0]
            sources["master_addr"] = f"first of {task.nodelist.name}"
        if port is None and task.job_id is not None:
            port = stable_port(task.job_id.text, task.step_id.text if task.step_id else "0")
            sources["master_port"] = f"derived from {task.job_id.name}"
    elif place.world_size > 1 and (addr is None) != (port is None):
        missing, there = (
            ("MASTER_ADDR", "master_port") if addr is None else ("MASTER_PORT", "master_addr")
        )
        raise LaunchError(f"{missing} is not set, but {sources[there]} is: set both")
    if port is not None and not 0 < port < 1 << 16:
        raise LaunchError(f"{sources['master_port']}: {port} is no port number (1 .. 65535)")
    return addr, port, sources
