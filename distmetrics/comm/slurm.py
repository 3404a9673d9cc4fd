"""Slurm's notations: pure parsers of its task counts and node lists, and its variables parsed.

Formats: https://slurm.schedmd.com/srun.html (output environment variables) and
https://slurm.schedmd.com/scontrol.html (``show hostnames``).
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distmetrics.comm.slurm_task import SlurmTask
from distmetrics.errors import LaunchError

_TASKS = re.compile(r"(\d{1,9})(?:\(x(\d{1,9})\))?", re.ASCII)
_NAME = re.compile(r"(?:[^\s,\[\]()]|\[[^\[\]]*\])+")
_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?", re.ASCII)
_MOST = 1 << 20
"""More nodes than any cluster has: a longer expansion is a misprint that would fill the memory."""


def parse_tasks_per_node(
    value: str, nnodes: int | None = None, ntasks: int | None = None
) -> list[int]:
    """The number of tasks on each node, from Slurm's short form.

    Args:
        value: e.g. ``"4(x2),3"``: two nodes with 4 tasks, one with 3. A single number for several
            nodes is repeated.
        nnodes: the number of nodes, if known; the result has that length.
        ntasks: the number of tasks, if known; the result has that sum.

    Raises:
        LaunchError: `value` is malformed or does not fit `nnodes` or `ntasks`; it is quoted.

    Example:
        >>> parse_tasks_per_node("4(x2),3")
        [4, 4, 3]
        >>> parse_tasks_per_node("2", nnodes=3, ntasks=6)
        [2, 2, 2]
    """
    text = str(value)
    counts: list[int] = []
    for part in text.split(","):
        match = _TASKS.fullmatch(part.strip())
        count, repeat = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if count < 1 or repeat < 1 or len(counts) + repeat > _MOST:
            raise LaunchError(
                f"tasks per node {text!r}: {part.strip()!r} is not of the form '4' or '4(x2)'"
            )
        counts.extend([count] * repeat)
    if nnodes is not None and len(counts) == 1:
        counts *= nnodes
    if nnodes is not None and len(counts) != nnodes:
        raise LaunchError(f"tasks per node {text!r} is for {len(counts)} nodes, not for {nnodes}")
    if ntasks is not None and sum(counts) != ntasks:
        raise LaunchError(
            f"tasks per node {text!r} makes {sum(counts)} tasks on {len(counts)} nodes, "
            f"but there are {ntasks}"
        )
    return counts


def expand_nodelist(value: str | Sequence[str]) -> list[str]:
    """The host names of a Slurm node list, in order, with their zero padding.

    Args:
        value: e.g. ``"node[01-03,07],login"``; a sequence of such texts is taken as well.

    Raises:
        LaunchError: `value` is malformed, or no text; it is quoted.

    Example:
        >>> expand_nodelist("node[01-03,07],a-[1-2]-b,login")
        ['node01', 'node02', 'node03', 'node07', 'a-1-b', 'a-2-b', 'login']
        >>> expand_nodelist("r[1-2]n[08-10]")[:4]
        ['r1n08', 'r1n09', 'r1n10', 'r2n08']
    """
    text = value if isinstance(value, str) else _joined(value)
    names: list[str] = []
    for name in _split_names(text):
        parts = [
            _expand_brackets(text, match[1]) if match[2] is None else [match[2]]
            for match in _PART.finditer(name)
        ]
        if len(names) + math.prod(len(part) for part in parts) > _MOST:
            raise _malformed(text, "it names more nodes than any cluster has")
        names.extend("".join(choice) for choice in itertools.product(*parts))
    return names


def _joined(texts: Any) -> str:
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise LaunchError(
            f"a Slurm node list is a text such as 'node[01-03]', not {texts!r} (is "
            "SLURM_JOB_NODELIST set here?); set MASTER_ADDR to the host of the first task to do "
            "without it"
        )
    return ",".join(texts)


def _split_names(text: str) -> Iterator[str]:
    """The parts between the commas that stand outside brackets."""
    position = 0
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        match = _NAME.match(text, position)
        if match is None:
            raise _malformed(text, f"a host name is expected at character {position}")
        yield match[0]
        position = match.end()
        rest = text[position:].lstrip()
        if not rest:
            return
        if not rest.startswith(","):
            raise _malformed(text, f"unexpected {rest[0]!r} after {match[0]!r}")
        position = len(text) - len(rest) + 1


def _expand_brackets(text: str, inside: str) -> list[str]:
    """The numbers of ``01-03,07``, padded as the lower end of each range is."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed(text, f"{part!r} in brackets is neither a number nor a range")
        low, high = match[1], match[2] or match[1]
        if int(high) < int(low) or (len(high) > len(low) and high.startswith("0")):
            raise _malformed(text, f"the range {part!r} does not ascend")
        if int(high) - int(low) >= _MOST:
            raise _malformed(text, f"the range {part!r} is longer than any cluster")
        width = len(low)
        numbers.extend(f"{number:0{width}d}" for number in range(int(low), int(high) + 1))
    return numbers


def _malformed(text: str, reason: str) -> LaunchError:
    return LaunchError(
        f"Slurm node list {text!r} cannot be read: {reason}; set MASTER_ADDR to the host of the "
        "first task to do without it"
    )


def get_slurm_env(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What Slurm says of this task, parsed; values of the step before those of the job.

    Args:
        environ: the variables to read, `os.environ` by default.

    Returns:
        `job_id` (text, since ids of arrays may be no numbers), `ntasks`, `ntasks_per_node` (as
        asked for, else the tasks on this node), `nnodes`, `node_id`, `proc_id`, `local_id` (ints),
        `tasks_per_node_list` (an int a node) and `nodelist` (a name a node). What is not set is
        None, the lists are empty.

    Raises:
        LaunchError: a variable is malformed; it is quoted.

    Example:
        >>> env = get_slurm_env({"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[1-2]",
        ...                      "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_NODEID": "1"})
        >>> env["nodelist"], env["tasks_per_node_list"], env["ntasks_per_node"]
        (['n1', 'n2'], [2, 1], 1)
    """
    task = SlurmTask.read(os.environ if environ is None else environ)
    nnodes = task.nnodes.number if task.nnodes else None
    counts = parse_tasks_per_node(task.tasks_per_node.text, nnodes) if task.tasks_per_node else []
    node = task.node_rank.number if task.node_rank else None
    per_node = task.ntasks_per_node.number if task.ntasks_per_node else None
    if per_node is None and node is not None and node < len(counts):
        per_node = counts[node]
    return {
        "job_id": task.job_id.text if task.job_id else None,
        "ntasks": task.ntasks.number if task.ntasks else None,
        "ntasks_per_node": per_node,
        "tasks_per_node_list": counts,
        "nnodes": nnodes,
        "node_id": node,
        "proc_id": task.rank.number if task.rank else None,
        "local_id": task.local_rank.number if task.local_rank else None,
        "nodelist": expand_nodelist(task.nodelist.text) if task.nodelist else [],
    }
