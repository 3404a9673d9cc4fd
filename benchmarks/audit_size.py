"""Times `audit compare` on large files: 3 runs of 200 keys by 100,000 steps by default.

Run: python benchmarks/audit_size.py [--keys 200] [--steps 100000] [--differing] [--folder DIR]
With --differing no key is equal, so that each has to be told from noise.
Prints the seconds and the peak memory of the comparison, which runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

WORLD_SIZES = (1, 2, 4)


def write_run(folder: Path, world_size: int, keys: int, steps: int, *, differing: bool) -> int:
    """Writes one run; returns the file's bytes.

    Its values do not depend on the world size; or, if `differing`, each loss is a mean over all
    ranks' samples and one rank's own scatter, which takes the longest to judge.
    """
    rng = np.random.default_rng(0)
    own = np.random.default_rng(world_size)
    spread = 0.1 * (world_size - 1) ** 0.5 if differing else 0.0
    names = [f"layer{key}/{'num_pairs' if key % 4 == 0 else 'loss'}" for key in range(keys)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps({"world_size": world_size}))
    path = folder / "metrics.jsonl"
    with path.open("w") as file:
        for step in range(steps):
            numbers = (1.0 + rng.random(keys) + spread * own.standard_normal(keys)).tolist()
            values = {
                name: int(number * 1000) if place % 4 == 0 else number
                for place, (name, number) in enumerate(zip(names, numbers, strict=True))
            }
            row = {
                "step": step,
                "first_step": step,
                "window": step,
                "time": 1.0 + step,
                "world_size": world_size,
                "attempt": 0,
                "values": values,
            }
            file.write(json.dumps(row) + "\n")
    return path.stat().st_size


def main() -> None:
    """Writes the runs, compares them and prints what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--differing", action="store_true")
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.folder or Path(temporary)
        folders = [root / f"w{size}" for size in WORLD_SIZES]
        for folder, size in zip(folders, WORLD_SIZES, strict=True):
            if not (folder / "metrics.jsonl").exists():
                written = write_run(
                    folder, size, options.keys, options.steps, differing=options.differing
                )
                print(f"{folder}: {written / 1e6:.0f} MB")
        command = [sys.executable, "-m", "distmetrics.audit", "compare", *map(str, folders)]
        begin = time.perf_counter()
        done = subprocess.run(
            [*command, "--json", str(root / "audit.json")],
            stdout=subprocess.DEVNULL,
            env=os.environ,
            check=False,
        )
        seconds = time.perf_counter() - begin
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(
            f"exit code {done.returncode}: {seconds:.1f} s, of CPU "
            f"{used.ru_utime + used.ru_stime:.1f} s, peak memory {used.ru_maxrss / 2**20:.2f} GiB"
        )


if __name__ == "__main__":
    main()
