"""The distributed set-up: launchers, process groups, object collectives. Knows no metrics."""

from distmetrics.comm.address import resolve_address, stable_port
from distmetrics.comm.cpu import cpu_group
from distmetrics.comm.device import device_index
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.ranks import (
    get_local_group,
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
    is_main_process,
    synchronize,
)
from distmetrics.comm.setup import cleanup_distributed, setup_distributed
from distmetrics.comm.slurm import expand_nodelist, get_slurm_env, parse_tasks_per_node

__all__ = [
    "LaunchEnv",
    "cleanup_distributed",
    "cpu_group",
    "device_index",
    "expand_nodelist",
    "get_local_group",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_slurm_env",
    "get_world_size",
    "is_main_process",
    "parse_tasks_per_node",
    "resolve_address",
    "setup_distributed",
    "stable_port",
    "synchronize",
]
