"""`reduce_dict`: sums and averages by key, over ranks that are threads."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.comm import communicator
from distmetrics.comm.inprocess import InProcess
from distmetrics.testing import run_ranks_in_process


def reduced(*inputs: dict[str, Any], average: bool = True) -> list[dict[str, torch.Tensor]]:
    """What each rank gets where rank k gives the k-th input."""
    return run_ranks_in_process(lambda: dm.reduce_dict(inputs[dm.get_rank()], average), len(inputs))


def plain(result: dict[str, torch.Tensor]) -> dict[str, Any]:
    """The values of a result as Python numbers."""
    return {key: value.item() for key, value in result.items()}


def test_averages_over_the_ranks() -> None:
    """The default is the mean of the ranks' values."""
    for result in reduced(*({"loss": torch.tensor(x)} for x in (0.25, 0.5, 1.0, 2.25))):
        assert plain(result) == {"loss": 1.0}


def test_sums_over_the_ranks() -> None:
    """``average=False`` adds the ranks' values up."""
    for result in reduced({"n": torch.tensor(2)}, {"n": torch.tensor(5)}, average=False):
        assert plain(result) == {"n": 7}


def test_keys_are_matched_by_name_whatever_their_order() -> None:
    """Ranks may give the same keys in different orders."""
    for result in reduced({"a": 1.0, "b": 10.0}, {"b": 30.0, "a": 3.0}):
        assert plain(result) == {"a": 2.0, "b": 20.0}


def test_keys_that_differ_between_ranks_are_never_mixed() -> None:
    """Each key is averaged over the ranks that have it, and every rank gets all of them."""
    for result in reduced({"a": torch.tensor(1.0)}, {"b": torch.tensor(3.0)}):
        assert plain(result) == {"a": 1.0, "b": 3.0}


@pytest.mark.parametrize("average", [True, False])
def test_a_key_of_some_ranks_counts_those_only(average: bool) -> None:
    """Ranks without a key add neither a value nor a share to the average."""
    for result in reduced({"a": 1.0, "b": 4.0}, {"a": 2.0}, {"a": 6.0, "b": 8.0}, average=average):
        assert plain(result) == ({"a": 3.0, "b": 6.0} if average else {"a": 9.0, "b": 12.0})


def test_a_rank_without_any_key_gets_the_others_values() -> None:
    """An empty dict is a normal input, call after call, with roles swapped."""

    def calls() -> list[dict[str, Any]]:
        inputs = ({"m": 0.5}, {})
        return [plain(dm.reduce_dict(inputs[(dm.get_rank() + i) % 2])) for i in range(4)]

    for results in run_ranks_in_process(calls, 2):
        assert results == [{"m": 0.5}] * 4


def test_nobody_has_a_key() -> None:
    """Empty dicts on all ranks give an empty dict."""
    assert reduced({}, {}) == [{}, {}]


def test_own_keys_come_back_first_in_their_order() -> None:
    """The result has the rank's own keys in the order of the input, then those of other ranks."""
    first, second = reduced({"b": 1.0, "a": 2.0}, {"c": 3.0, "a": 4.0})
    assert list(first) == ["b", "a", "c"]
    assert list(second)[:2] == ["c", "a"]


def test_none_is_left_out() -> None:
    """None says that a rank has no value."""
    for result in reduced({"a": None}, {"a": 3.0, "b": None}):
        assert plain(result) == {"a": 3.0}


