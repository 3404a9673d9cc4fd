"""Trains a small CNN on handwritten digits, on any number of processes.

``torchrun --nproc-per-node=2 -m distmetrics.demo.train --run-dir runs/digits``
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from tqdm import tqdm

import distmetrics as dm
from distmetrics.demo.digits import SmallCNN, predict, split_digits

MICRO_BATCH = 32  # samples in one forward pass
ACCUMULATE = 2  # forward passes per rank in one optimizer step


def build_registry() -> dm.Registry:
    """What each key means, said once; the child logger ``val`` uses the same words."""
    registry = dm.Registry()
    registry.average("loss", group="quality", help="cross entropy of a sample")
    registry.count("num_samples", "num_correct", unit="samples", group="data")
    registry.ratio("accuracy", "num_correct", "num_samples", group="quality")
    registry.same("lr", group="optimizer", help="learning rate")
    registry.same("grad_norm", group="optimizer", help="norm of DDP's averaged gradient")
    registry.rate("samples_per_second", of="num_samples", unit="samples/s", group="speed")
    return registry


@torch.no_grad()
def evaluate(
    model: nn.Module, loader: DataLoader[tuple[Tensor, ...]], val: dm.Logger, step: int
) -> None:
    """Logs the held-out samples of this rank; shards may be uneven, nothing is padded."""
    for images, labels in loader:
        val.log(predict(model, images, labels))
    val.flush(step=step)


def train(run_dir: Path, epochs: int) -> None:
    """Trains for some epochs and leaves the weights in ``run_dir/model.pt``."""
    rank, world_size = dm.get_rank(), dm.get_world_size()
    torch.manual_seed(0)
    training, held_out = split_digits()
    sampler = DistributedSampler(training, world_size, rank, drop_last=True)
    loader = DataLoader(training, batch_size=MICRO_BATCH, sampler=sampler, drop_last=True)
    shard = Subset(held_out, range(rank, len(held_out), world_size))
    val_loader = DataLoader(shard, batch_size=MICRO_BATCH)

    model = SmallCNN()
    parallel = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps = epochs * (len(loader) // ACCUMULATE)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    bar = tqdm(total=steps, desc="training", unit="step", disable=not dm.is_main_process())

    with dm.Logger(
        build_registry(), run_dir=run_dir, sinks=["tensorboard", "wandb"], every=5
    ) as logger:
        val = logger.child("val")
        step = 0
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            batches = iter(loader)
            while len(micro_batches := list(islice(batches, ACCUMULATE))) == ACCUMULATE:
                for i, (images, labels) in enumerate(micro_batches):
                    last = i == ACCUMULATE - 1
                    with nullcontext() if last or world_size == 1 else parallel.no_sync():
                        outputs = predict(parallel, images, labels)
                        (outputs["loss"].mean() / ACCUMULATE).backward()
                    logger.log(outputs, step=step)
                grad_norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
                logger.log({"lr": scheduler.get_last_lr()[0], "grad_norm": grad_norm}, step=step)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                step += 1
                bar.update()
                bar.set_postfix({"loss": logger.latest.get("loss")})
            evaluate(model, val_loader, val, step=step - 1)
    bar.close()
    if dm.is_main_process():
        torch.save(model.state_dict(), run_dir / "model.pt")


def main() -> None:
    """The command line of this script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    dm.setup_distributed()
    train(options.run_dir, options.epochs)
    dm.cleanup_distributed()


if __name__ == "__main__":
    main()
