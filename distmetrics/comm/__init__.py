"""The distributed set-up: launchers, process groups, object collectives. Knows no metrics."""

from distmetrics.comm.address import resolve_address, stable_port
from distmetrics.comm.aliases import (
    all_gather_all_prompt_token_ids,
    gather_inputs_object_for_inference,
)
from distmetrics.comm.context import CommContext, CommMode, ParallelMode
from distmetrics.comm.cpu import cpu_group
from distmetrics.comm.device import device_index
from distmetrics.comm.groups import create_sub_group, init_process_group
from distmetrics.comm.launch import LaunchEnv
from distmetrics.comm.objects import all_gather, gather, gather_objects, shared_random_seed
from distmetrics.comm.ragged import all_gather_token_ids, gather_ragged
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
    "CommContext",
    "CommMode",
    "LaunchEnv",
    "ParallelMode",
    "all_gather",
    "all_gather_all_prompt_token_ids",
    "all_gather_token_ids",
    "cleanup_distributed",
    "cpu_group",
    "create_sub_group",
    "device_index",
    "expand_nodelist",
    "gather",
    "gather_inputs_object_for_inference",
    "gather_objects",
    "gather_ragged",
    "get_local_group",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_slurm_env",
    "get_world_size",
    "init_process_group",
    "is_main_process",
    "parse_tasks_per_node",
    "resolve_address",
    "setup_distributed",
    "shared_random_seed",
    "stable_port",
    "synchronize",
]