def test_a_single_process_without_a_group_gets_its_own_values() -> None:
    """Without a process group the same code works for one rank, and makes no group."""
    result = dm.reduce_dict({"loss": torch.tensor(2.5), "n": 3}, average=False)
    assert plain(result) == {"loss": 2.5, "n": 3}
    assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(
    ("value", "summed", "averaged"),
    [
        (torch.tensor(0.5), torch.float32, torch.float32),
        (torch.tensor(0.5, dtype=torch.float64), torch.float64, torch.float64),
        (torch.tensor(0.5, dtype=torch.float16), torch.float32, torch.float32),
        (torch.tensor(0.5, dtype=torch.bfloat16), torch.float32, torch.float32),
        (torch.tensor(3), torch.int64, torch.float64),
        (torch.tensor(3, dtype=torch.int32), torch.int64, torch.float64),
        (torch.tensor(3, dtype=torch.uint8), torch.int64, torch.float64),
        (torch.tensor(True), torch.int64, torch.float64),
        (0.5, torch.float64, torch.float64),
        (3, torch.int64, torch.float64),
        (True, torch.int64, torch.float64),
        (np.float32(0.5), torch.float32, torch.float32),
        (np.float64(0.5), torch.float64, torch.float64),
        (np.array(3, np.int16), torch.int64, torch.float64),
        (torch.tensor(math.nan), torch.float32, torch.float32),
        (torch.tensor(-math.inf, dtype=torch.float64), torch.float64, torch.float64),
    ],
)
def test_dtypes_of_results(value: Any, summed: torch.dtype, averaged: torch.dtype) -> None:
    """float32 and float64 stay, halves become float32, integers sum to int64, average float64."""
    assert dm.reduce_dict({"x": value}, average=False)["x"].dtype is summed
    assert dm.reduce_dict({"x": value})["x"].dtype is averaged


@pytest.mark.parametrize(
    ("values", "mean", "dtype"),
    [
        (
            [torch.tensor(0.5, dtype=torch.bfloat16), torch.tensor(0.25), torch.tensor(0)],
            0.25,
            torch.float32,
        ),
        (
            [
                torch.tensor(0.5, dtype=torch.bfloat16),
                torch.tensor(0.25, dtype=torch.float64),
            ],
            0.375,
            torch.float64,
        ),
        ([torch.tensor(7, dtype=torch.int8), torch.tensor(False)], 3.5, torch.float64),
        ([torch.tensor(1.5, dtype=torch.bfloat16), np.float16(2.5)], 2.0, torch.float32),
    ],
)
def test_dtypes_may_differ_between_ranks(values: list[Any], mean: float, dtype: Any) -> None:
    """The result is right, and on every rank of the widest float dtype that any rank gave."""
    for result in reduced(*({"x": value} for value in values)):
        assert result["x"].item() == mean
        assert result["x"].dtype is dtype


def test_all_dtypes_in_one_call() -> None:
    """Halves, integers and bools beside each other need no cast by hand."""
    values = {
        "bf16": torch.tensor(1.5, dtype=torch.bfloat16),
        "fp16": torch.tensor(0.25, dtype=torch.float16),
        "int8": torch.tensor(-3, dtype=torch.int8),
        "bool": torch.tensor(True),
        "uint8": torch.tensor(200, dtype=torch.uint8),
    }
    for result in reduced(values, values, average=False):
        assert plain(result) == {"bf16": 3.0, "fp16": 0.5, "int8": -6, "bool": 2, "uint8": 400}


def test_results_are_scalars_on_the_inputs_device_without_a_graph() -> None:
    """A tensor of one element of any shape gives a 0-dim tensor that needs no gradient."""
    result = dm.reduce_dict({"x": torch.ones((1, 1), requires_grad=True)})["x"]
    assert result.shape == ()
    assert result.device.type == "cpu"
    assert not result.requires_grad


def test_the_input_is_not_changed() -> None:
    """The dict, its tensors and their graphs are as before."""
    loss = torch.ones((), requires_grad=True) * 2
    given = {"loss": loss, "n": torch.tensor(3)}
    before = dict(given)
    results = reduced(given, {"loss": torch.tensor(0.0)})
    assert given == before
    assert all(given[key] is before[key] for key in before)
    assert loss.grad_fn is not None
    assert all(result["loss"].item() == 1.0 for result in results)
    results[0]["n"].add_(1)  # what comes back is the caller's own
    assert given["n"].item() == 3


def test_counters_beyond_float32_and_float64_are_exact() -> None:
    """Sums of integers lose no unit."""
    inputs = [{"n": torch.tensor(x)} for x in (2**24, 1, 2**53, 1)]
    for result in reduced(*inputs, average=False):
        assert result["n"].item() == 2**24 + 2**53 + 2


