"""Parts of the default group, and independent main groups."""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import comm
from distmetrics.comm import assembly, groups
from distmetrics.comm.assembly import release
from distmetrics.errors import InvalidValue, LaunchError, PeerLostError
from tests.comm.forks import by_hand, fork, free_port, run_together


def test_sub_groups_are_consecutive_and_orthogonal_ranks() -> None:
    """[0,1],[2,3] and [0,2],[1,3] of 4, both usable by torch's own functions."""

    def run() -> list[Any]:
        regular, orthogonal = comm.create_sub_group(2)
        found: list[Any] = []
        for group in (regular, orthogonal):
            total = torch.tensor(float(comm.get_rank()))
            dist.all_reduce(total, group=group)
            members = dist.get_process_group_ranks(group)
            source = torch.tensor(float(comm.get_rank()))
            dist.broadcast(source, src=members[1], group=group)
            found.append((members, total.item(), source.item(), dist.get_rank(group)))
        return found

    assert run_together(run, 4) == [
        [([0, 1], 1.0, 1.0, 0), ([0, 2], 2.0, 2.0, 0)],
        [([0, 1], 1.0, 1.0, 1), ([1, 3], 4.0, 3.0, 0)],
        [([2, 3], 5.0, 3.0, 0), ([0, 2], 2.0, 2.0, 1)],
        [([2, 3], 5.0, 3.0, 1), ([1, 3], 4.0, 3.0, 1)],
    ]


@pytest.mark.parametrize(("size", "sizes"), [(1, (1, 2)), (2, (2, 1))])
def test_the_extremes_are_groups_too(size: int, sizes: tuple[int, int]) -> None:
    """One rank each, or all ranks."""

    def run() -> tuple[int, int]:
        one, two = comm.create_sub_group(size)
        return comm.get_world_size(one), comm.get_world_size(two)

    assert run_together(run, 2) == [sizes, sizes]


def test_a_world_that_does_not_divide_is_a_value_error() -> None:
    """On every rank, before anything is made."""

    def run() -> str:
        with pytest.raises(ValueError, match="group_size=2 does not divide the world size 3") as e:
            comm.create_sub_group(2)
        comm.synchronize()
        return str(e.value)

    assert len(set(run_together(run, 3))) == 1


@pytest.mark.parametrize("size", [0, -1])
def test_a_group_has_at_least_one_rank(size: int) -> None:
    """Zero divides nothing."""
    with pytest.raises(InvalidValue, match="group_size="):
        comm.create_sub_group(size)


def test_a_single_process_is_its_own_sub_group() -> None:
    """None stands for all ranks; no process group is made."""
    assert comm.create_sub_group(1) == (None, None)
    with pytest.raises(ValueError, match="does not divide"):
        comm.create_sub_group(2)
    assert not dist.is_initialized()


def test_both_sub_groups_are_on_the_backend_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only the first."""
    asked: list[Any] = []
    original = groups.make_groups

    def run() -> list[Any]:
        def recorded(sets: Any, rank: int, backend: str | None = None) -> Any:
            asked.append(backend)
            return original(sets, rank, backend)

        monkeypatch.setattr(groups, "make_groups", recorded)
        return [dist.get_backend(group) for group in comm.create_sub_group(2, "gloo")] + asked

    assert run_together(run, 2) == [["gloo"] * 4] * 2


def test_nothing_is_printed_unless_logging_is_on(capfd: pytest.CaptureFixture[str]) -> None:
    """With logging, one line on rank 0."""

    def run(log: bool) -> None:
        if log:
            logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
        comm.create_sub_group(2)

    run_together(run, 2, False)
    assert capfd.readouterr() == ("", "")
    run_together(run, 2, True)
    assert capfd.readouterr().err.count("sub-groups of 2 and 1 ranks") == 1


def test_a_group_that_does_not_add_up_is_found() -> None:
    """The communication check catches a group with other members than it should have."""

    def run() -> str:
        group = dist.new_group([0, 1])
        with pytest.raises(PeerLostError, match="does not add up") as caught:
            groups.try_group(group, [0, 2], comm.get_rank())
        return str(caught.value)

    assert "ranks [0, 2]" in run_together(run, 2)[0]


def test_nccl_groups_are_made_by_all_ranks_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL splits communicators, in which every rank takes part."""
    made: list[Any] = []

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None) -> Any:
        made.append((ranks, backend, timeout))
        return tuple(ranks)

    def run() -> Any:
        monkeypatch.setattr(dist, "new_group", new_group)
        return groups.make_groups([[3, 2], [0, 1]], 1, "nccl", timedelta(5)), made

    order = [([2, 3], "nccl", timedelta(5)), ([0, 1], "nccl", timedelta(5))]
    assert run_together(run, 1) == [((0, 1), order)]


