"""Set-up where CUDA is: with mocks that keep the interface, and on a real device."""

from __future__ import annotations

import inspect
import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from distmetrics import comm
from distmetrics.comm import setup
from distmetrics.comm.world import current_world
from distmetrics.errors import DistmetricsWarning
from tests.comm.forks import by_hand, fork

calls: list[tuple[str, Any]] = []


def pretend(*identities: str) -> None:
    """Make this process see CUDA devices; the group it asks for is recorded, and Gloo is made."""
    signature = inspect.signature(dist.init_process_group)
    original = dist.init_process_group

    class Properties:
        def __init__(self, uuid: str) -> None:
            self.uuid = uuid

    def init(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)  # a changed interface breaks this test
        calls.append(("init", dict(bound.arguments)))
        kept = {name: bound.arguments[name] for name in ("store", "rank", "world_size")}
        original("gloo", **kept)

    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: len(identities)
    torch.cuda.get_device_properties = lambda index: Properties(identities[index])
    torch.cuda.set_device = lambda device: calls.append(("set_device", device))
    dist.init_process_group = init


def set_up(**options: Any) -> list[Any]:
    """What a rank asked of torch."""
    pretend(*os.environ["MY_DEVICES"].split(","))
    comm.setup_distributed(timeout=30, **options)
    world = current_world()
    assert world is not None
    asked = dict(calls)
    return [
        str(asked.get("set_device")),
        asked["init"]["backend"],
        str(asked["init"].get("device_id")),
        str(world.device),
    ]


def devices(*lists: str) -> list[dict[str, str]]:
    """Ranks that see these devices."""
    environs = by_hand(len(lists))
    for environ, each in zip(environs, lists, strict=True):
        environ["MY_DEVICES"] = each
    return environs


def test_nccl_gets_the_device_of_the_local_rank() -> None:
    """C98: set before the group is made, and passed on as device_id."""
    assert fork(set_up, devices("a,b", "a,b")) == [
        ["cuda:0", "nccl", "cuda:0", "cuda:0"],
        ["cuda:1", "nccl", "cuda:1", "cuda:1"],
    ]


def test_each_rank_that_sees_one_device_uses_index_0() -> None:
    """C97: CUDA_VISIBLE_DEVICES for each rank."""
    assert fork(set_up, devices("a", "b")) == [["cuda:0", "nccl", "cuda:0", "cuda:0"]] * 2


def test_shared_devices_go_over_gloo_without_a_device_id() -> None:
    """NCCL refuses two ranks on one device."""

    def run() -> list[Any]:
        import warnings

        warnings.simplefilter("ignore", DistmetricsWarning)
        return set_up(share_devices=True)

    assert fork(run, devices("a", "a")) == [["cuda:0", "gloo", "None", "cuda:0"]] * 2


def test_fewer_devices_than_ranks_is_the_same_error_on_all_ranks() -> None:
    """Also on the rank whose index exists."""
    first, *others = fork(set_up, devices("a,b", "a,b", "a,b"))
    assert first.startswith("LaunchError: rank 0 on ")
    assert "3 ranks on this node, but only 2" in first
    assert others == [first, first]


def test_the_cpu_can_be_asked_for() -> None:
    """device="cpu" uses no CUDA device although some are there."""
    found = fork(lambda: set_up(device="cpu"), devices("a,b", "a,b"))
    assert found == [["None", "gloo", "None", "cpu"]] * 2


@pytest.mark.parametrize(
    ("given", "text"),
    [(None, None), (1, "cuda:1"), ("cuda:0", "cuda:0"), (torch.device("cpu"), "cpu")],
)
def test_devices_are_taken_in_any_form(given: Any, text: str | None) -> None:
    """Index, name or torch.device."""
    assert setup._device_text(given) == text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_real_device_is_set_and_used() -> None:
    """One rank a device, NCCL, its CPU side, and a quiet barrier."""
    script = (
        "import torch, torch.distributed as dist\n"
        "from distmetrics import comm\n"
        "env = comm.setup_distributed(timeout=60)\n"
        "assert dist.get_backend() == 'nccl' and torch.cuda.current_device() == env.local_rank\n"
        "total = torch.ones(1, device='cuda'); dist.all_reduce(total)\n"
        "assert total.item() == env.world_size\n"
        "found = comm.all_gather({'t': torch.ones(2, device='cuda')})\n"
        "assert all(each['t'].device.type == 'cpu' for each in found)\n"
        "one, two = comm.create_sub_group(1)\n"
        "comm.synchronize(); comm.cleanup_distributed()\n"
    )
    from tests.comm import launchers

    count = min(2, torch.cuda.device_count())
    if count < 2:
        pytest.skip("a group over NCCL needs two devices")
    command = [*launchers.TORCHRUN, f"--nproc-per-node={count}", "--no-python"]
    import sys

    code, _, err = launchers.run(
        [*command, sys.executable, "-W", "error::UserWarning", "-c", script],
        launchers.environment(),
    )
    assert code == 0, err
