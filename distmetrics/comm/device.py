"""Which device a rank uses, and the backend that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from distmetrics.comm.communicator import name_ranks
from distmetrics.errors import LaunchError

if TYPE_CHECKING:
    from distmetrics.comm.roster import Member, Nodes


def device_index(
    local_rank: int, visible: int, local_world_size: int, share: bool = False
) -> int | None:
    """The index of a rank's device among those it sees; None for the CPU.

    The local rank if there is a device for each rank; 0 if exactly one is visible, as launchers
    that give each rank a device of its own (CUDA_VISIBLE_DEVICES) show only that.

    Args:
        local_rank: the rank on its node.
        visible: the number of devices that the rank sees.
        local_world_size: the number of ranks on the node.
        share: let several ranks use one device, in turn.

    Raises:
        LaunchError: fewer devices than ranks, and `share` is false.

    Example:
        >>> device_index(3, 1, 4), device_index(3, 4, 4), device_index(5, 4, 8, share=True)
        (0, 3, 1)
    """
    if visible == 0:
        return None
    if visible == 1:
        return 0
    if local_rank < visible and local_world_size <= visible:
        return local_rank
    if share:
        return local_rank % visible
    raise LaunchError(
        f"{local_world_size} ranks on this node, but only {visible} CUDA devices are visible: "
        "start fewer ranks, show more devices (CUDA_VISIBLE_DEVICES), or allow sharing with "
        "share_devices=True"
    )


def visible_devices() -> tuple[str, ...]:
    """A text for each CUDA device that this process sees; it tells physical devices apart.

    A device whose identity cannot be told gets an empty text.
    """
    if not torch.cuda.is_available():
        return ()
    properties = [
        torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
    ]
    return tuple(str(getattr(each, "uuid", "")) for each in properties)


@dataclass(frozen=True)
class Plan:
    """The backend of all ranks, each rank's device, and what is odd about them."""

    backend: str
    devices: tuple[torch.device, ...]
    notes: tuple[str, ...] = ()


def plan_devices(members: Sequence[Member], nodes: Nodes) -> Plan:
    """The same plan on every rank, from what all have told: NCCL where CUDA is, else Gloo.

    A rank without a device never makes an error: all use Gloo then, with a note if NCCL was asked
    for or if other ranks have devices.

    Raises:
        LaunchError: the ranks were asked for different backends, a node has fewer devices than
            ranks, or two ranks got the same device and sharing is not allowed (NCCL cannot share).
    """
    asked = _agreed_backend(members)
    devices: list[torch.device] = []
    for member in members:
        try:
            devices.append(_device_of(member, nodes))
        except LaunchError as error:
            raise LaunchError(f"rank {member.rank} on {member.host}: {error}") from None
    without = [m.rank for m, device in zip(members, devices, strict=True) if device.type != "cuda"]
    shared = _shared(members, devices)
    if shared and not all(member.share for member in members):
        raise LaunchError(
            f"{name_ranks(shared)} would use the same device of {members[shared[0]].host}: give "
            "each rank its own (CUDA_VISIBLE_DEVICES), or allow sharing with share_devices=True"
        )
    wants_nccl = "nccl" in (asked or "nccl")
    if not wants_nccl:
        return Plan(asked or "gloo", tuple(devices))
    if without:
        note = f"{name_ranks(without)} of {len(members)} have no CUDA device: Gloo is used"
        odd = asked is not None or len(without) < len(members)
        return Plan("gloo", tuple(devices), (note,) if odd else ())
    if shared:
        if asked is not None:
            raise LaunchError(
                f"{name_ranks(shared)} share a device, which NCCL cannot: use backend='gloo'"
            )
        note = f"{name_ranks(shared)} share a device: Gloo is used, as NCCL cannot"
        return Plan("gloo", tuple(devices), (note,))
    return Plan(asked or "nccl", tuple(devices))


def _agreed_backend(members: Sequence[Member]) -> str | None:
    asked = {member.backend for member in members}
    if len(asked) > 1:
        first, other = members[0], next(m for m in members if m.backend != members[0].backend)
        raise LaunchError(
            f"the ranks were asked for different backends: {first.backend!r} on rank "
            f"{first.rank}, {other.backend!r} on rank {other.rank}"
        )
    return members[0].backend


def _device_of(member: Member, nodes: Nodes) -> torch.device:
    if member.device is not None:
        given = torch.device(member.device)
        if given.type != "cuda":
            return given
        if ":" in member.device:
            if given.index >= len(member.devices):
                raise LaunchError(
                    f"device {member.device!r} was asked for, but {len(member.devices)} are visible"
                )
            return given
    local = nodes.local_rank(member.rank)
    index = device_index(local, len(member.devices), len(nodes.of(member.rank)), member.share)
    return torch.device("cpu") if index is None else torch.device("cuda", index)


def _shared(members: Sequence[Member], devices: Sequence[torch.device]) -> list[int]:
    """The ranks that do not have their device for themselves, as far as devices can be told."""
    users: dict[str, list[int]] = {}
    for member, device in zip(members, devices, strict=True):
        if device.type == "cuda" and device.index is not None:
            identity = member.devices[device.index] or f"{member.node}/{device.index}"
            if member.devices[device.index] or len(member.devices) > 1:
                users.setdefault(identity, []).append(member.rank)
    return sorted(rank for ranks in users.values() if len(ranks) > 1 for rank in ranks)
