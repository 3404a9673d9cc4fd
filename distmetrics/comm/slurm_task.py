"""The environment variables that Slurm sets for a task, those of the step before the job's.

List: https://slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distmetrics.comm.variables import Found, find


@dataclass(frozen=True)
class SlurmTask:
    """The variables of one task, those of the step before those of the job.

    Each is None where it is not set. `step` tells a task that `srun` started from the shell of a
    batch script or of `salloc`, which has the job's variables, too.
    """

    step: Found | None
    rank: Found | None
    ntasks: Found | None
    job_ntasks: Found | None
    ntasks_per_node: Found | None
    local_rank: Found | None
    node_rank: Found | None
    nnodes: Found | None
    tasks_per_node: Found | None
    nodelist: Found | None
    node_name: Found | None
    job_id: Found | None
    step_id: Found | None

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> SlurmTask:
        """The task that `environ` describes."""
        step = find(
            environ,
            "SLURM_STEP_ID",
            "SLURM_STEPID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_STEP_NODELIST",
            "SLURM_SRUN_COMM_HOST",
        )
        return cls(
            step=step,
            rank=find(environ, "SLURM_PROCID"),
            ntasks=find(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
            job_ntasks=find(environ, "SLURM_NTASKS", "SLURM_NPROCS"),
            ntasks_per_node=find(environ, "SLURM_NTASKS_PER_NODE"),
            local_rank=find(environ, "SLURM_LOCALID"),
            node_rank=find(environ, "SLURM_NODEID"),
            nnodes=find(environ, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
            tasks_per_node=find(environ, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"),
            nodelist=find(environ, "SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"),
            node_name=find(environ, "SLURMD_NODENAME"),
            job_id=find(environ, "SLURM_JOB_ID", "SLURM_JOBID"),
            step_id=find(environ, "SLURM_STEP_ID", "SLURM_STEPID"),
        )
