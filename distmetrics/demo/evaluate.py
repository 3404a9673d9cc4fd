"""Evaluates given weights on the held-out digits: the same bits on any number of processes.

``torchrun --nproc-per-node=4 -m distmetrics.demo.evaluate --weights model.pt --run-dir runs/w4``
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist

import distmetrics as dm
from distmetrics.demo.digits import SmallCNN, predict, split_digits

MICRO_BATCH = 16  # fixed, whatever the world size: only then is each forward pass the same
NAIVE = "mean of the ranks' mean losses"


def build_registry() -> dm.Registry:
    """The same losses looked at in several ways, two counts, and a common mistake beside them."""
    registry = dm.Registry()
    registry.average("loss")
    registry.minimum("min_loss")
    registry.maximum("max_loss")
    registry.std("std_loss")
    registry.l2_norm("loss_norm")
    registry.average("micro_batch_loss", weight="num_samples")
    registry.count("num_samples", "num_correct")
    registry.ratio("accuracy", "num_correct", "num_samples")
    registry.same(NAIVE)
    return registry


@torch.no_grad()
def evaluate(weights: Path, run_dir: Path) -> None:
    """Writes one record of the whole held-out set to ``run_dir/metrics.jsonl``."""
    rank, world_size = dm.get_rank(), dm.get_world_size()
    model = SmallCNN()
    model.load_state_dict(torch.load(weights, weights_only=True))
    _, held_out = split_digits()
    images, labels = held_out.tensors
    micro_batches = list(zip(images.split(MICRO_BATCH), labels.split(MICRO_BATCH), strict=True))

    with dm.Logger(build_registry(), run_dir=run_dir) as logger:
        means = []
        for batch in micro_batches[rank::world_size]:  # 23 of them: no fair share for 2 or 4
            outputs = predict(model, *batch)
            losses = outputs["loss"]
            views = dict.fromkeys(("min_loss", "max_loss", "std_loss", "loss_norm"), losses)
            logger.log({**outputs, **views, "micro_batch_loss": losses.mean()}, step=0)
            means.append(losses.mean())

        naive = torch.stack(means).mean() / world_size
        if world_size > 1:
            dist.all_reduce(naive)
        logger.log({NAIVE: naive}, step=0)


def main() -> None:
    """The command line of this script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--run-dir", type=Path, required=True)
    options = parser.parse_args()
    dm.setup_distributed()
    evaluate(options.weights, options.run_dir)
    dm.cleanup_distributed()


if __name__ == "__main__":
    main()
