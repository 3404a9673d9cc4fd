"""Law 4: of replicas one counts; what belongs to a slice or a stage counts as it is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import distmetrics as dm
from tests.logger.ranks import records, values, warned


class Mesh:
    """What a logger uses of a device mesh."""

    def __init__(self, ranks: Any, *names: str) -> None:
        self.mesh = np.array(ranks)
        self.mesh_dim_names = names


DATA_TENSOR = Mesh([[0, 1], [2, 3]], "data", "tensor")
CUBE = Mesh(np.arange(8).reshape(2, 2, 2), "pipe", "data", "tensor")


def over(*dimensions: str, **methods: str) -> Any:
    """A registry whose keys are replicated over some dimensions of the mesh."""

    def make() -> dm.Registry:
        registry = dm.Registry()
        for key, method in methods.items():
            getattr(registry, method)(key, replicated_over=dimensions)
        return registry

    return make


def test_tokens_of_tensor_parallel_peers_count_once() -> None:
    """Each peer saw the same samples, so that the world's sum would count them twice."""

    def train(logger: dm.Logger) -> None:
        tokens = (5, 5, 7, 7)[dm.get_rank()]
        logger.log({"tokens": tokens, "mine": dm.Count(tokens)}, step=0)

    found = records(4, train, over("tensor", tokens="count"), mesh=DATA_TENSOR)
    assert values(found) == [{"tokens": 12, "mine": 24}]


@pytest.mark.parametrize(
    ("dimensions", "expected"),
    [
        (("tensor",), 0 + 2 + 4 + 6),
        (("data",), 0 + 1 + 4 + 5),
        (("pipe",), 0 + 1 + 2 + 3),
        (("data", "tensor"), 0 + 4),
        (("tensor", "data"), 0 + 4),
        (("pipe", "data", "tensor"), 0),
        ((), sum(range(8))),
    ],
)
@pytest.mark.filterwarnings("ignore:key 'x' is replicated over")
def test_the_first_of_each_set_counts(dimensions: tuple[str, ...], expected: int) -> None:
    """Whatever dimensions a key is replicated over, in any order."""
    found = records(
        8,
        lambda logger: logger.log({"x": dm.get_rank()}, step=0),
        over(*dimensions, x="count"),
        mesh=CUBE,
    )
    assert values(found) == [{"x": expected}]


def test_every_reduction_takes_one_of_each_set() -> None:
    """Also those that are no sums, with weights of the same replicas."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        keywords: Any = {"replicated_over": ("tensor",)}
        made.average("loss", weight="n", **keywords)
        made.std("spread", **keywords)
        made.maximum("top", **keywords)
        made.l2_norm("norm", **keywords)
        made.total("seen", **keywords)
        made.same("lr", **keywords)
        made.ratio("r", "seen", "n")
        return made

    def train(logger: dm.Logger) -> None:
        x = (1.0, 1.0, 3.0, 3.0)[dm.get_rank()]
        outputs = dict.fromkeys(("loss", "spread", "top", "norm", "seen"), x)
        logger.log(outputs | {"n": int(x), "lr": 0.1}, step=0)

    found = records(4, train, registry, mesh=DATA_TENSOR)
    assert values(found) == [
        {
            "loss": 2.5,
            "spread": 1.0,
            "top": 3.0,
            "norm": 10.0**0.5,
            "seen": 4.0,
            "lr": 0.1,
            "n": 4,
            "r": 1.0,
        }
    ]


def test_replicas_that_differ_are_warned_of_once_with_key_and_ranks() -> None:
    """The first one's value is logged; there is one warning on each rank."""

    def train(logger: dm.Logger) -> None:
        for step in range(3):
            tokens = (5, 6, 7, 7)[dm.get_rank()]
            logger.log({"tokens": tokens}, step=step)
            logger.flush(wait=True)

    said = "key 'tokens' is replicated over 'tensor', but rank 1 logged something else than"
    with warned(said, times=4):
        found = records(4, train, over("tensor", tokens="count"), mesh=DATA_TENSOR)
    assert values(found) == [{"tokens": 12}] * 3


@pytest.mark.parametrize("method", ["count", "average", "maximum", "std", "same", "total"])
def test_the_warning_has_values_step_and_remedy(method: str) -> None:
    """Of the replica that counts, and of the one that differs, where it began."""

    def train(logger: dm.Logger) -> None:
        for step in range(8):
            x = 6.5 if dm.get_rank() == 3 and step >= 5 else 5
            logger.log({"x": x if method == "same" else [x, 5]}, step=step)

    logged: dict[str, tuple[Any, Any]] = {
        "count": (10, 11.5),
        "total": (10, 11.5),
        "average": (5.0, 5.75),
        "std": (0.0, 0.75),
    }
    first, second = logged.get(method, (5, 6.5))
    said = (
        rf"key 'x' .* rank 3 logged something else .* at step 5 \(rank 2: {first}, rank 3: "
        rf"{second}\); log the same on all replicas, or declare the key without replicated_over="
    )
    with warned(said, times=4):
        records(4, train, over("tensor", x=method), mesh=DATA_TENSOR)


