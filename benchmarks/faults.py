"""Faults that are injected into runs on this machine, and what is lost by them: nothing.

    python benchmarks/faults.py [--soak]

Every fault falls at a named point of a round while data is in flight, and every row is compared
with its value, in bits. *Known after* is the time from the fault to the call that tells the other
ranks' training of it. With --soak there are 50 runs that are killed as a whole.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TF_CPP_MIN_LOG_LEVEL="2")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests' ranks are not installed

import click
import torch

from tests.faults.crash import crash, kill, stop
from tests.faults.points import WRITING
from tests.faults.train import Fault

STEPS = 300
POINTS = ("spooling", "header", "sum", "max", "reduced")


class Tally:
    """What the faults of one kind came to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults = self.windows = self.lost = 0
        self.seconds: list[float] = []

    def add(self, windows: int, lost: int, seconds: list[float]) -> None:
        """One more fault."""
        self.faults += 1
        self.windows += windows
        self.lost += lost
        self.seconds += seconds

    def line(self) -> str:
        """A line of the table."""
        known = "-"
        if self.seconds:
            known = f"{statistics.median(self.seconds):.2f} / {max(self.seconds):.2f}"
        return f"{self.name:<44}{self.faults:>7}{self.windows:>9}{self.lost:>6}   {known}"


def killed_ranks(folders: Iterator[Path], world_size: int, rounds: int) -> Iterator[Tally]:
    """One rank is killed at each point: another one, and the one that writes."""
    for rank, points in ((1, POINTS), (0, POINTS + WRITING)):
        for point in points:
            tally = Tally(f"SIGKILL of rank {rank} at {point}")
            for number in range(rounds):
                fault = Fault(rank, point, after=1 + number)
                left = kill(next(folders), fault, world_size, STEPS)
                tally.add(left.windows, left.lost, left.seconds)
            yield tally


def stopped_ranks(folders: Iterator[Path], world_size: int, rounds: int) -> Iterator[Tally]:
    """One rank is stopped for longer than the others wait, and goes on."""
    for rank in (1, 0):
        tally = Tally(f"SIGSTOP of rank {rank} for 2 s and more, then on")
        for _ in range(rounds):
            windows, lost, seconds = stop(next(folders), Fault(rank, "sum", "stop"), world_size)
            tally.add(windows, lost, seconds)
        yield tally


def killed_runs(
    folders: Iterator[Path], world_size: int, runs: int, draw: random.Random
) -> Iterator[Tally]:
    """All ranks are killed at random moments."""
    tally, written, torn = Tally("SIGKILL of all ranks at random moments"), 0, 0
    for _ in range(runs):
        seconds, pace = draw.uniform(0.0, 1.5), draw.choice([0.0, 0.0005, 0.002, 0.01])
        left = crash(next(folders), world_size, seconds, pace, draw)
        tally.add(left.windows, left.lost, [])
        written += left.written
        torn += left.torn
    yield tally
    print(f"  of these {written} windows had been written before; {torn} last lines were torn")


@click.command(help=__doc__)
@click.option("--soak", is_flag=True, help="50 killed runs, and every point several times.")
@click.option("--runs", type=int, help="Runs that are killed as a whole.")
@click.option("--ranks", default=3, show_default=True, help="Processes of a run.")
@click.option("--seed", type=int, help="Of the random moments; by default the time.")
def main(soak: bool, runs: int | None, ranks: int, seed: int | None) -> None:
    """Run the faults; exit code 1 where anything was lost."""
    torch.set_num_threads(1)
    logging.getLogger("distmetrics").setLevel(logging.WARNING)  # no line for each start
    seed = int(time.time()) if seed is None else seed
    draw = random.Random(seed)  # noqa: S311 - chooses moments, not secrets
    runs = runs or (50 if soak else 5)
    rounds = 3 if soak else 1
    print(f"seed {seed}, {ranks} ranks, {os.cpu_count()} cores")
    print(f"{'fault':<44}{'faults':>7}{'windows':>9}{'lost':>6}   known after s (median / most)")
    began, faults, windows, lost = time.monotonic(), 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="distmetrics-") as root:
        folders = (Path(root) / str(number) for number in itertools.count())
        for tally in itertools.chain(
            killed_ranks(folders, ranks, rounds),
            stopped_ranks(folders, ranks, rounds),
            killed_runs(folders, ranks, runs, draw),
        ):
            print(tally.line(), flush=True)
            faults += tally.faults
            windows += tally.windows
            lost += tally.lost
    seconds = time.monotonic() - began
    print(f"{faults} faults, {windows} windows on disk, windows lost = {lost}, in {seconds:.0f} s")
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
