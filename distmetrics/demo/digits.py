"""The data and the model of the demo: 1797 handwritten digits of 8 x 8 pixels, and a small CNN."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

HELD_OUT = 360
"""How many of the samples are kept for evaluation."""


def split_digits() -> tuple[TensorDataset, TensorDataset]:
    """The training set (1437 samples) and the held-out set (360), the same on every rank.

    A sample is an image, float32 of shape [1, 8, 8] in [0, 1], and its label, int64 in 0..9.
    """
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    held_out, training = order[:HELD_OUT], order[HELD_OUT:]
    return (
        TensorDataset(images[training], labels[training]),
        TensorDataset(images[held_out], labels[held_out]),
    )


class SmallCNN(nn.Sequential):
    """Two convolutions and a linear layer: images [N, 1, 8, 8] to logits [N, 10]."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )


def predict(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """What the model makes of one micro-batch: the loss of each sample, and two counts.

    Nothing here is averaged: per-sample values do not depend on how the samples were split.
    """
    logits = model(images)
    return {
        "loss": cross_entropy(logits, labels, reduction="none"),
        "num_correct": (logits.argmax(dim=1) == labels).sum(),
        "num_samples": torch.tensor(len(labels)),
    }
