"""Collectives on Python objects."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import comm
from distmetrics.errors import InvalidType, InvalidValue, PeerLostError, PeerTimeoutError
from distmetrics.testing import run_ranks_in_process
from tests.comm.forks import by_hand, fork, run_together


@dataclass
class Sample:
    """Something a training loop may gather."""

    name: str
    tensors: list[torch.Tensor] = field(default_factory=list)


def test_every_rank_gets_every_object_in_rank_order() -> None:
    """Of any type and size, on each of several calls."""

    def run() -> list[Any]:
        mine = [None, "two", {"three": [3] * 10_000}][comm.get_rank()]
        return [comm.all_gather(mine) for _ in range(3)]

    expected = [None, "two", {"three": [3] * 10_000}]
    assert run_together(run, 3) == [[expected] * 3] * 3


def test_only_the_destination_gets_the_objects() -> None:
    """An empty list elsewhere; ranks are those of the group."""

    def run() -> list[Any]:
        pair = dist.new_group([1, 2])
        rank = comm.get_rank()
        return [comm.gather(rank), comm.gather(rank, dst=2), comm.gather(rank, 1, pair)]

    assert run_together(run, 3) == [
        [[0, 1, 2], [], []],
        [[], [], []],
        [[], [0, 1, 2], [1, 2]],
    ]


def test_a_destination_outside_the_group_is_the_same_error_on_all_ranks() -> None:
    """Before anything is sent."""

    def run() -> str:
        with pytest.raises(InvalidValue, match=r"dst=2 is not within 0 \.\. 1") as caught:
            comm.gather(1, dst=2)
        return str(caught.value)

    first, second = run_together(run, 2)
    assert first == second
    with pytest.raises(InvalidValue, match="dst=1"):
        comm.gather(1, dst=1)


def test_gather_returns_exactly_what_ranks_gave() -> None:
    """C18: nothing is trimmed or padded, on each of three calls."""

    def run() -> list[list[int]]:
        mine = [[0, 1, 2, 3, 4], [5, 6, 7]][comm.get_rank()]
        return [comm.gather_objects(mine) for _ in range(3)]

    assert run_together(run, 2) == [[list(range(8))] * 3] * 2


def test_lists_may_be_empty_on_some_or_all_ranks() -> None:
    """C43: empty is a normal case."""

    def run() -> list[list[Any]]:
        return [comm.gather_objects([[], ["a"]][comm.get_rank()]), comm.gather_objects([])]

    assert run_together(run, 2) == [[["a"], []]] * 2


@pytest.mark.parametrize("items", ["text", 3, {"a": 1}, None])
def test_gathering_something_else_than_a_list_is_refused(items: Any) -> None:
    """A string is a sequence, but hardly meant as one."""
    with pytest.raises(InvalidType, match="a list of items is expected"):
        comm.gather_objects(items)


def test_tensors_inside_objects_arrive_on_the_cpu_and_detached() -> None:
    """C48: equal to the input, in rank order, wherever they hide."""

    def run() -> list[Any]:
        value = torch.tensor([1.0, float(comm.get_rank())], requires_grad=True) * 2
        mine = {"x": value, "s": "a", "deep": (Sample("n", [value[:1]]), torch.nn.Parameter(value))}
        found = comm.all_gather(mine)
        assert value.requires_grad
        for each in found:
            tensors = [each["x"], each["deep"][0].tensors[0], each["deep"][1]]
            assert all(t.device.type == "cpu" and not t.requires_grad for t in tensors)
            assert all(t.grad_fn is None for t in tensors)
        return [each["x"].tolist() for each in found] + [found[1]["deep"][0].tensors[0].tolist()]

    assert run_together(run, 2) == [[[2.0, 0.0], [2.0, 2.0], [2.0]]] * 2


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.arange(12).reshape(3, 4).T,
        torch.arange(1000.0)[::300],
        torch.tensor([1 + 2j]).conj(),
        torch.eye(2).to_sparse(),
        torch.empty(2, 3, device="meta"),
    ],
    ids=lambda tensor: f"{tensor.dtype}-{tuple(tensor.shape)}-{tensor.layout}-{tensor.device}",
)
def test_a_tensor_of_any_kind_survives(tensor: torch.Tensor) -> None:
    """Scalars, empty ones, views, halves, complex, sparse and meta tensors."""
    (found,) = comm.all_gather(tensor)
    assert (found.dtype, found.shape, found.layout) == (tensor.dtype, tensor.shape, tensor.layout)
    assert found.is_meta or found.to_dense().equal(tensor.to_dense())


def test_a_view_does_not_bring_its_storage() -> None:
    """One element of a large tensor stays small."""
    from distmetrics.comm.objects import _packed

    assert _packed(torch.zeros(1_000_000)[:1]).data.numel() < 1000


def test_an_object_that_cannot_be_pickled_is_the_same_error_on_all_ranks() -> None:
    """The other ranks are not left waiting; the next call works."""

    def run() -> tuple[str, list[int]]:
        mine: Any = (lambda: 0) if comm.get_rank() == 1 else 1
        with pytest.raises(InvalidType, match=r"all_gather on rank 1 of the group: .*function"):
            comm.all_gather(mine)
        with pytest.raises(InvalidType) as caught:
            comm.gather(mine)
        return str(caught.value), comm.all_gather(comm.get_rank())

    results = run_together(run, 3)
    assert results == [results[0]] * 3
    assert results[0][1] == [0, 1, 2]


def test_an_error_object_is_gathered_like_any_other() -> None:
    """Only a rank's own failure is one."""
    (found,) = comm.all_gather(InvalidType("a value"))
    assert isinstance(found, InvalidType)


