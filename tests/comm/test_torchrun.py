"""Under the real torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.comm import launchers
from tests.comm.forks import free_port


@pytest.mark.heavy
@pytest.mark.timeout(180)
@pytest.mark.parametrize("processes", [1, 3])
def test_the_ranks_of_one_agent_find_each_other(processes: int) -> None:
    """`torchrun --nproc-per-node N`."""
    command = [*launchers.TORCHRUN, f"--nproc-per-node={processes}", launchers.REPORT]
    code, out, err = launchers.run(command, launchers.environment())
    assert code == 0, err
    found = launchers.reports(out)
    launchers.check(found, [list(range(processes))])
    assert {each["launcher"] for each in found} == {"torchrun"}


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_two_agents_with_different_numbers_of_processes() -> None:
    """Node groups are right although no variable tells the other node's size."""
    endpoint = f"--rdzv-endpoint=localhost:{free_port()}"
    common = [*launchers.TORCHRUN, "--nnodes=2", "--rdzv-backend=c10d", endpoint, "--rdzv-id=j"]
    commands = [[*common, f"--nproc-per-node={count}", launchers.REPORT] for count in (3, 1)]
    with (
        launchers.started(commands[0], launchers.environment()) as first,
        launchers.started(commands[1], launchers.environment()) as second,
    ):
        outputs = [each.communicate(timeout=90) for each in (first, second)]
    found = launchers.reports(*(out for out, _ in outputs))
    sizes = found[0]["per_node"]
    assert sorted(sizes) == [1, 3]
    launchers.check(found, [list(range(sizes[0])), list(range(sizes[0], 4))])


@pytest.mark.heavy
@pytest.mark.timeout(180)
def test_an_independent_tcp_group_meets_under_torchrun(tmp_path: Path) -> None:
    """PyTorch's own rendezvous makes every rank a client there, and waits for ever."""
    script = tmp_path / "script.py"
    script.write_text(
        """
import sys
from distmetrics import comm
env = comm.setup_distributed(timeout=60)
rank = env.world_size - 1 - env.rank
group = comm.init_process_group(None, sys.argv[1], 60, env.world_size, rank)
assert comm.all_gather(env.rank, group) == [1, 0]
other = comm.init_process_group(timeout=60, group_name="b")
assert comm.all_gather(env.rank, other) == [0, 1]
comm.synchronize()
comm.cleanup_distributed()
print("done")
"""
    )
    where = f"tcp://127.0.0.1:{free_port()}"
    command = [*launchers.TORCHRUN, "--nproc-per-node=2", str(script), where]
    code, out, err = launchers.run(command, launchers.environment())
    assert (code, out.split()) == (0, ["done", "done"]), err
