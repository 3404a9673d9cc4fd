"""Gathering what differs in length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from distmetrics import comm
from distmetrics.comm import collect
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.testing import run_ranks_in_process
from tests.comm.forks import run_together


def test_tensors_of_different_length_are_gathered_as_they_are() -> None:
    """C44: shapes (2,3), (0,3), (1,3) make (3,3)."""

    def run() -> tuple[list[Any], list[Any]]:
        rows = [2, 0, 1][comm.get_rank()]
        found = comm.gather_ragged(torch.full((rows, 3), float(comm.get_rank())))
        return [tuple(each.shape) for each in found], torch.cat(found).tolist()

    expected = [[0.0] * 3, [0.0] * 3, [2.0] * 3]
    assert run_together(run, 3) == [([(2, 3), (0, 3), (1, 3)], expected)] * 3


def test_empty_tensors_are_a_normal_case_and_keep_their_dtype() -> None:
    """C43: on one rank, or on all."""

    def run() -> list[Any]:
        some = torch.tensor([[], [1, 2, 3]][comm.get_rank()], dtype=torch.int64)
        none = torch.tensor([], dtype=torch.int64)
        found = comm.gather_ragged(some) + comm.gather_ragged(none)
        return [(each.tolist(), str(each.dtype)) for each in found]

    kind = "torch.int64"
    assert run_together(run, 2) == [[([], kind), ([1, 2, 3], kind), ([], kind), ([], kind)]] * 2


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda rank: torch.zeros((1,) * (rank + 1)), InvalidValue, "number of dimensions"),
        (
            lambda rank: torch.zeros(1, dtype=[torch.float32, torch.int64][rank]),
            InvalidType,
            "dtype",
        ),
        (lambda rank: torch.zeros(1) if rank else "text", InvalidType, "not str"),
        (lambda rank: torch.zeros(1, device="meta" if rank else "cpu"), InvalidType, "meta"),
        (
            lambda rank: torch.zeros(1).to_sparse() if rank else torch.zeros(1),
            InvalidType,
            "sparse",
        ),
    ],
    ids=["ndim", "dtype", "type", "meta", "sparse"],
)
@pytest.mark.parametrize("dst", [None, 0])
def test_what_does_not_fit_together_is_the_same_error_on_all_ranks(
    make: Callable[[int], Any], error: type[Exception], text: str, dst: int | None
) -> None:
    """C44: clear, and alike, also where only one rank receives; the next call works."""

    def run() -> str:
        with pytest.raises(error, match=text) as caught:
            comm.gather_ragged(make(comm.get_rank()), dst=dst)
        assert len(comm.gather_ragged(torch.zeros(1))) == 2
        return str(caught.value)

    first, second = run_together(run, 2)
    assert first == second


def test_the_error_names_which_rank_has_what() -> None:
    """Grouped by kind."""

    def run() -> str:
        with pytest.raises(InvalidType) as caught:
            comm.gather_ragged(torch.zeros(2, dtype=torch.int64 if comm.get_rank() == 1 else None))
        return str(caught.value)

    assert (
        "float32 with 1 dimensions on ranks 0 and 2; int64 with 1 dimensions on rank 1"
        in (run_together(run, 3)[0])
    )


def test_only_the_destination_receives_and_outsiders_do_nothing() -> None:
    """Ranks are those of the group; a caller outside it gets an empty list."""

    def run() -> list[Any]:
        pair = dist.new_group([1, 2])
        tensor = torch.full((comm.get_rank(),), 1.0)
        return [len(each) for each in comm.gather_ragged(tensor, pair, dst=1)]

    assert run_together(run, 3) == [[], [], [1, 2]]


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex64, torch.uint8])
def test_any_dtype_and_any_strides_come_back(dtype: torch.dtype) -> None:
    """Detached, with the same values."""
    tensor = (torch.arange(6).reshape(2, 3).T % 2).to(dtype)
    if dtype.is_floating_point:
        tensor.requires_grad_()
    (found,) = comm.gather_ragged(tensor)
    assert found.equal(tensor)
    assert not found.requires_grad


def test_lists_of_token_ids_come_back_as_they_were() -> None:
    """Different numbers of sequences, empty sequences, an empty rank, any token value."""
    mine: list[list[list[int]]] = [
        [[1, 2, 3], [], [-1, 0]],
        [],
        [[2**63 - 1, -(2**63)], [7]],
    ]

    def run() -> list[list[int]]:
        return comm.all_gather_token_ids(mine[comm.get_rank()])

    assert run_together(run, 3) == [mine[0] + mine[1] + mine[2]] * 3


def test_all_ranks_without_sequences_give_an_empty_list() -> None:
    """Nothing is padded."""
    assert run_together(lambda: comm.all_gather_token_ids([]), 2) == [[], []]
    assert comm.all_gather_token_ids([]) == []
    assert comm.all_gather_token_ids([[]]) == [[]]


def test_arrays_and_tensors_are_sequences_of_tokens() -> None:
    """The result is lists of ints."""
    seqs: Any = [torch.tensor([1, 2]), np.array([3], np.int32), (4, 5), np.array([6], np.uint64)]
    found = comm.all_gather_token_ids(seqs)
    assert found == [[1, 2], [3], [4, 5], [6]]
    assert all(type(token) is int for seq in found for token in seq)
    assert comm.all_gather_token_ids(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seqs", "error", "text"),
    [
        ([[1.5]], InvalidType, "sequence 0: a flat list of integers"),
        ([[1], ["a"]], InvalidType, "sequence 1"),
        ([[[1], [2]]], InvalidType, "flat list"),
        ([[[1], [2, 3]]], InvalidType, "sequence 0"),
        ([5], InvalidType, "sequence 0"),
        (["abc"], InvalidType, "'abc'"),
        ("abc", InvalidType, "list of token sequences"),
        (None, InvalidType, "NoneType"),
        ([[2**63]], InvalidValue, "int64"),
        ([[-(2**63) - 1]], InvalidValue, "int64"),
        ([[None]], InvalidType, "sequence 0"),
    ],
)
def test_what_is_no_list_of_tokens_is_refused(seqs: Any, error: type[Exception], text: str) -> None:
    """With the sequence and what was expected."""
    with pytest.raises(error, match=text):
        comm.all_gather_token_ids(seqs)


def test_one_ranks_bad_tokens_are_everyones_error() -> None:
    """Nobody is left waiting."""

    def run() -> str:
        seqs: Any = [[1]] if comm.get_rank() else [[0.5]]
        with pytest.raises(InvalidType) as caught:
            comm.all_gather_token_ids(seqs)
        return str(caught.value)

    first, second = run_together(run, 2)
    assert first == second
    assert "on rank 0 of the group: sequence 0" in first


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (3, 200), (50_000, 1)])
def test_the_number_of_collectives_does_not_depend_on_the_sizes(
    sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two, or one where nobody has anything."""
    counts: list[int] = []

    def run() -> int:
        original = collect._run

        def counted(*args: Any) -> None:
            counts.append(1)
            original(*args)

        monkeypatch.setattr(collect, "_run", counted)
        comm.all_gather_token_ids([[1, 2]] * sizes[comm.get_rank()])
        return len(counts)

    assert run_together(run, 2) == [2 if any(sizes) else 1] * 2


