"""For tests of code that logs: ranks as processes or threads, and checks over world sizes."""

from distmetrics.sinks import MemorySink
from distmetrics.testing.invariance import assert_world_size_invariant
from distmetrics.testing.processes import run_ranks
from distmetrics.testing.threads import run_ranks_in_process

__all__ = [
    "MemorySink",
    "assert_world_size_invariant",
    "run_ranks",
    "run_ranks_in_process",
]
