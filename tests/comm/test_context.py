"""Named process groups of a training."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from distmetrics import comm
from distmetrics.comm import CommContext, CommMode, ParallelMode
from distmetrics.errors import InvalidType, InvalidValue, NotInitialized
from tests.comm.forks import by_hand, fork, free_port, run_together

DP, INTRA, INTER = CommMode.TRAIN_DATA_PARALLEL, CommMode.INTRA_NODE, CommMode.INTER_NODE


def made(context: CommContext, mode: CommMode | str) -> tuple[Any, ...]:
    """What the getters say of a mode, and that its group works."""
    group = context.get_group(mode)
    return (
        context.get_ranks_in_group(mode),
        context.get_local_rank(mode),
        context.get_world_size(mode),
        comm.all_gather(context.get_global_rank(), group),
    )


def uneven() -> list[dict[str, str]]:
    """Five ranks on nodes of 3, 1 and 1, placed in turn."""
    environs, nodes = by_hand(5), [0, 1, 2, 0, 0]
    for rank, node in enumerate(nodes):
        environs[rank] |= {"NODE_RANK": str(node), "LOCAL_RANK": str(nodes[:rank].count(node))}
    return environs


def test_a_single_process_has_every_mode() -> None:
    """No group is made; None stands for it."""
    context = CommContext()
    context.init_distributed_env()
    assert (context.get_global_rank(), context.is_main_rank()) == (0, True)
    assert (context.get_in_node_rank(), context.get_local_world_size()) == (0, 1)
    for mode in (CommMode.GLOBAL, DP, INTRA, INTER, CommMode.WEIGHT_TRANSFER):
        context.init_group(mode=mode)
        assert made(context, mode) == ([0], 0, 1, [0])
    assert context.get_group(DP) is None
    context.destroy()
    assert not context.is_initialized()
    assert not dist.is_initialized()


def test_the_groups_of_uneven_nodes() -> None:
    """Within nodes of 3, 1 and 1, and across them by the place on the node."""

    def run() -> dict[str, Any]:
        context = CommContext()
        context.init_distributed_env(timeout=60)
        context.init_group(mode=INTRA)
        context.init_group(mode=INTER)
        context.init_group([0, 3], mode="TRAIN_DATA_PARALLEL")
        found = {
            "place": (context.get_in_node_rank(), context.get_local_world_size()),
            "intra": made(context, INTRA),
            "inter": made(context, INTER),
            "dp": context.is_initialized(DP) and made(context, DP),
            "main": context.is_main_rank(),
        }
        assert context.get_intra_node_process_group() is context.get_group(INTRA)
        assert context.get_inter_node_process_group() is context.get_group(INTER)
        context.destroy()
        context.destroy()
        assert not dist.is_initialized()
        return found

    node, leaders = [0, 3, 4], [0, 1, 2]
    results = fork(run, uneven())
    for index, rank in enumerate(node):
        assert results[rank]["place"] == (index, 3)
        assert results[rank]["intra"] == (node, index, 3, node)
    for index, rank in enumerate(leaders):
        assert results[rank]["inter"] == (leaders, index, 3, leaders)
    assert results[1]["intra"] == ([1], 0, 1, [1])
    assert results[3]["inter"] == ([3], 0, 1, [3])
    assert [each["dp"] for each in results] == [
        ([0, 3], 0, 2, [0, 3]),
        False,
        False,
        ([0, 3], 1, 2, [0, 3]),
        False,
    ]
    assert [each["main"] for each in results] == [True, False, False, False, False]


def test_ranks_choose_who_takes_part_within_and_across_nodes() -> None:
    """INTRA_NODE and INTER_NODE split the ranks that are named; nodes may name their own."""

    def run() -> list[Any]:
        context = CommContext()
        context.init_distributed_env(timeout=60)
        context.init_group([0, 1, 4], mode=INTRA)
        found: list[Any] = [context.is_initialized(INTRA) and context.get_ranks_in_group(INTRA)]
        own = {0: [0, 3, 4], 1: [1], 2: [2], 3: [0, 3, 4], 4: [0, 3, 4]}[comm.get_rank()]
        context.init_group(own, mode=INTRA)
        found.append(context.get_ranks_in_group(INTRA))
        found.append((context.get_in_node_rank(INTRA), context.get_local_world_size(INTRA)))
        context.init_group([0, 1, 3], DP)
        if context.is_initialized(DP):
            mine = (context.get_in_node_rank(DP), context.get_local_world_size(DP))
            found.append((*mine, context.is_main_rank(DP), context.get_global_rank(DP)))
        context.init_group([1, 3, 4], mode=INTER)
        found.append(context.is_initialized(INTER) and context.get_ranks_in_group(INTER))
        return found

    assert fork(run, uneven()) == [
        [[0, 4], [0, 3, 4], (0, 3), (0, 2, True, 0), False],
        [[1], [1], (0, 1), (0, 1, False, 1), [1, 3]],
        [False, [2], (0, 1), False],
        [False, [0, 3, 4], (1, 3), (1, 2, False, 3), [1, 3]],
        [[0, 4], [0, 3, 4], (2, 3), [4]],
    ]


def test_several_groups_of_a_mode_are_made_at_once_and_again() -> None:
    """A list of groups, or each rank's own; a mode made before is replaced."""

    def run() -> list[Any]:
        context = CommContext()
        context.init_distributed_env()
        context.init_group([[0, 2], [1, 3]], mode=DP, use_cpu=True)
        found = [made(context, DP)]
        context.init_group([0, 1] if comm.get_rank() < 2 else [2, 3], DP)
        found.append(made(context, DP))
        context.init_group([[0, 2], [1, 3]], mode=DP)
        found.append(made(context, DP))
        context.destroy()
        assert dist.is_initialized()
        return found

    for rank, found in enumerate(run_together(run, 4)):
        across = [rank % 2, rank % 2 + 2]
        pair = [rank // 2 * 2, rank // 2 * 2 + 1]
        for ranks, each in zip((across, pair, across), found, strict=True):
            assert each == (ranks, ranks.index(rank), 2, ranks)


def test_a_mode_that_was_not_made_names_those_that_were() -> None:
    """And the call that makes it."""
    context = CommContext()
    with pytest.raises(NotInitialized, match=r"GLOBAL.*there are: none.*init_distributed_env"):
        context.get_global_rank()
    with pytest.raises(NotInitialized, match="init_distributed_env"):
        context.init_group([0], DP)
    context.init_distributed_env()
    context.init_group([0], DP)
    with pytest.raises(NotInitialized, match="WEIGHT_TRANSFER") as caught:
        context.get_group(CommMode.WEIGHT_TRANSFER)
    assert "there are: GLOBAL, TRAIN_DATA_PARALLEL" in str(caught.value)
    assert "init_group(ranks, mode=CommMode.WEIGHT_TRANSFER)" in str(caught.value)
    with pytest.raises(ValueError, match="TENSOR"):
        context.get_group("TENSOR")
    context.destroy()
    comm.cleanup_distributed()


@pytest.mark.parametrize(
    ("ranks", "mode", "text"),
    [
        ([0, 2], DP, "rank 2 is not within 0 .. 1"),
        ([[0, 1], [1]], DP, r"rank 1 is in two groups, \[0, 1\] and \[1\]"),
        ([0, 0], DP, "named twice"),
        (["a"], DP, "a list of ranks"),
        (7, DP, "a list of ranks"),
        ([0], CommMode.GLOBAL, "GLOBAL: ranks are all"),
    ],
)
def test_ranks_that_make_no_groups_are_the_same_error_on_all(
    ranks: Any, mode: CommMode, text: str
) -> None:
    """Also where only one rank gives them; nothing is left waiting."""

    def run() -> str:
        context = CommContext()
        context.init_distributed_env()
        with pytest.raises(InvalidValue, match=text) as caught:
            context.init_group(ranks if comm.get_rank() == 0 else [], mode)
        return str(caught.value)

    first, second = run_together(run, 2)
    assert first == second


def test_contexts_are_independent_and_one_is_the_default() -> None:
    """Several instances, no singleton in the way."""
    assert CommContext.default() is CommContext.default()
    assert CommContext() is not CommContext.default()
    assert ParallelMode.INTRA_NODE is CommMode.INTRA_NODE
    one, two = CommContext(), CommContext()
    one.init_distributed_env()
    assert one.is_initialized()
    assert not two.is_initialized()
    one.destroy()
    comm.cleanup_distributed()


def test_a_group_made_elsewhere_becomes_a_mode() -> None:
    """Such as an independent group with other jobs; destroy leaves it alone."""
    where = f"tcp://127.0.0.1:{free_port()}"

    def run() -> tuple[Any, ...]:
        context = CommContext()
        context.init_distributed_env()
        group = comm.init_process_group(None, where, 60, 2, 1 - comm.get_rank())
        context.add_group(CommMode.WEIGHT_TRANSFER, group)
        found = made(context, CommMode.WEIGHT_TRANSFER)
        context.destroy()
        assert comm.all_gather(1, group) == [1, 1]
        return found

    assert run_together(run, 2) == [([0, 1], 1, 2, [1, 0]), ([0, 1], 0, 2, [1, 0])]


def test_what_is_no_group_with_this_rank_is_refused() -> None:
    """None, or a group of others."""
    with pytest.raises(InvalidType, match="process group"):
        CommContext().add_group(DP, None)  # type: ignore[arg-type]

    def run() -> bool:
        group: Any = dist.new_group([0])
        if comm.get_rank() == 0:
            return True
        with pytest.raises(InvalidType, match="process group"):
            CommContext().add_group(DP, group)
        return True

    assert run_together(run, 2) == [True, True]


def test_a_device_mesh_is_a_source_of_groups() -> None:
    """By the names of its dimensions."""

    def run() -> tuple[Any, ...]:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        context = CommContext()
        context.init_distributed_env()
        context.add_mesh(mesh, {DP: "data", "WEIGHT_TRANSFER": "tensor"})
        with pytest.raises(InvalidValue, match="no 'pipe'"):
            context.add_mesh(mesh, {DP: "pipe"})
        return made(context, DP), made(context, "WEIGHT_TRANSFER")

    for rank, (data, tensor) in enumerate(run_together(run, 4)):
        across, pair = [rank % 2, rank % 2 + 2], [rank // 2 * 2, rank // 2 * 2 + 1]
        assert data == (across, rank // 2, 2, across)
        assert tensor == (pair, rank % 2, 2, pair)


def test_a_url_gives_the_place_to_meet() -> None:
    """tcp://host:port with rank and world size; other forms are refused."""
    where = f"tcp://127.0.0.1:{free_port()}"

    def run() -> list[int]:
        import os

        context = CommContext()
        rank = int(os.environ["MY_RANK"])
        context.init_distributed_env(2, rank, "gloo", where, timeout=60)
        return comm.all_gather(context.get_global_rank())

    assert fork(run, [{"MY_RANK": "0"}, {"MY_RANK": "1"}]) == [[0, 1]] * 2
    for url in ("file:///tmp/x", "tcp://host", "127.0.0.1:80"):
        with pytest.raises(InvalidValue, match="dist_url"):
            CommContext().init_distributed_env(dist_url=url)
