"""What logging costs: time of the training thread, and CPU of all ranks, workers included.

    python benchmarks/hot_path.py

Forked processes on Gloo, one thread each. Every step logs one float32 scalar tensor a key, in a
*tight* loop, where the worker never rests, or with some *compute* a step.

*Training thread*: the time of one `log` call, with metrics.jsonl and TensorBoard on; beside it one
`torch.stack` of the same values in the same step, and a loop that reduces each of them by an
`all_reduce` of its own and reads it with `item()` (`by key`), and writes it on rank 0 with
`add_scalar` (`written`).

*CPU*: process time of all ranks for a step, without that of the compute. `packed` is what can
hardly be less: stack each step, add up in float64, one all-reduce a window. `log` has no sinks.
The variants run in turn, several times; figures are medians.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

import distmetrics as dm
from distmetrics.testing import run_ranks

Outputs = dict[str, torch.Tensor]
POOL = 32
"""Dicts of outputs that a loop logs in turn."""
REPEATS = 5
SIZE = 192
"""Rows of the matrices whose products are the compute of a step."""


class Load(NamedTuple):
    """One loop to measure.

    Attributes:
        keys: scalars a step.
        every: steps of a window.
        products: matrix products a step, besides logging.
    """

    keys: int
    every: int
    products: int

    @property
    def kind(self) -> str:
        """The kind of loop, for tables."""
        return "compute" if self.products else "tight"


# --- what is compared ---------------------------------------------------------------------------

Log = Callable[[Outputs, int], object]


@contextlib.contextmanager
def packed(load: Load) -> Iterator[tuple[Log, Callable[[], object]]]:
    """Stack each step, add up in float64, one all-reduce a window."""
    sums = torch.zeros(load.keys, dtype=torch.float64)
    latest: list[float] = []

    def log(outputs: Outputs, step: int) -> None:
        sums.add_(torch.stack(list(outputs.values())))
        if (step + 1) % load.every == 0:
            dist.all_reduce(sums)
            latest[:] = (sums / (load.every * dist.get_world_size())).tolist()
            sums.zero_()

    yield log, lambda: None


@contextlib.contextmanager
def logger(load: Load, sinks: bool) -> Iterator[tuple[Log, Callable[[], object]]]:
    """A logger without any sink, or with metrics.jsonl and TensorBoard."""
    registry = dm.Registry()
    registry.average("*")
    with tempfile.TemporaryDirectory() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared)  # one folder for all ranks
        run_dir = Path(shared[0], "run") if sinks else None
        names = ["tensorboard"] if sinks else []
        with dm.Logger(registry, run_dir, names, every=load.every, notice_after=600) as made:
            yield (
                lambda outputs, step: made.log(outputs, step=step),
                lambda: made.flush(wait=True),
            )


# --- loops --------------------------------------------------------------------------------------


def pool_of(load: Load) -> list[Outputs]:
    """Outputs to log, every value a tensor of its own."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    names = [f"group{i % 8}/metric{i}" for i in range(load.keys)]
    return [{name: torch.rand((), generator=generator) for name in names} for _ in range(POOL)]


def compute(load: Load, matrix: torch.Tensor) -> None:
    """What a training step would do."""
    for _ in range(load.products):
        torch.mm(matrix, matrix)


def times_of_calls(load: Load, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each `log`, and of each `torch.stack` of the same values, in one loop."""
    pool, matrix = pool_of(load), torch.rand(SIZE, SIZE)
    logs, stacks = [], []
    clock = time.perf_counter
    with logger(load, sinks=True) as (log, settle):
        for step in range(steps + POOL):
            outputs = pool[step % POOL]
            compute(load, matrix)
            begin = clock()
            torch.stack(list(outputs.values()))
            middle = clock()
            log(outputs, step)
            end = clock()
            if step >= POOL:
                stacks.append(middle - begin)
                logs.append(end - middle)
        settle()
    return logs, stacks


def times_by_key(load: Load, steps: int, written: bool) -> list[float]:
    """Seconds of reducing each key by a collective of its own, reading it, and writing it."""
    pool, matrix, times = pool_of(load), torch.rand(SIZE, SIZE), []
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for step in range(steps + 1):
            compute(load, matrix)
            begin = time.perf_counter()
            for key, value in pool[step % POOL].items():
                copy = value.clone()
                dist.all_reduce(copy)
                number = copy.item() / dist.get_world_size()
                if written and dist.get_rank() == 0:
                    writer.add_scalar(key, number, step)
            if step:
                times.append(time.perf_counter() - begin)
    return times


def cpu_of(
    variant: Callable[[Load], contextlib.AbstractContextManager[Any]], load: Load, steps: int
) -> float:
    """Process seconds of this rank for a step, until all is reduced, without the compute's."""
    pool, matrix = pool_of(load), torch.rand(SIZE, SIZE)
    with variant(load) as (log, settle):
        first = 4 * load.every  # keys become known
        for step in range(first):
            log(pool[step % POOL], step)
        settle()
        dist.barrier()
        computed = 0.0
        begin = time.process_time()
        for step in range(first, first + steps):
            if load.products:
                before = time.thread_time()
                compute(load, matrix)
                computed += time.thread_time() - before
            log(pool[step % POOL], step)
        settle()
        spent = time.process_time() - begin
    dist.barrier()
    return (spent - computed) / steps


def products_in(seconds: float) -> int:
    """How many matrix products take so long."""
    matrix = torch.rand(SIZE, SIZE)
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - begin)
    return max(1, round(seconds / statistics.median(times)))