WORLDS = {"trainer": [0, 1], "engine": [2, 3]}


def independent(init_method: str, name: str | None = None) -> list[Any]:
    """Two trainers and two engines, with default worlds of their own, in one further group."""
    kind, rank = os.environ["MY_KIND"], int(os.environ["RANK"])
    comm.setup_distributed(timeout=60)
    group = comm.init_process_group(
        "gloo", init_method, 60, world_size=4, rank=WORLDS[kind][rank], group_name=name
    )
    weights = torch.full((2,), float(group.rank()))
    dist.broadcast(weights, src=1, group=group)
    mine = torch.ones(1)
    dist.all_reduce(mine, group=group)
    own = torch.ones(1)
    dist.all_reduce(own)
    found = [
        (group.rank(), group.size(), comm.get_world_size()),
        weights.tolist(),
        (mine.item(), own.item()),
        comm.all_gather(f"{kind}{rank}", group),
        comm.gather(rank, dst=3, group=group, timeout=30),
    ]
    dist.destroy_process_group(group)
    assert dist.is_initialized()
    return found


@pytest.mark.parametrize("scheme", ["tcp", "file"])
def test_trainers_and_engines_meet_in_an_independent_group(scheme: str, tmp_path: Path) -> None:
    """Worlds that overlap only in part: own rank, own world size, own store."""
    where = f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"file://{tmp_path}/store"
    trainers = by_hand(2, MY_KIND="trainer")
    engines = by_hand(2, MY_KIND="engine")
    results = fork(lambda: independent(where, "weights"), trainers + engines)
    for rank, found in enumerate(results):
        assert found == [
            (rank, 4, 2),
            [1.0, 1.0],
            (4.0, 2.0),
            ["trainer0", "trainer1", "engine0", "engine1"],
            [0, 1, 0, 1] if rank == 3 else [],
        ]


def test_groups_of_one_place_are_told_apart_by_name_and_made_again() -> None:
    """Two at once, and one again after it was destroyed, without a default group."""
    where = f"tcp://127.0.0.1:{free_port()}"

    def run() -> list[Any]:
        rank = int(os.environ["MY_RANK"])
        found = []
        for _ in range(2):
            pair = [
                comm.init_process_group(None, where, 60, 2, place, group_name=name)
                for name, place in (("a", rank), ("b", 1 - rank))
            ]
            found.append([comm.all_gather(rank, group) for group in pair])
            for group in pair:
                dist.destroy_process_group(group)
        assert not dist.is_initialized()
        return found

    environs = [{"MY_RANK": "0"}, {"MY_RANK": "1"}]
    assert fork(run, environs) == [[[[0, 1], [1, 0]]] * 2] * 2


def test_an_independent_group_on_a_given_store(tmp_path: Path) -> None:
    """The store that the caller made."""

    def run() -> list[int]:
        rank = int(os.environ["MY_RANK"])
        store = dist.FileStore(str(tmp_path / "store"), 2)
        group = comm.init_process_group(store=store, rank=rank, world_size=2, timeout=30)
        return comm.all_gather(rank, group)

    assert fork(run, [{"MY_RANK": "0"}, {"MY_RANK": "1"}]) == [[0, 1]] * 2


