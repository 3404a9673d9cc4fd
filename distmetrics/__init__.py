"""Metrics of a PyTorch training on many ranks that read as those of one.

A training loop hands over its outputs; a registry says what each key means; workers in the
background reduce all keys over all ranks, exactly; rank 0 writes the result.
"""

from distmetrics import comm, errors, presets, sinks
from distmetrics.comm import (
    CommContext,
    CommMode,
    LaunchEnv,
    ParallelMode,
    all_gather,
    all_gather_token_ids,
    cleanup_distributed,
    create_sub_group,
    expand_nodelist,
    gather,
    gather_objects,
    gather_ragged,
    get_local_rank,
    get_local_size,
    get_rank,
    get_slurm_env,
    get_world_size,
    init_process_group,
    is_main_process,
    parse_tasks_per_node,
    setup_distributed,
    shared_random_seed,
    synchronize,
)
from distmetrics.errors import (
    DeclarationConflict,
    DistmetricsError,
    DistmetricsWarning,
    PeerLostError,
    PeerTimeoutError,
)
from distmetrics.functional import reduce_dict, reduce_scalar_outputs_for_logging
from distmetrics.logger import Child, Logger
from distmetrics.notes import stand_by as _stand_by
from distmetrics.record import Record
from distmetrics.registry import Metric, Registry
from distmetrics.values import (
    Average,
    Count,
    L2Norm,
    Maximum,
    Minimum,
    Ratio,
    Same,
    Std,
    Total,
)

__all__ = [
    "Average",
    "Child",
    "CommContext",
    "CommMode",
    "Count",
    "DeclarationConflict",
    "DistmetricsError",
    "DistmetricsWarning",
    "L2Norm",
    "LaunchEnv",
    "Logger",
    "Maximum",
    "Metric",
    "Minimum",
    "ParallelMode",
    "PeerLostError",
    "PeerTimeoutError",
    "Ratio",
    "Record",
    "Registry",
    "Same",
    "Std",
    "Total",
    "all_gather",
    "all_gather_token_ids",
    "cleanup_distributed",
    "comm",
    "create_sub_group",
    "errors",
    "expand_nodelist",
    "gather",
    "gather_objects",
    "gather_ragged",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_slurm_env",
    "get_world_size",
    "init_process_group",
    "is_main_process",
    "parse_tasks_per_node",
    "presets",
    "reduce_dict",
    "reduce_scalar_outputs_for_logging",
    "setup_distributed",
    "shared_random_seed",
    "sinks",
    "synchronize",
]

_stand_by()