def test_an_integer_sum_beyond_int64_is_an_error_on_every_rank() -> None:
    """It names the key and the sum, and the next call works."""

    def calls() -> tuple[str, Any]:
        with pytest.raises(dm.errors.InvalidValue) as raised:
            dm.reduce_dict({"big": torch.tensor(2**62)}, average=False)
        return str(raised.value), plain(dm.reduce_dict({"big": 2.0**62}, average=False))

    for text, result in run_ranks_in_process(calls, 2):
        assert "'big'" in text
        assert str(2**63) in text
        assert result == {"big": 2.0**63}


@pytest.mark.parametrize("average", [True, False])
def test_non_finite_values_come_through(average: bool) -> None:
    """NaN and infinities reach the result of their own key alone."""
    for result in reduced(
        {"a": math.nan, "b": math.inf, "c": 1.0},
        {"a": 1.0, "b": 1.0, "c": 1.0},
        average=average,
    ):
        assert math.isnan(result["a"].item())
        assert result["b"].item() == math.inf
        assert result["c"].item() == (1.0 if average else 2.0)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.one_of(st.none(), st.floats(-1e300, 1e300), st.floats(-1e-300, 1e-300)),
        min_size=1,
        max_size=5,
    )
)
def test_sums_are_rounded_once_and_averages_are_their_quotients(values: list[Any]) -> None:
    """Every rank gets the bits of the exact sum, and of its quotient by the ranks with a value."""
    present = [value for value in values if value is not None]
    inputs = [{"x": value} for value in values]
    sums, means = reduced(*inputs, average=False), reduced(*inputs)
    if not present:
        assert sums == means == [{}] * len(values)
        return
    total = float(sum(map(Fraction, present)))
    for summed, mean in zip(sums, means, strict=True):
        assert summed["x"].item() == total
        assert mean["x"].item() == total / len(present)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcdef"), st.integers(-100, 100), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_any_split_of_keys_over_ranks_gives_each_its_own_sum(inputs: list[dict[str, int]]) -> None:
    """No rank's set of keys changes what becomes of another key."""
    expected: dict[str, int] = {}
    for each in inputs:
        for key, value in each.items():
            expected[key] = expected.get(key, 0) + value
    for result in reduced(*inputs, average=False):
        assert plain(result) == expected


def test_keys_may_come_and_go_from_call_to_call() -> None:
    """New keys, and calls of both kinds in turn, stay apart."""

    def calls() -> list[dict[str, Any]]:
        rank = dm.get_rank()
        return [
            plain(dm.reduce_dict({"a": 1.0 + rank})),
            plain(dm.reduce_dict({"a": 1.0 + rank}, average=False)),
            plain(dm.reduce_dict({"b": rank} if rank else {"a": 5.0})),
            plain(dm.reduce_dict({"b": rank, "a": rank}, average=False)),
        ]

    for results in run_ranks_in_process(calls, 2):
        assert results == [{"a": 1.5}, {"a": 3.0}, {"a": 5.0, "b": 1.0}, {"a": 1, "b": 1}]


