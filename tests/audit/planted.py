"""Series with planted faults, simulated from samples as a training would produce them.

Each step has a global batch of samples with a loss, a number of tokens and a correctness each;
the batch is split over the ranks as a sampler does, and each fault is the wrong formula over the
ranks' parts. Used by the tests and by `benchmarks/audit_confusion.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """What a simulated comparison looks like.

    Attributes:
        sizes: the world sizes.
        steps: the number of steps.
        batch: samples in a global batch; with `ragged` the most of them.
        sigma: scatter of the samples' losses, relative.
        ragged: batches of changing size.
        drift: relative difference of the trainings at the last step, from rounding.
    """

    sizes: tuple[int, ...] = (1, 2, 4)
    steps: int = 60
    batch: int = 32
    sigma: float = 0.5
    ragged: bool = False
    drift: float = 0.0


@dataclass
class Batch:
    """One step's samples: loss, tokens and correctness of each."""

    losses: Floats
    tokens: Floats
    correct: Floats

    def __len__(self) -> int:
        return len(self.losses)


class World:
    """The batches of all steps, the same at every world size."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.rng = np.random.default_rng(seed)
        self.batches = self.draw()
        self.norms = self.rng.lognormal(0.0, 0.3, setting.steps) * self.curve()

    def curve(self) -> Floats:
        """The falling loss."""
        steps = np.arange(self.setting.steps)
        return 0.3 + 2.0 * np.exp(-3.0 * steps / self.setting.steps)

    def draw(self) -> list[Batch]:
        """Fresh batches."""
        found = []
        for level in self.curve():
            count = self.setting.batch
            if self.setting.ragged:
                count = int(
                    self.rng.integers(max(count // 3, max(self.setting.sizes) + 1), count + 1)
                )
            losses = level * self.rng.gamma(1 / self.setting.sigma**2, self.setting.sigma**2, count)
            tokens = self.rng.integers(5, 60, count).astype(float)
            correct = (self.rng.random(count) < np.exp(-losses)).astype(float)
            found.append(Batch(losses, tokens, correct))
        return found

    def drifted(self, series: Floats, size: int) -> Floats:
        """A series with the rounding of the training in it: growing from 1e-7 on."""
        end = self.setting.drift
        if size == self.setting.sizes[0] or not end:
            return series
        growth = np.geomspace(1e-7, end, self.setting.steps)
        growth[0] = 0.0
        wobble = 1.0 + 0.3 * self.rng.standard_normal(self.setting.steps)
        return series * (1.0 + self.rng.choice([-1.0, 1.0]) * growth * wobble)


def parts(batch: Batch, size: int) -> list[Batch]:
    """The ranks' parts, dealt out like cards."""
    return [
        Batch(batch.losses[rank::size], batch.tokens[rank::size], batch.correct[rank::size])
        for rank in range(size)
    ]


