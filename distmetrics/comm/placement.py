"""Where a process stands among the others, by each launcher's variables.

A contradiction between variables is resolved by a rule and noted; a missing or malformed variable
is a `LaunchError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from distmetrics.comm.slurm import parse_tasks_per_node
from distmetrics.comm.slurm_task import SlurmTask
from distmetrics.comm.variables import Found, find
from distmetrics.errors import LaunchError

ONE_NODE = "assumed: one node"
AT_LEAST = "assumed: at least"


@dataclass(frozen=True)
class Placement:
    """The part of a `LaunchEnv` (see there) that a launcher's variables tell."""

    launcher: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    ranks_per_node: tuple[int, ...] = ()
    job_id: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def from_arguments(
    environ: Mapping[str, str], rank: int | None, world_size: int | None
) -> Placement:
    """The placement of explicit `rank` and `world_size`, which are given together."""
    if rank is None or world_size is None:
        missing = "rank" if rank is None else "world_size"
        raise LaunchError(f"{missing} is missing: rank and world_size are given together")
    given = {"rank": "argument rank", "world_size": "argument world_size"}
    try:
        found = from_variables(environ)
    except LaunchError:
        # the arguments stand above variables that make no sense
        found = Placement("single")
    if (found.rank, found.world_size) != (rank, world_size):
        found = replace(_one_node("explicit", rank, world_size), job_id=found.job_id)
    # else the launcher means the same world, and its word on the nodes holds
    return replace(found, launcher="explicit", sources={**found.sources, **given})


def from_variables(environ: Mapping[str, str]) -> Placement:
    """RANK and WORLD_SIZE, else Slurm, else a single process."""
    if find(environ, "RANK") or find(environ, "WORLD_SIZE"):
        return _from_rank(environ)
    task = SlurmTask.read(environ)
    if task.rank or task.step or task.job_id:
        return _from_slurm(task)
    return Placement("single", ranks_per_node=(1,))


def _from_rank(environ: Mapping[str, str]) -> Placement:
    rank, world_size = find(environ, "RANK"), find(environ, "WORLD_SIZE")
    if rank is None or world_size is None:
        missing, there = ("WORLD_SIZE", "RANK") if rank else ("RANK", "WORLD_SIZE")
        raise LaunchError(
            f"{missing} is not set, but {there} is: set both, or neither for a single process"
        )
    elastic, task = find(environ, "TORCHELASTIC_RUN_ID"), SlurmTask.read(environ)
    launcher = "torchrun" if elastic else "env"
    local_rank = find(environ, "LOCAL_RANK")
    if local_rank is not None:
        found = _on_node(environ, launcher, rank.number, world_size.number, local_rank)
    elif _same_world(task, rank.number, world_size.number):
        found = replace(_from_slurm(task), launcher=launcher)
    else:
        found = _one_node(launcher, rank.number, world_size.number)
    sources = {**found.sources, "rank": rank.name, "world_size": world_size.name}
    job_id = task.job_id or (elastic if elastic and elastic.text != "none" else None)
    if job_id is not None:
        sources["job_id"] = job_id.name
    return replace(found, job_id=job_id.text if job_id else None, sources=sources)


def _on_node(
    environ: Mapping[str, str], launcher: str, rank: int, world_size: int, local_rank: Found
) -> Placement:
    """The place on the node by LOCAL_RANK and its kin, as far as they are set."""
    local_size = find(environ, "LOCAL_WORLD_SIZE")
    node = find(environ, "GROUP_RANK", "NODE_RANK")
    sources = {"local_rank": local_rank.name}
    if local_size is not None:
        size, sources["local_world_size"] = local_size.number, local_size.name
    elif node is None and local_rank.number == rank:
        size, sources["local_world_size"] = world_size, ONE_NODE
    else:
        size, sources["local_world_size"] = local_rank.number + 1, AT_LEAST
    if node is not None:
        sources["node_rank"] = node.name
    nodes = find(environ, "GROUP_WORLD_SIZE", "NNODES")
    per_node: tuple[int, ...] = ()
    if size == world_size:
        per_node = (size,)
    elif local_size and node and node.number < 2 and nodes and nodes.number == 2:
        other = world_size - size
        per_node = (size, other) if node.number == 0 else (other, size)
    if per_node:
        sources["ranks_per_node"] = f"{sources['local_world_size']}, WORLD_SIZE"
    return Placement(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank.number,
        local_world_size=size,
        node_rank=node.number if node else 0,
        ranks_per_node=per_node,
        sources=sources,
    )


def _one_node(launcher: str, rank: int, world_size: int) -> Placement:
    """The placement where nothing tells; `setup_distributed` looks at the hosts."""
    return Placement(
        launcher=launcher,
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        ranks_per_node=(1,) if world_size == 1 else (),
        sources=dict.fromkeys(("local_rank", "local_world_size"), ONE_NODE),
    )


