"""A run on Gloo processes with every sink: the script of `test_files.py`.

Run as ``python -m tests.laws.training RUN_DIR WORLD_SIZE``; writes what each rank saw to
``RUN_DIR/seen.json``.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import torch

import distmetrics as dm
from distmetrics.testing import run_ranks

STEPS = 12
EVERY = 3
SAMPLES = 7
"""In each step."""


def make_registry() -> dm.Registry:
    """Keys of many kinds, two of them with odd names."""
    registry = dm.Registry()
    registry.count("num_pairs", "wide")
    registry.total("samples seen")
    registry.average("loss", weight="tokens")
    registry.average("maybe.nan")
    registry.ratio("acc@1", "correct", "seen")
    registry.maximum("größte/länge")
    registry.std("spread")
    registry.l2_norm("grad_norm")
    registry.same("lr")
    return registry


def sample(step: int, index: int) -> dict[str, Any]:
    """One sample's values; they depend on nothing else."""
    generator = torch.Generator().manual_seed(1000 * step + index)
    x = torch.rand((), generator=generator)
    return {
        "loss": x,
        "tokens": int(x * 100),
        "correct": bool(x > 0.5),
        "größte/länge": int(x * 512),
        "spread": x.bfloat16(),
        "grad_norm": x.double(),
    }


def outputs_of(step: int, indexes: range) -> dict[str, Any]:
    """One micro-batch; ranks without samples log empty tensors."""
    found = [sample(step, index) for index in indexes]
    columns = {
        key: torch.stack([torch.as_tensor(one[key]) for one in found]) if found else torch.zeros(0)
        for key in sample(0, 0)
    }
    columns["num_pairs"] = torch.tensor([2] * len(found))
    columns["seen"] = torch.tensor([1] * len(found))
    columns["samples seen"] = torch.tensor([1] * len(found))
    columns["wide"] = torch.tensor([2**53 + 1] * len(found))
    columns["maybe.nan"] = torch.tensor([float("nan") if step == 4 else 0.25] * len(found))
    return columns | {"lr": 0.1 / (1 + step)}


def train(run_dir: str, world_size: int) -> dict[str, Any]:
    """What a rank does, and what it saw."""
    rank = dm.get_rank()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        with dm.Logger(make_registry(), run_dir, ["tensorboard", "wandb"], every=EVERY) as logger:
            val = logger.child("val")
            for step in range(STEPS):
                mine = range(rank, SAMPLES, world_size)
                for micro in (mine[:2], mine[2:]):
                    logger.log(outputs_of(step, micro), step=step)
                if step % 6 == 5:
                    found = outputs_of(step, mine)
                    val.log({key: found[key] for key in ("loss", "tokens")})
                    val.flush()
            last = logger.flush(wait=True)
        stats = logger.stats()
    packages = ("tensorboard", "wandb", "torch.utils.tensorboard", "matplotlib", "google.protobuf")
    return {
        "modules": sorted(set(packages) & set(sys.modules)),
        "printed": printed.getvalue(),
        "last": {key: float(value).hex() for key, value in (last or {}).items()},
        "errors": stats["sink_errors"],
        "dropped": stats["dropped"],
    }


if __name__ == "__main__":
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    seen = run_ranks(train, size, str(folder), size, timeout=100)
    (folder / "seen.json").write_text(json.dumps(seen))