def padded(batch: Batch, size: int) -> Batch:
    """The batch with its first samples repeated until it splits evenly."""
    index = np.resize(np.arange(len(batch)), -(-len(batch) // size) * size)
    return Batch(batch.losses[index], batch.tokens[index], batch.correct[index])


def mean(batch: Batch) -> float:
    """The right mean loss of a batch."""
    return float(np.mean(batch.losses))


def by_token(batch: Batch) -> float:
    """The right mean loss per token."""
    return float(np.sum(batch.losses * batch.tokens) / np.sum(batch.tokens))


Formula = Callable[[World, int], Floats]


def each(formula: Callable[[Batch, int], float], *, drifts: bool = True) -> Formula:
    """A series from a formula over one batch and the world size; counts of data do not drift."""

    def series(world: World, size: int) -> Floats:
        values = np.array([formula(batch, size) for batch in world.batches])
        return world.drifted(values, size) if drifts else values

    return series


def _rounding(world: World, size: int) -> Floats:
    values = np.array([mean(batch) for batch in world.batches])
    noise = 1e-7 * world.rng.standard_normal(len(values))
    return values * (1 + noise) if size > world.setting.sizes[0] else values


def _drift(world: World, size: int) -> Floats:
    values = np.array([mean(batch) for batch in world.batches])
    if size == world.setting.sizes[0]:
        return values
    growth = np.geomspace(1e-7, 10 ** world.rng.uniform(-3.5, -0.7), len(values))
    return values * (1 + growth * world.rng.standard_normal() + growth * 0.5 * np.sin(growth * 99))


def _late_drift(world: World, size: int) -> Floats:
    values = np.array([mean(batch) for batch in world.batches])
    first = max(1, len(values) // 8)
    off = np.cumsum(world.rng.standard_normal(len(values))) * 0.003
    off[:first] = 0
    return values if size == world.setting.sizes[0] else values * (1 + off)


def _other_data(world: World, size: int) -> Floats:
    del size
    return np.array([mean(batch) for batch in world.draw()])


def _nondeterministic(world: World, size: int) -> Floats:
    del size
    values = np.array([mean(batch) for batch in world.batches])
    return values * (1 + 0.002 * world.rng.standard_normal(len(values)))


def _shard_norm(world: World, size: int) -> Floats:
    """Rank 0's shard of the gradient: each parameter's square lies on one rank."""
    squares = world.rng.gamma(1.0, 1.0, (len(world.norms), 64))
    squares /= squares.sum(axis=1, keepdims=True)
    return world.norms * np.sqrt(squares[:, ::size].sum(axis=1))


def _replica_norm(world: World, size: int) -> Floats:
    return world.drifted(world.norms * np.sqrt(size), size)


def _factor(scale: float) -> Formula:
    def series(world: World, size: int) -> Floats:
        values = np.array([mean(batch) for batch in world.batches])
        return world.drifted(values * (scale if size > world.setting.sizes[0] else 1.0), size)

    return series


def _replicas(world: World, size: int) -> Floats:
    """Tokens counted by every one of k tensor-parallel peers."""
    peers = 2 if len(world.setting.sizes) > 2 else 7  # 2 times at 2 ranks alone could be W
    tokens = np.array([float(batch.tokens.sum()) for batch in world.batches])
    return tokens * (peers if size > world.setting.sizes[0] else 1)


def _floored(batch: Batch, size: int) -> float:
    weights = [int(part.tokens.sum()) for part in parts(batch, size)]
    sums = [float(np.sum(part.losses * part.tokens)) for part in parts(batch, size)]
    return float(np.mean(sums)) / (sum(weights) // size)


CLEAN: dict[str, tuple[str, Formula]] = {
    "exact": ("identical", each(lambda batch, size: mean(batch))),
    "exact count": ("identical", each(lambda batch, _: float(len(batch)), drifts=False)),
    "rounding": ("close", _rounding),
    "drift": ("drift", _drift),
    "late drift": ("drift", _late_drift),
    "other data": ("noise", _other_data),
    "nondeterministic": ("noise", _nondeterministic),
}
"""Name to the verdict it should get and its formula: no logging fault."""

FAULTY: dict[str, tuple[str, Formula]] = {
    "mean summed": (
        "grows_with_ranks",
        each(lambda batch, size: sum(mean(part) for part in parts(batch, size))),
    ),
    "count averaged": (
        "shrinks_with_ranks",
        each(lambda batch, size: len(batch) / size, drifts=False),
    ),
    "tokens averaged": (
        "shrinks_with_ranks",
        each(lambda batch, size: float(batch.tokens.sum()) / size, drifts=False),
    ),
    "accumulated loss summed": (
        "shrinks_with_ranks",
        each(lambda batch, size: 8 / size * mean(batch)),
    ),
    "norm of replicas": ("grows_with_sqrt", _replica_norm),
    "norm of a shard": ("shrinks_with_sqrt", _shard_norm),
    "replicas counted twice": (
        "constant_factor",
        _replicas,
    ),
    "seven accumulation steps summed": ("constant_factor", _factor(7.0)),
    "mean of means": (
        "weighting",
        each(lambda batch, size: float(np.mean([mean(part) for part in parts(batch, size)]))),
    ),
    "mean of means over tokens": (
        "weighting",
        each(lambda batch, size: float(np.mean([by_token(part) for part in parts(batch, size)]))),
    ),
    "integer-floored weight": ("weighting", each(_floored)),
    "padded accuracy": (
        "weighting",
        each(lambda batch, size: float(np.mean(padded(batch, size).correct)), drifts=False),
    ),
    "padded count": (
        "weighting",
        each(lambda batch, size: float(len(padded(batch, size))), drifts=False),
    ),
    "rank 0's loss": ("rank_local", each(lambda batch, size: mean(parts(batch, size)[0]))),
    "rank 0's accuracy": (
        "rank_local",
        each(lambda batch, size: float(np.mean(parts(batch, size)[0].correct)), drifts=False),
    ),
}
"""The same for faults."""

NEEDS_RAGGED = frozenset({"mean of means", "padded accuracy", "padded count"})
"""Faults that change nothing where every batch splits evenly."""

INTEGER = frozenset({"exact count", "padded count", "replicas counted twice"})
"""Series that a logger writes as ints."""


def expected(name: str, setting: Setting) -> set[str]:
    """The verdicts that are right for a planted series."""
    if name == "exact" and setting.drift:
        return {"drift", "close"}
    return {(CLEAN | FAULTY)[name][0]}


def simulate(name: str, setting: Setting, seed: int) -> dict[int, Floats]:
    """World size to the values of a planted series."""
    world = World(setting, seed)
    formula = (CLEAN | FAULTY)[name][1]
    return {size: formula(world, size) for size in setting.sizes}


def counts(setting: Setting, seed: int) -> dict[str, Floats]:
    """The right counts of the same batches: samples and tokens of each step."""
    world = World(setting, seed)
    return {
        "num_samples": np.array([float(len(batch)) for batch in world.batches]),
        "num_tokens": np.array([float(batch.tokens.sum()) for batch in world.batches]),
    }
