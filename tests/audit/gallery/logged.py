"""The gallery's training, logged through distmetrics: right, or with a wrong registry.

Run it under torchrun, in a folder of its own for each number of ranks::

    torchrun --nproc-per-node=2 logged.py --wrong
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

import distmetrics as dm

SAMPLES, BATCH, FEATURES = 218, 48, 6


def registry_of(*, wrong: bool) -> dm.Registry:
    """What the keys mean; the wrong one averages counts and leaves the weight out."""
    registry = dm.Registry()
    registry.same("lr")
    registry.l2_norm("grad_norm")
    if wrong:
        registry.average("num_samples", "loss", "num_correct")
    else:
        registry.count("num_samples", "num_correct")
        registry.rate("samples_per_second", of="num_samples")
        registry.average("loss", weight="num_samples")
    return registry


def main() -> None:
    """Trains a linear model and logs each step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dm.setup_distributed()
    rank, size = dm.get_rank(), dm.get_world_size()
    data = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES, generator=data, dtype=torch.float64)
    y = x.sum(1) + torch.randn(SAMPLES, generator=data, dtype=torch.float64)
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    with dm.Logger(registry_of(wrong=options.wrong), run_dir="run", every=1) as logger:
        step = 0
        while step < options.steps:
            for batch in torch.randperm(SAMPLES, generator=data).split(BATCH):
                mine = batch[rank::size]
                off = (model(x[mine]).squeeze(1) - y[mine]).detach()
                logger.log(
                    {
                        "loss": (off**2).mean(),
                        "num_samples": len(mine),
                        "num_correct": int((off.abs() < 1).sum()),
                        "lr": 0.1,
                    },
                    step=step,
                )
                with torch.no_grad():  # the same steps at each world size, so that all compare
                    whole = model(x[batch]).squeeze(1) - y[batch]
                    model.weight -= 0.1 * (whole @ x[batch]) / len(batch)
                step += 1
    dm.cleanup_distributed()


if __name__ == "__main__":
    main()