# --- the ranks ----------------------------------------------------------------------------------

VARIANTS: dict[str, Callable[[Load], contextlib.AbstractContextManager[Any]]] = {
    "packed": packed,
    "log": lambda load: logger(load, sinks=False),
    "log, sinks": lambda load: logger(load, sinks=True),
}


def measure(loads: list[Load], steps: int) -> dict[Load, dict[str, Any]]:
    """All figures of this rank, by loop."""
    found: dict[Load, dict[str, Any]] = {}
    for load in loads:
        few = max(200, steps // 4) if load.products else steps
        fewest = max(3, 500 // load.keys)
        logs, stacks = times_of_calls(load, few)
        cpu: dict[str, list[float]] = {name: [] for name in VARIANTS}
        for _ in range(REPEATS):
            for name, variant in VARIANTS.items():
                cpu[name].append(cpu_of(variant, load, few))
        found[load] = {
            "log": logs,
            "stack": stacks,
            "by key": times_by_key(load, fewest, written=False),
            "written": times_by_key(load, fewest, written=True),
            "cpu": cpu,
        }
    return found


def percentile(values: list[float], percent: float) -> float:
    """The value below which so many percent lie."""
    return sorted(values)[min(len(values) - 1, int(len(values) * percent / 100))]


def print_times(load: Load, ranks: list[dict[str, Any]]) -> None:
    """One line on the training thread's time, over all ranks' calls."""
    logs = [value for rank in ranks for value in rank["log"]]
    stacks = [value for rank in ranks for value in rank["stack"]]
    log, stack = statistics.median(logs), statistics.median(stacks)
    line = f"{load.keys:5} {load.kind:8}"
    for median, values in ((stack, stacks), (log, logs)):
        line += f"{median * 1e6:9.1f}{percentile(values, 99) * 1e6:9.0f}"
    line += f"{log / stack:11.2f}"
    for name in ("by key", "written"):
        loop = statistics.median(value for rank in ranks for value in rank[name])
        line += f"{loop * 1e6:10.0f}{loop / log:6.0f}"
    print(line)


def print_cpu(load: Load, ranks: list[dict[str, Any]]) -> None:
    """One line on the CPU of all ranks together."""
    found = {}
    for name in VARIANTS:
        repeats = zip(*(rank["cpu"][name] for rank in ranks), strict=True)
        found[name] = statistics.median(map(sum, repeats))
    packed = found["packed"]
    print(
        f"{load.keys:5} {load.kind:8}"
        + "".join(f"{seconds * 1e6:12.1f}" for seconds in found.values())
        + f"{found['log'] / packed:12.2f}{found['log, sinks'] / packed:14.2f}"
    )


@click.command(help=__doc__.split("\n")[0])
@click.option("--world-size", default=2, show_default=True, help="Processes.")
@click.option("--keys", multiple=True, default=(8, 64, 512), show_default=True, help="Scalars.")
@click.option("--every", default=10, show_default=True, help="Steps of a window.")
@click.option("--steps", default=1000, show_default=True, help="Steps of a tight loop.")
@click.option("--compute-ms", default=2.0, show_default=True, help="Compute of a paced step.")
def main(world_size: int, keys: tuple[int, ...], every: int, steps: int, compute_ms: float) -> None:
    """Run both tables."""
    torch.set_num_threads(1)
    products = products_in(compute_ms / 1e3)
    loads = [Load(n, every, p) for p in (0, products) for n in keys]
    results = run_ranks(measure, world_size, loads, steps, timeout=600)
    print(f"{world_size} processes, every={every}, torch {torch.__version__}; microseconds\n")
    print("time of the training thread for a step, metrics.jsonl and TensorBoard on")
    print(
        f"{'keys':>5} {'loop':8}{'stack':>9}{'p99':>9}{'log':>9}{'p99':>9}{'log:stack':>11}"
        f"{'by key':>10}{':log':>6}{'written':>10}{':log':>6}"
    )
    for load in loads:
        print_times(load, [rank[load] for rank in results])
    print("\nCPU of all ranks for a step")
    print(
        f"{'keys':>5} {'loop':8}"
        + "".join(f"{name:>12}" for name in VARIANTS)
        + f"{'log:packed':>12}{'sinks:packed':>14}"
    )
    for load in loads:
        print_cpu(load, [rank[load] for rank in results])


if __name__ == "__main__":
    main()