@pytest.fixture
def collectives(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Fills with the collectives that rank 0 of an in-process world runs."""
    made: list[str] = []

    def count(name: str) -> None:
        do = getattr(InProcess, name)

        def counted(self: InProcess, *args: Any) -> Any:
            if self.rank == 0:
                made.append(name)
            return do(self, *args)

        monkeypatch.setattr(InProcess, name, counted)

    count("all_reduce")
    count("all_gather")
    return made


@pytest.mark.parametrize("keys", [1, 10, 500])
def test_the_number_of_collectives_does_not_depend_on_the_keys(
    collectives: list[str], keys: int
) -> None:
    """Ten calls with known keys take three collectives each, the first one exchange more."""

    def calls() -> None:
        for _ in range(10):
            dm.reduce_dict({f"key{i}": float(i) for i in range(keys)})

    run_ranks_in_process(calls, 2)
    assert collectives.count("all_reduce") == 30
    assert collectives.count("all_gather") == 1


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(3),
        torch.zeros(0),
        np.zeros(2),
        [1.0, 2.0],
        "0.5",
        1 + 2j,
        torch.tensor(1 + 2j),
        {"nested": 1.0},
        dm.Average(1.0),
    ],
)
def test_a_value_that_is_no_scalar_is_an_error_on_every_rank(value: Any) -> None:
    """The rank that gave it names key and value; the others say which rank it was."""

    def call() -> tuple[type, str]:
        given = {"good": 1.0, "bad": value} if dm.get_rank() == 1 else {"good": 1.0}
        with pytest.raises(dm.DistmetricsError) as raised:
            dm.reduce_dict(given)
        assert plain(dm.reduce_dict({"good": 1.0})) == {"good": 1.0}  # the next call works
        return type(raised.value), str(raised.value)

    others, own = run_ranks_in_process(call, 2)
    assert own[0] is dm.errors.InvalidType
    assert "'bad'" in own[1]
    assert "rank 1" in others[1]


def test_a_meta_tensor_is_refused() -> None:
    """A tensor without data is an error that names its key."""
    with pytest.raises(TypeError, match=r"'x'.*meta"):
        dm.reduce_dict({"x": torch.empty((), device="meta")})


@pytest.mark.parametrize("given", [[("a", 1.0)], torch.tensor(1.0), None])
def test_what_is_no_dict_is_refused(given: Any) -> None:
    """Only a mapping of keys to scalars is accepted."""
    with pytest.raises(TypeError, match="dict of scalars"):
        dm.reduce_dict(given)


@pytest.mark.parametrize(
    ("key", "error", "said"),
    [
        (3, TypeError, "reduce_dict: a key is a str.*not int 3"),
        (None, TypeError, "reduce_dict: a key is a str.*not NoneType"),
        ("", ValueError, "reduce_dict: a key is a text that is not empty"),
        ("a/", ValueError, "reduce_dict: 'a/' ends in '/'"),
        ("a\n", ValueError, "reduce_dict: 'a.n' holds"),
    ],
)
def test_what_is_no_key_is_refused(key: Any, error: type[Exception], said: str) -> None:
    """The error names the function that was called, and what came."""
    with pytest.raises(error, match=said):
        dm.reduce_dict({key: 1.0})


def test_ranks_that_make_different_calls_are_told() -> None:
    """An average here and a sum there is an error on both, and no mix."""

    def call() -> str:
        with pytest.raises(dm.DistmetricsError) as raised:
            dm.reduce_dict({f"k{dm.get_rank()}": 1.0}, average=dm.get_rank() == 0)
        assert plain(dm.reduce_dict({"k": 2.0})) == {"k": 2.0}
        return str(raised.value)

    first, second = run_ranks_in_process(call, 2)
    assert first == second
    assert "average=True" in first
    assert "average=False" in first


def test_a_rank_that_ends_makes_the_others_raise() -> None:
    """Nobody waits for a rank that failed before its call."""
    seen: dict[int, BaseException] = {}

    def call() -> None:
        dm.reduce_dict({"a": 1.0})
        if dm.get_rank() == 1:
            raise ZeroDivisionError
        try:
            dm.reduce_dict({"a": 1.0})
        except dm.PeerLostError as error:
            seen[0] = error
            raise

    with pytest.raises((ZeroDivisionError, dm.PeerLostError)):
        run_ranks_in_process(call, 2, timeout=20)
    assert isinstance(seen[0], dm.PeerLostError)


def test_several_threads_of_one_process_may_reduce_at_once() -> None:
    """Without a process group every thread gets its own values back."""
    import threading

    results: dict[int, float] = {}

    def work(number: int) -> None:
        assert communicator.current() is None
        for _ in range(20):
            results[number] = dm.reduce_dict({"x": float(number)})["x"].item()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {number: float(number) for number in range(4)}


def test_a_key_named_like_a_count_of_nan_is_a_key_like_others() -> None:
    """Counts of NaN are no part of what comes back, so that nothing collides with them."""
    given = {"loss": math.nan, "loss/nonfinite": 9.0}
    found = dm.reduce_dict(given)
    assert list(found) == list(given)
    assert found["loss"].isnan()
    assert found["loss/nonfinite"] == 9.0
