"""Metrics of a PyTorch training on many ranks that read as those of one.

A training loop hands over its outputs; a registry says what each key means; workers in the
background reduce all keys over all ranks, exactly; rank 0 writes the result.
"""

from distmetrics import comm, errors, presets, sinks
from distmetrics.comm import (
    LaunchEnv,
    cleanup_distributed,
    get_local_rank,
    get_local_size,
    get_rank,
    get_world_size,
    is_main_process,
    setup_distributed,
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
    "PeerLostError",
    "PeerTimeoutError",
    "Ratio",
    "Record",
    "Registry",
    "Same",
    "Std",
    "Total",
    "cleanup_distributed",
    "comm",
    "errors",
    "get_local_rank",
    "get_local_size",
    "get_rank",
    "get_world_size",
    "is_main_process",
    "presets",
    "reduce_dict",
    "reduce_scalar_outputs_for_logging",
    "setup_distributed",
    "sinks",
    "synchronize",
]
