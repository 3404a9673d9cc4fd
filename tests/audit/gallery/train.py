"""A small training with known logging faults, each of which can be switched on.

Run it under torchrun, in a folder of its own for each number of ranks::

    torchrun --nproc-per-node=2 train.py --faults all --writer tensorboard

It trains a linear model on made-up data with a fixed global batch, the last of an epoch being
short and not divisible by the ranks, and reduces its metrics by hand, as loops without distmetrics
do: right, or with the fault under a key of its own.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

FAULTS = {
    "count_averaged": "num_pairs",
    "mean_summed": "loss/summed",
    "mean_of_means": "loss/mean_of_means",
    "rank_local": "loss/rank0",
    "floored_weight": "loss/floored",
    "replicas_counted": "num_tokens/replicas",
    "shard_norm": "grad_norm/shard",
    "padded_samples": "acc/padded",
    "accumulated_sum": "loss/accumulated",
}
"""Name of a fault to the key under which its value is logged."""

CLEAN = ("loss", "acc", "num_samples", "num_tokens", "grad_norm", "lr", "max_loss")
MICRO = 4
GLOBAL_BATCH = 48
SAMPLES = 5 * GLOBAL_BATCH + 26  # six batches an epoch, the last one of 26
FEATURES = 8


class Data:
    """Made-up samples: features, target, and a number of tokens that goes with the noise."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        true = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
        noise = torch.randn(SAMPLES, generator=generator, dtype=torch.float64)
        self.y = self.x @ true + noise
        self.tokens = torch.randint(5, 60, (SAMPLES,), generator=generator)
        self.order = generator

    def epoch(self) -> list[torch.Tensor]:
        """The global batches of one epoch, the same for any number of ranks."""
        return list(torch.randperm(SAMPLES, generator=self.order).split(GLOBAL_BATCH))


def all_sum(value: float) -> float:
    """The sum over the ranks, in float64."""
    tensor = torch.tensor(value, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return float(tensor)


def all_max(value: float) -> float:
    """The largest over the ranks."""
    tensor = torch.tensor(value, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)


def padded(batch: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """This rank's part of a batch that was filled up with its first samples."""
    missing = -len(batch) % size
    return torch.cat([batch, batch[:missing]])[rank::size]


def step(
    model: nn.Linear, data: Data, batch: torch.Tensor, faults: set[str], lr: float
) -> dict[str, float]:
    """One optimizer step on this rank's part of the batch, and what is logged of it."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    size = dist.get_world_size() if dist.is_initialized() else 1
    mine = batch[rank::size]

    def evaluate(index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        off = model(data.x[index]).squeeze(1) - data.y[index]
        return off**2, (off.abs() < 1.0).double()

    losses, correct = evaluate(mine)
    model.zero_grad()
    losses.sum().div(len(batch)).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    if dist.is_initialized():
        dist.all_reduce(gradient)
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), gradient.split([FEATURES, 1]), strict=True):
            parameter.sub_(lr * part.view_as(parameter))

    count, tokens = len(mine), int(data.tokens[mine].sum())
    local = losses.detach()
    total = all_sum(count)
    row = {
        "loss": all_sum(local.sum().item()) / total,
        "acc": all_sum(correct.sum().item()) / total,
        "num_samples": int(total),
        "num_tokens": int(all_sum(tokens)),
        "grad_norm": float(gradient.norm()),
        "lr": lr,
        "max_loss": all_max(local.max().item()),
    }
    weighted = all_sum((local * data.tokens[mine]).sum().item()) / size
    again = padded(batch, rank, size)
    micros = [part.mean().item() for part in local.split(MICRO)]
    faulty = {
        "count_averaged": all_sum(count) / size,
        "mean_summed": all_sum(local.mean().item()),
        "mean_of_means": all_sum(local.mean().item()) / size,
        "rank_local": local.mean().item(),
        "floored_weight": weighted / (int(all_sum(tokens)) // size),
        "replicas_counted": int(all_sum(tokens)) * min(size, 2),
        "shard_norm": float(gradient[:-1].view(-1)[rank::size].norm()),
        "padded_samples": all_sum(evaluate(again)[1].sum().item()) / all_sum(len(again)),
        "accumulated_sum": all_sum(sum(micros)) / size,
    }
    return row | {FAULTS[name]: value for name, value in faulty.items() if name in faults}


class Writer:
    """Writes rows on rank 0: event files, W&B offline files, CSV, JSON lines."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        folder.mkdir(parents=True, exist_ok=True)
        if kind == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(folder / "tb"))
        elif kind == "wandb":
            import wandb

            settings = wandb.Settings(silent=True, console="off", x_disable_stats=True)
            self.run = wandb.init(dir=folder, mode="offline", settings=settings)
        else:
            self.file = (folder / f"metrics.{kind}").open("w", newline="")
            self.table: csv.DictWriter[str] | None = None

    def write(self, number: int, row: dict[str, float]) -> None:
        """Writes the values of one step."""
        if self.kind == "tensorboard":
            for key, value in row.items():
                self.events.add_scalar(key, value, number)
        elif self.kind == "wandb":
            self.run.log(row, step=number)
        elif self.kind == "csv":
            if self.table is None:
                self.table = csv.DictWriter(self.file, ["step", *row])
                self.table.writeheader()
            self.table.writerow({"step": number, **row})
        else:
            self.file.write(json.dumps({"step": number, **row}) + "\n")

    def close(self) -> None:
        """Finishes the files."""
        if self.kind == "tensorboard":
            self.events.close()
        elif self.kind == "wandb":
            self.run.finish()
        else:
            self.file.close()


def train(seed: int, epochs: int, faults: set[str], writer: Writer | None) -> None:
    """Trains from one seed and logs each step."""
    torch.manual_seed(seed)
    data = Data(seed)
    model = nn.Linear(FEATURES, 1, dtype=torch.float64)
    number = 0
    for _ in range(epochs):
        for batch in data.epoch():
            row = step(model, data, batch, faults, lr=0.05)
            if writer is not None:
                writer.write(number, row)
            number += 1
    if writer is not None:
        writer.close()


def main() -> None:
    """Trains once for each seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default="", help="names with commas, or all")
    parser.add_argument("--writer", choices=["tensorboard", "wandb", "csv", "jsonl"], default="csv")
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--fail-at", type=int, help="the number of ranks at which it fails")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if options.fail_at == dist.get_world_size():
        raise SystemExit(f"cannot train on {options.fail_at} ranks")
    faults = set(FAULTS) if options.faults == "all" else set(options.faults.split(",")) - {""}
    for seed in range(options.seeds):
        folder = options.folder / f"seed{seed}" if options.seeds > 1 else options.folder
        writer = Writer(options.writer, folder) if dist.get_rank() == 0 else None
        train(seed, options.epochs, faults, writer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