_tokens = st.integers(-(2**63), 2**63 - 1)
_ranks = st.lists(st.lists(st.lists(_tokens, max_size=6), max_size=4), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(_ranks)
def test_any_token_ids_come_back_in_rank_order(ranks: list[list[list[int]]]) -> None:
    """Whatever the ranks hold."""
    found = run_ranks_in_process(
        lambda: comm.all_gather_token_ids(ranks[comm.get_rank()]), len(ranks)
    )
    assert found == [[seq for seqs in ranks for seq in seqs]] * len(ranks)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=1, max_size=4),
    st.sampled_from([torch.int64, torch.float16, torch.bool]),
)
def test_any_shapes_come_back_in_rank_order(shapes: list[list[int]], dtype: torch.dtype) -> None:
    """Every dimension may differ between ranks."""
    tensors = [torch.randint(0, 9, shape).to(dtype) for shape in shapes]
    found = run_ranks_in_process(lambda: comm.gather_ragged(tensors[comm.get_rank()]), len(shapes))
    for each in found:
        assert all(one.equal(two) for one, two in zip(each, tensors, strict=True))
        assert all(one.dtype == dtype for one in each)


def test_existing_names_do_the_same() -> None:
    """The aliases that training code uses."""

    def run() -> list[Any]:
        pair = dist.new_group([0, 1])
        rank = comm.get_rank()
        return [
            comm.all_gather_all_prompt_token_ids([[rank]] * rank, pair),
            comm.gather_inputs_object_for_inference([{"prompt": rank}], pair),
        ]

    prompts = [{"prompt": 0}, {"prompt": 1}]
    assert run_together(run, 3) == [[[[1]], prompts], [[[1]], prompts], [[], []]]
