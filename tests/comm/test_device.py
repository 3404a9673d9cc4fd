"""Which device a rank uses, and the backend that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.comm import device_index
from distmetrics.comm.device import Plan, plan_devices, visible_devices
from distmetrics.comm.roster import Member, find_nodes
from distmetrics.comm.setup import group_options
from distmetrics.errors import LaunchError


def members(*devices: tuple[str, ...], **more: object) -> list[Member]:
    """Ranks on one node that see these devices."""
    base = Member(0, "n", host="n", **more)  # type: ignore[arg-type]
    return [replace(base, rank=rank, devices=each) for rank, each in enumerate(devices)]


def plan(ranks: list[Member]) -> Plan:
    """The plan of the ranks."""
    return plan_devices(ranks, find_nodes(ranks)[0])


@pytest.mark.parametrize(
    ("local_rank", "visible", "size", "share", "index"),
    [(3, 1, 4, False, 0), (3, 4, 4, False, 3), (5, 4, 8, True, 1), (0, 0, 4, False, None)],
)
def test_the_index_is_the_local_rank_or_the_only_device(
    local_rank: int, visible: int, size: int, share: bool, index: int | None
) -> None:
    """C97: a device for each rank, the only visible one, a shared one, or the CPU."""
    assert device_index(local_rank, visible, size, share) == index


@pytest.mark.parametrize(("local_rank", "visible", "size"), [(5, 4, 8), (1, 2, 4), (0, 2, 3)])
def test_fewer_devices_than_ranks_is_an_error_on_every_rank(
    local_rank: int, visible: int, size: int
) -> None:
    """C97: also for the ranks whose index would exist; it names both numbers and the remedy."""
    with pytest.raises(LaunchError, match=f"{size} ranks .* {visible} CUDA.*share_devices"):
        device_index(local_rank, visible, size)


@given(st.integers(1, 16), st.integers(2, 16), st.booleans())
def test_an_index_is_always_visible(size: int, visible: int, share: bool) -> None:
    """And ranks get different devices unless they share."""
    if size > visible and not share:
        return
    indices = [device_index(rank, visible, size, share) for rank in range(size)]
    assert all(index is not None and 0 <= index < visible for index in indices)
    assert len(set(indices)) == min(size, visible)


def test_without_devices_gloo_is_used_without_a_word() -> None:
    """CPU machines need no option."""
    assert plan(members((), ())) == Plan("gloo", (torch.device("cpu"),) * 2)


def test_with_a_device_for_each_rank_nccl_is_used() -> None:
    """Device i for local rank i."""
    found = plan(members(("a", "b"), ("a", "b")))
    assert found == Plan("nccl", (torch.device("cuda", 0), torch.device("cuda", 1)))


def test_nccl_without_devices_becomes_gloo_with_a_note() -> None:
    """The lack of a GPU is never an error."""
    found = plan(members((), (), backend="nccl"))
    assert found.backend == "gloo"
    assert "ranks 0 and 1 of 2 have no CUDA device" in found.notes[0]


def test_a_rank_without_devices_among_others_makes_all_use_gloo() -> None:
    """With a note that names it."""
    found = plan(members(("a", "b", "c"), (), ("a", "b", "c")))
    assert found.backend == "gloo"
    assert "rank 1 of 3" in found.notes[0]


def test_each_rank_with_a_device_of_its_own_uses_index_0() -> None:
    """C97: launchers that set CUDA_VISIBLE_DEVICES for each rank."""
    found = plan(members(("a",), ("b",)))
    assert found == Plan("nccl", (torch.device("cuda", 0),) * 2)


def test_one_device_seen_by_two_ranks_is_told_from_two_devices() -> None:
    """Index 0 twice is an error if it is the same device, and Gloo if sharing is allowed."""
    with pytest.raises(LaunchError, match=r"ranks 0 and 1 would use the same device.*share_dev"):
        plan(members(("a",), ("a",)))
    shared = plan(members(("a",), ("a",), share=True))
    assert (shared.backend, len(shared.notes)) == ("gloo", 1)
    with pytest.raises(LaunchError, match="NCCL cannot"):
        plan(members(("a",), ("a",), share=True, backend="nccl"))
    assert plan(members(("a",), ("a",), share=True, backend="gloo")).notes == ()


def test_devices_without_identity_are_believed() -> None:
    """Old drivers give no identity: one visible device each is taken as one's own."""
    assert plan(members(("",), ("",))).backend == "nccl"


def test_too_few_devices_name_the_rank_and_host() -> None:
    """The same error on all ranks."""
    with pytest.raises(LaunchError, match="rank 0 on n: 3 ranks on this node"):
        plan(members(*[("a", "b")] * 3))


def test_ranks_asked_for_different_backends_is_an_error() -> None:
    """Each would wait for the other's handshake."""
    ranks = members((), ())
    ranks[1] = replace(ranks[1], backend="gloo")
    with pytest.raises(LaunchError, match="None on rank 0, 'gloo' on rank 1"):
        plan(ranks)


def test_an_explicit_device_is_used() -> None:
    """Or refused where it is not visible."""
    assert plan(members(("a", "b"), device="cuda:1")).devices == (torch.device("cuda", 1),)
    assert plan(members(("a", "b"), device="cuda")).devices == (torch.device("cuda", 0),)
    assert plan(members((), device="cpu")).devices == (torch.device("cpu"),)
    with pytest.raises(LaunchError, match=r"'cuda:2' was asked for, but 2 are visible"):
        plan(members(("a", "b"), device="cuda:2"))


def test_nccl_is_told_its_device_and_gloo_nothing() -> None:
    """C98: with a device, barriers guess none; Gloo takes none."""
    devices = (torch.device("cuda", 0), torch.device("cuda", 1))
    assert group_options(Plan("nccl", devices), 1, None) == {
        "backend": "nccl",
        "device_id": devices[1],
    }
    mixed = group_options(Plan("cpu:gloo,cuda:nccl", devices), 0, 5.0)
    assert (mixed["device_id"], mixed["timeout"].total_seconds()) == (devices[0], 5.0)
    assert group_options(Plan("gloo", devices), 1, None) == {"backend": "gloo"}


def test_visible_devices_tell_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text for each, empty where PyTorch knows no identity."""
    assert visible_devices() == () or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)

    class WithIdentity:
        uuid = "GPU-1"

    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda index: WithIdentity() if index else object(),
    )
    assert visible_devices() == ("", "GPU-1")