def test_env_finds_the_place_and_the_rank_in_the_environment() -> None:
    """`env://` is the default; it joins a store that the default group serves there already."""

    def run() -> list[Any]:
        before = comm.init_process_group(timeout=60)
        comm.setup_distributed(timeout=60)
        after = comm.init_process_group(timeout=60, rank=1 - comm.get_rank(), world_size=2)
        return [comm.all_gather(comm.get_rank(), group) for group in (before, after)]

    assert fork(run, by_hand(2)) == [[[0, 1], [1, 0]]] * 2


def test_absent_members_are_named() -> None:
    """In bounded time, on those who came."""
    where = f"tcp://127.0.0.1:{free_port()}"

    def run() -> None:
        rank = int(os.environ["MY_RANK"])
        comm.init_process_group(None, where, 2, world_size=3, rank=rank, group_name="w")

    for text in fork(run, [{"MY_RANK": "0"}, {"MY_RANK": "2"}]):
        assert text.startswith("PeerTimeoutError: init_process_group 'w': rank 1 of 3")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"store": dist.HashStore(), "init_method": "tcp://a:1"}, "exclude each other"),
        ({"store": dist.HashStore(), "rank": 0}, "world_size is missing"),
        ({"store": dist.HashStore(), "world_size": 2}, "rank is missing"),
        ({"init_method": "tcp://a:1", "world_size": 2}, "rank is missing"),
        ({"init_method": "tcp://a:1", "world_size": 2, "rank": 2}, "rank=2 is not within"),
        ({"init_method": "tcp://a:1?rank=x", "world_size": 2}, "rank='x'"),
        ({"init_method": "tcp://a", "world_size": 2, "rank": 0}, "tcp://host:port"),
        ({"init_method": "http://a:1", "world_size": 2, "rank": 0}, "http://a:1"),
        ({"timeout": 0}, "timeout=0"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any], text: str) -> None:
    """Before anything is waited for."""
    with pytest.raises(InvalidValue, match=text):
        comm.init_process_group(**arguments)


def test_env_without_an_address_names_what_to_set() -> None:
    """As set-up does."""
    with pytest.raises(LaunchError, match="MASTER_ADDR"):
        comm.init_process_group(rank=0, world_size=2)


def test_the_url_may_hold_rank_and_world_size() -> None:
    """As torch's own does."""
    group = comm.init_process_group("gloo", f"tcp://127.0.0.1:{free_port()}?rank=0&world_size=1")
    assert (group.rank(), group.size()) == (0, 1)
    assert comm.all_gather("a", group) == ["a"]
    dist.destroy_process_group(group)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("2.4.0", "pg_options"),
        ("2.5.1+cu121", "pg_options"),
        ("2.6.0", "backend_options"),
        ("2.10.0", "backend_options"),
        ("2.13.0+cpu", "backend_options"),
        ("3.0.0a0+git1234", "backend_options"),
    ],
)
def test_the_name_of_the_options_follows_the_version_as_a_number(
    version: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As text "2.10" would come before "2.6"."""
    given: dict[str, Any] = {}
    group = dist.HashStore()  # any hashable object will do

    def helper(*_: Any, **options: Any) -> tuple[Any, None]:
        given.update(options)
        return group, None

    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(assembly, "_new_process_group_helper", helper)
    monkeypatch.setattr(assembly, "_world", type("W", (), {"pg_group_ranks": {}})())
    assembly.assemble(dist.HashStore(), "n", 0, 1, options="mine")
    assert given[name] == "mine"
    assert {"pg_options", "backend_options"} & set(given) == {name}


def test_no_version_is_an_error() -> None:
    """Rather than a guess."""
    assert release("2.13.0") > release("2.6.1")
    with pytest.raises(ValueError, match="no version"):
        release("main")


def test_a_bound_default_group_does_not_take_part_in_new_ones() -> None:
    """PyTorch would split its communicator, for which all its ranks would have to come."""

    def run() -> tuple[Any, Any]:
        default = dist.group.WORLD
        assert default is not None
        default.bound_device_id = torch.device("cuda", 0)
        with assembly._unbound_default():
            inside = default.bound_device_id
        return inside, str(default.bound_device_id)

    assert run_together(run, 1) == [(None, "cuda:0")]
