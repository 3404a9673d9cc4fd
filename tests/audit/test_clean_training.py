"""Trainings in float32, whose rounding grows: nothing in them is a logging fault."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distmetrics.audit.compare import compare
from tests.audit.series import runs

SAMPLES, FEATURES, CLASSES = 600, 20, 5


def trained(
    seed: int, size: int, lr: float, steps: int, batch: int, kind: str
) -> dict[str, list[float]]:
    """A classifier trained on `size` parts of each batch in turn, as so many ranks would."""
    data = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, FEATURES, generator=data)
    true = torch.randn(FEATURES, CLASSES, generator=data)
    y = (x @ true + torch.randn(SAMPLES, CLASSES, generator=data)).argmax(1)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer: torch.optim.Optimizer
    if kind == "adam":
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    found: dict[str, list[float]] = {}
    batches: list[torch.Tensor] = []
    for _ in range(steps):
        batches = batches or list(torch.randperm(SAMPLES, generator=data).split(batch))
        index = batches.pop(0)
        optimizer.zero_grad()
        losses, correct = [], 0
        for rank in range(size):
            mine = index[rank::size]
            output = model(x[mine])
            part = nn.functional.cross_entropy(output, y[mine], reduction="none")
            (part.sum() / len(index)).backward()
            losses.append(part.detach())
            correct += int((output.argmax(1) == y[mine]).sum())
        gradient = torch.cat([one.grad.flatten() for one in model.parameters()])
        optimizer.step()
        row = {
            "loss": float(sum(one.sum() for one in losses)) / len(index),
            "max_loss": max(float(one.max()) for one in losses),
            "acc": correct / len(index),
            "num_correct": correct,
            "num_samples": len(index),
            "grad_norm": float(gradient.norm()),
        }
        for key, value in row.items():
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize(
    ("lr", "steps", "batch", "kind"),
    [(0.1, 60, 64, "sgd"), (0.5, 120, 50, "sgd"), (3e-3, 80, 64, "adam")],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_clean_training_passes(seed: int, lr: float, steps: int, batch: int, kind: str) -> None:
    """Rounding that grows into different trainings is drift, in losses, norms and counts."""
    by_size = {size: trained(seed, size, lr, steps, batch, kind) for size in (1, 2, 4)}
    table = {key: {size: by_size[size][key] for size in by_size} for key in by_size[1]}
    report = compare(runs(table))
    assert report.exit_code == 0, [str(one) for one in report.faults]
    assert report.verdicts["num_samples"].kind.value == "identical"