def test_absent_ranks_are_named_and_the_group_survives() -> None:
    """The time-out breaks nothing: the late rank is told, and the next call works."""

    def run() -> tuple[str, tuple[int, ...], list[int]]:
        if comm.get_rank() == 1:
            store = dist.distributed_c10d._get_default_store()
            store.wait(["gave up"])
        with pytest.raises(PeerTimeoutError) as caught:
            comm.all_gather("x", timeout=0.5)
        if comm.get_rank() == 0:
            dist.distributed_c10d._get_default_store().set("gave up", "")
        return str(caught.value), caught.value.ranks, comm.all_gather(comm.get_rank(), timeout=20)

    for text, ranks, after in run_together(run, 3):
        assert "all_gather" in text
        assert "rank 1 of 3 did not arrive" in text
        assert ranks == (1,)
        assert after == [0, 1, 2]


def test_a_late_rank_within_the_time_out_is_waited_for() -> None:
    """Many calls in a row leave no keys behind."""

    def run() -> tuple[list[list[int]], int]:
        store = dist.distributed_c10d._get_default_store()
        if comm.get_rank() == 1:
            time.sleep(0.3)
        before = store.num_keys()
        found = [comm.all_gather(comm.get_rank(), timeout=30) for _ in range(20)]
        comm.synchronize()
        return found, store.num_keys() - before

    for found, keys in run_together(run, 2):
        assert found == [[0, 1]] * 20
        assert keys < 20


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_is_seconds_above_0(timeout: float) -> None:
    """On every rank alike, before anything is sent."""
    with pytest.raises(InvalidValue, match="timeout="):
        comm.all_gather(1, timeout=timeout)


def test_a_rank_that_dies_is_a_lost_peer() -> None:
    """Within a second, not after a time-out."""

    def run() -> str:
        import os

        comm.setup_distributed(timeout=30)
        if comm.get_rank() == 1:
            os._exit(1)
        with pytest.raises(PeerLostError) as caught:
            comm.all_gather("x")
        return str(caught.value)

    first, second = fork(run, by_hand(2))
    assert "all_gather: the connection to a rank broke" in first
    assert second == "EOFError"


def test_a_shared_seed_is_the_same_on_all_ranks_and_repeatable() -> None:
    """Rank 0's, drawn from PyTorch's generator."""

    def run() -> tuple[int, int, int]:
        torch.manual_seed(comm.get_rank())
        first, second = comm.shared_random_seed(), comm.shared_random_seed()
        torch.manual_seed(0)
        return first, second, comm.shared_random_seed()

    results = run_together(run, 3)
    assert len(set(results)) == 1
    first, second, again = results[0]
    assert first == again != second
    assert all(0 <= each < 2**31 for each in results[0])


def test_threads_as_ranks_gather_too() -> None:
    """The same functions within an in-process world."""

    def run() -> list[Any]:
        rank = comm.get_rank()
        found = [
            comm.all_gather(rank),
            comm.gather(rank, dst=1),
            comm.gather_objects([rank] * rank),
        ]
        with pytest.raises(InvalidType, match="on rank 1 of the group"):
            comm.all_gather((lambda: 0) if rank == 1 else 0)
        return [*found, comm.shared_random_seed()]

    results = run_ranks_in_process(run, 3)
    seeds = {each.pop() for each in results}
    assert len(seeds) == 1
    assert results == [[[0, 1, 2], [0, 1, 2] if rank == 1 else [], [1, 2, 2]] for rank in range(3)]


def test_an_absent_thread_is_named() -> None:
    """A rank that does not come is named within an in-process world, too."""

    def run() -> tuple[int, ...]:
        if comm.get_rank() == 1:
            return ()
        with pytest.raises(PeerTimeoutError) as caught:
            comm.all_gather(1, timeout=0.2)
        return caught.value.ranks

    assert run_ranks_in_process(run, 2) == [(1,), ()]


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(_values, min_size=1, max_size=4))
def test_any_objects_come_back_equal(values: list[Any]) -> None:
    """Whatever the ranks give, in rank order."""
    found = run_ranks_in_process(lambda: comm.all_gather(values[comm.get_rank()]), len(values))
    assert found == [values] * len(values)