@pytest.mark.parametrize("method", ["count", "average", "l2_norm", "minimum", "same", "histogram"])
def test_integers_and_floats_of_one_value_are_the_same(method: str) -> None:
    """One replica may have the value from the device, another from Python."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        edges: Any = {"edges": [0, 10]} if method == "histogram" else {}
        getattr(made, method)("x", replicated_over=("tensor",), **edges)
        return made

    def train(logger: dm.Logger) -> None:
        logger.log({"x": (5, 5.0, np.float32(5), 5)[dm.get_rank()]}, step=0)

    assert len(records(4, train, registry, mesh=DATA_TENSOR)) == 1


def test_a_key_that_only_another_replica_logs_is_warned_of() -> None:
    """What it logged is left out, and the warning says so."""

    def train(logger: dm.Logger) -> None:
        outputs = {"tokens": 5} if dm.get_rank() in (1, 2, 3) else {}
        logger.log({**outputs, "n": dm.Count(1)}, step=0)

    said = (
        "rank 1 logged it while the replica that counts .* did not: what they logged is left out, "
        r"first at step 0 \(rank 0: nothing, rank 1: 5\); log the key on all replicas"
    )
    with warned(said, times=4):
        found = records(4, train, over("tensor", tokens="count"), mesh=DATA_TENSOR)
    assert values(found) == [{"tokens": 5, "n": 4}]


def test_ranks_outside_the_mesh_count_by_themselves() -> None:
    """A mesh need not hold every rank."""
    found = records(
        5,
        lambda logger: logger.log({"tokens": 2}, step=0),
        over("tensor", tokens="count"),
        mesh=DATA_TENSOR,
    )
    assert values(found) == [{"tokens": 6}]


def test_a_loss_that_only_the_last_stage_has_is_its_value() -> None:
    """Stages of a pipeline are no replicas: a rank that logs nothing adds nothing."""

    def train(logger: dm.Logger) -> None:
        rank = dm.get_rank()
        last = rank >= 4
        outputs: dict[str, Any] = {"lr": dm.Same(0.1)}
        if last:
            outputs |= {"loss": float(rank // 2 % 2 + 1), "n": 3}
        logger.log(outputs, step=0)

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.average("loss", weight="n", replicated_over=("tensor",))
        return made

    assert values(records(8, train, registry, mesh=CUBE)) == [{"lr": 0.1, "loss": 1.5, "n": 6}]


def test_context_parallel_slices_are_summed() -> None:
    """Each slice holds tokens of its own, so that all of them count."""

    def train(logger: dm.Logger) -> None:
        tokens = (10, 20, 30, 40)[dm.get_rank()]
        logger.log({"tokens": tokens, "loss": tokens / 10}, step=0)

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.average("loss", weight="tokens")
        return made

    found = records(4, train, registry, mesh=Mesh([[0, 1], [2, 3]], "data", "context"))
    assert values(found) == [{"tokens": 100, "loss": 3.0}]


def test_a_gradient_norm_from_shards_is_that_of_the_whole() -> None:
    """Shards over one dimension are added, replicas over the other count once."""

    def train(logger: dm.Logger) -> None:
        logger.log({"grad_norm": (3.0, 4.0, 3.0, 4.0)[dm.get_rank()]}, step=0)

    found = records(
        4,
        train,
        over("replicate", grad_norm="l2_norm"),
        mesh=Mesh([[0, 1], [2, 3]], "replicate", "shard"),
    )
    assert values(found) == [{"grad_norm": 5.0}]


def test_rates_for_each_device_divide_by_ranks_with_data_of_their_own() -> None:
    """Peers that hold the same samples are one device in this sense."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.count("tokens", replicated_over=("tensor",))
        made.rate("total", of="tokens", seconds="took")
        made.rate("each", of="tokens", seconds="took", per_device=True)
        return made

    def train(logger: dm.Logger) -> None:
        logger.log({"tokens": 100, "took": (2.0, 2.5, 2.0, 2.0)[dm.get_rank()]}, step=0)

    (found,) = values(records(4, train, registry, mesh=DATA_TENSOR))
    assert (found["tokens"], found["total"], found["each"]) == (200, 80.0, 40.0)


@pytest.mark.parametrize("agree", [True, False])
def test_replicas_cost_a_collective_only_where_they_differ(agree: bool) -> None:
    """Once the keys are known, windows with replicas need no further exchange."""
    counted: dict[int, list[str]] = {}

    def train(logger: dm.Logger) -> None:
        logger.log({"x": 1}, step=0)
        logger.flush(wait=True)
        counted[dm.get_rank()] = counting(logger)
        for step in range(1, 5):
            logger.log({"x": 1 if agree else dm.get_rank()}, step=step)

    if agree:
        records(4, train, over("tensor", x="count"), mesh=DATA_TENSOR)
    else:
        with warned("'x' is replicated over 'tensor'"):
            records(4, train, over("tensor", x="count"), mesh=DATA_TENSOR)
    assert all(("all_gather" not in calls) is agree for calls in counted.values())


def counting(logger: dm.Logger) -> list[str]:
    """The names of the collectives that a logger's worker makes from now on."""
    calls: list[str] = []
    communicator = logger._core._parts.worker._communicator
    for name in ("all_reduce", "all_gather"):
        inner = getattr(communicator, name)

        def call(*args: Any, inner: Any = inner, name: str = name) -> Any:
            calls.append(name)
            return inner(*args)

        setattr(communicator, name, call)
    return calls


def test_a_key_replicated_over_a_dimension_that_is_not_there_is_an_error() -> None:
    """On every rank, with what the mesh has; a single process needs no mesh."""
    for mesh, said in ((None, "there is no mesh"), (CUBE, "the mesh has pipe, data, tensor")):
        with pytest.raises(ValueError, match=f"key 'x' is replicated over 'expert', but {said}"):
            records(8, lambda logger: None, over("expert", x="count"), mesh=mesh)
    found = records(1, lambda logger: logger.log({"x": 2}), over("expert", x="count"))
    assert values(found) == [{"x": 2}]
