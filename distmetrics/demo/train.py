"""Trains a small CNN on handwritten digits, on any number of processes.

``torchrun --nproc-per-node=2 -m distmetrics.demo.train --run-dir runs/digits``
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
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

MicroBatch = tuple[Tensor, ...]


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


def accumulate(
    model: nn.Module, micro_batches: list[MicroBatch], logger: dm.Logger, step: int
) -> None:
    """Adds up the gradients of one step; DDP reduces them with the last micro-batch only."""
    hold = model.no_sync if isinstance(model, DistributedDataParallel) else nullcontext
    for index, (images, labels) in enumerate(micro_batches, start=1):
        with hold() if index < len(micro_batches) else nullcontext():
            outputs = predict(model, images, labels)
            (outputs["loss"].mean() / len(micro_batches)).backward()
        logger.log(outputs, step=step)


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[MicroBatch], val: dm.Child, step: int) -> None:
    """Logs the held-out samples of this rank; shards may be uneven, nothing is padded."""
    for images, labels in batches:
        val.log(predict(model, images, labels))
    val.flush(step=step)


def train(run_dir: Path, epochs: int) -> None:
    """Trains for some epochs and leaves the weights in ``run_dir/model.pt``."""
    torch.manual_seed(0)
    training, held_out = split_digits()
    rank, world_size = dm.get_rank(), dm.get_world_size()
    sampler: DistributedSampler[MicroBatch] = DistributedSampler(
        training, world_size, rank, drop_last=True
    )
    loader = DataLoader(training, batch_size=MICRO_BATCH, sampler=sampler, drop_last=True)
    shard = Subset(held_out, range(rank, len(held_out), world_size))
    val_loader = DataLoader(shard, batch_size=MICRO_BATCH)

    model = SmallCNN()
    parallel = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps_per_epoch = len(loader) // ACCUMULATE
    steps = epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

    registry, sinks = build_registry(), ["tensorboard", "wandb"]
    with (
        dm.Logger(registry, run_dir=run_dir, sinks=sinks, every=5) as logger,
        tqdm(total=steps, unit="step", disable=not dm.is_main_process()) as bar,
    ):
        val = logger.child("val")
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            batches = iter(loader)
            for step in range(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch):
                accumulate(parallel, list(islice(batches, ACCUMULATE)), logger, step)
                norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
                logger.log({"lr": schedule.get_last_lr()[0], "grad_norm": norm}, step=step)
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
                bar.update()
                bar.set_postfix(loss=logger.latest.get("loss", "..."))
            evaluate(model, val_loader, val, step)
    if dm.is_main_process():
        torch.save(model.state_dict(), run_dir / "model.pt")


def main() -> None:
    """The command line of this script."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    options = parser.parse_args()
    dm.setup_distributed()
    train(options.run_dir, options.epochs)
    dm.cleanup_distributed()


if __name__ == "__main__":
    main()
