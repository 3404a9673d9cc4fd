"""The nodes that follow from what the ranks tell of themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from distmetrics.comm import LaunchEnv
from distmetrics.comm.roster import Member, Nodes, find_nodes


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_any_placement_gives_each_node_its_ranks(placement: list[int]) -> None:
    """Block, cyclic or arbitrary: nodes come from node ids, not from arithmetic on ranks."""
    members = [Member(rank, f"host{node}") for rank, node in enumerate(placement)]
    nodes, notes = find_nodes(members)
    assert notes == ()
    assert sorted(rank for node in nodes.ranks for rank in node) == list(range(len(placement)))
    for rank, node in enumerate(placement):
        peers = [peer for peer, other in enumerate(placement) if other == node]
        assert list(nodes.of(rank)) == peers
        assert nodes.local_rank(rank) == peers.index(rank)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_groups_across_nodes_hold_each_rank_once(placement: list[int]) -> None:
    """The first has a rank of every node, later ones those nodes that are large enough."""
    nodes, _ = find_nodes([Member(rank, str(node)) for rank, node in enumerate(placement)])
    across = nodes.across()
    assert sorted(rank for group in across for rank in group) == list(range(len(placement)))
    assert len(across[0]) == len(nodes.ranks)
    assert all(nodes.local_rank(rank) == index for index, g in enumerate(across) for rank in g)


def test_the_launchers_order_of_nodes_and_ranks_is_kept() -> None:
    """Rank 0 may live on any node, and local ranks need not follow ranks."""
    members = [
        Member(0, "node 1", node_rank=1, local_rank=0),
        Member(1, "node 0", node_rank=0, local_rank=1),
        Member(2, "node 0", node_rank=0, local_rank=0),
    ]
    assert find_nodes(members) == (Nodes(((2, 1), (0,))), ())


def test_local_ranks_that_cannot_be_are_replaced_and_noted() -> None:
    """Two launchers on one host that each count from 0, without NODE_RANK."""
    members = [Member(rank, "host", local_rank=rank % 2, host="host") for rank in range(4)]
    nodes, notes = find_nodes(members)
    assert nodes.ranks == ((0, 1, 2, 3),)
    assert "local ranks are [0, 1, 0, 1]" in notes[0]
    assert "NODE_RANK" in notes[0]


def test_a_member_survives_the_way_to_the_others() -> None:
    """What one rank tells is what the others read."""
    env = LaunchEnv.detect({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "3"})
    member = Member.here(env, "gloo", None, share=True)
    assert Member.from_json(member.to_json()) == member
    assert (member.node, member.node_rank, member.local_rank) == ("node 3", 3, 1)


def test_assumptions_are_not_told_as_facts() -> None:
    """Where nothing tells the node, the host speaks for itself."""
    member = Member.here(
        LaunchEnv.detect({"RANK": "1", "WORLD_SIZE": "2"}), None, None, share=False
    )
    assert (member.node_rank, member.local_rank) == (None, None)
    assert member.host in member.node