def _same_world(task: SlurmTask, rank: int, world_size: int) -> bool:
    """RANK and WORLD_SIZE were set from Slurm's own, so that its word on the nodes holds."""
    if not (task.step and task.rank and task.ntasks and task.local_rank and task.node_rank):
        return False
    return (task.rank.number, task.ntasks.number) == (rank, world_size)


def _from_slurm(task: SlurmTask) -> Placement:
    job_id = task.job_id.text if task.job_id else None
    sources = {"job_id": task.job_id.name} if task.job_id else {}
    notes = _shell_notes(task)
    if notes is not None:
        return Placement("single", ranks_per_node=(1,), job_id=job_id, sources=sources, notes=notes)
    rank, ntasks = task.rank, task.ntasks
    if rank is None:
        step = task.step.name if task.step else "the step"
        raise LaunchError(f"SLURM_PROCID is not set, but {step} is: start the tasks with srun")
    if ntasks is None:
        raise LaunchError(
            f"SLURM_STEP_NUM_TASKS and SLURM_NTASKS are not set, but SLURM_PROCID={rank.text} is: "
            "start the tasks with srun, or set RANK and WORLD_SIZE"
        )
    sources |= {"rank": rank.name, "world_size": ntasks.name}
    found = Placement(
        "slurm",
        rank=rank.number,
        world_size=ntasks.number,
        job_id=job_id,
        sources=sources,
        notes=_contradictions(task, ntasks),
    )
    return _on_slurm_node(task, found)


def _on_slurm_node(task: SlurmTask, found: Placement) -> Placement:
    """`found` with the place on the node."""
    if found.world_size == 1:
        return replace(found, ranks_per_node=(1,))
    local_rank, node = task.local_rank, task.node_rank
    if local_rank is None or node is None:
        missing = "SLURM_NODEID" if local_rank else "SLURM_LOCALID"
        raise LaunchError(
            f"{missing} is not set, but {found.sources['rank']} and {found.sources['world_size']} "
            "are: start the tasks with srun, or set RANK, WORLD_SIZE and LOCAL_RANK"
        )
    counts, source, notes = _tasks_per_node(task, found.world_size)
    sources = {**found.sources, "local_rank": local_rank.name, "node_rank": node.name}
    if node.number < len(counts):
        size = counts[node.number]
        sources["ranks_per_node"] = sources["local_world_size"] = source
    else:
        counts, size, sources["local_world_size"] = (), local_rank.number + 1, AT_LEAST
    return replace(
        found,
        local_rank=local_rank.number,
        local_world_size=size,
        node_rank=node.number,
        ranks_per_node=counts,
        sources=sources,
        notes=(*found.notes, *notes),
    )


def _shell_notes(task: SlurmTask) -> tuple[str, ...] | None:
    """What to say of a shell in the allocation that is no task of a step; None for a task."""
    if task.step or (task.rank and task.rank.number > 0):
        return None
    if task.ntasks is None:
        return ()
    if task.ntasks.number == 1:
        # as good as a task, if it has a rank; what contradicts it is told of there
        return None if task.rank else ()
    note = (
        f"{task.ntasks.name}={task.ntasks.text}, but this is no task of a job step "
        "(SLURM_STEP_ID is not set): a shell in the allocation is a single process; "
        f"srun starts the {task.ntasks.text} tasks"
    )
    return (note,)


def _contradictions(task: SlurmTask, ntasks: Found) -> tuple[str, ...]:
    notes: list[str] = []
    job, per_node = task.job_ntasks, task.ntasks_per_node
    if job and job.number != ntasks.number:
        notes.append(
            f"{ntasks.name}={ntasks.text} and {job.name}={job.text} disagree: "
            "the step's number of tasks is used"
        )
    nnodes = task.nnodes.number if task.nnodes else 1
    if per_node and per_node.number * nnodes != ntasks.number:
        notes.append(
            f"{ntasks.name}={ntasks.text} and {per_node.name}={per_node.text} on {nnodes} "
            f"node{'s' if nnodes > 1 else ''} disagree: the world size is {ntasks.number}"
        )
    return tuple(notes)


def _tasks_per_node(
    task: SlurmTask, world_size: int
) -> tuple[tuple[int, ...], str, tuple[str, ...]]:
    """The tasks of each node, where from, and what is wrong; empty where it cannot be told."""
    nnodes = task.nnodes.number if task.nnodes else None
    if task.tasks_per_node is None:
        if nnodes == 1 and task.nnodes:
            return (world_size,), task.nnodes.name, ()
        per_node = task.ntasks_per_node
        if per_node and nnodes and per_node.number * nnodes == world_size:
            return (per_node.number,) * nnodes, per_node.name, ()
        return (), "", ()
    name, text = task.tasks_per_node.name, task.tasks_per_node.text
    counts = parse_tasks_per_node(text)
    if len(counts) == 1 and nnodes:
        counts *= nnodes
    if sum(counts) == world_size:
        return tuple(counts), name, ()
    note = (
        f"{name}={text} makes {sum(counts)} tasks, but the world size is {world_size}: "
        "the nodes are told apart when the ranks meet"
    )
    return (), name, (note,)
