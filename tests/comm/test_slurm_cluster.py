"""Under a real Slurm: what its variables say, and whether the ranks find each other."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from distmetrics.comm import LaunchEnv, get_slurm_env
from distmetrics.errors import DistmetricsWarning
from tests.comm import launchers
from tests.comm.forks import free_port
from tests.comm.slurm.cluster import cluster, missing

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.timeout(240),
    pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm is there"),
]
NODES = ("n1", "n2", "n3")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Three nodes."""
    state = tmp_path_factory.mktemp("slurm") / "state"
    with cluster(state, NODES, [free_port() for _ in range(4)]) as path:
        yield path


Environs = Callable[..., list[dict[str, str]]]


def environ_of(config: Path, **more: str) -> dict[str, str]:
    """What a user's shell has."""
    return launchers.environment(SLURM_CONF=str(config), **more)


@pytest.fixture
def environs(config: Path, tmp_path: Path) -> Environs:
    """The variables that Slurm gives each task of a command."""

    def collect(*options: str, **more: str) -> list[dict[str, str]]:
        command = ["srun", *options, "sh", "-c", f'env -0 > "{tmp_path}/$SLURM_PROCID"']
        code, _, err = launchers.run(command, environ_of(config, **more), timeout=60)
        assert code == 0, err
        found = [read(tmp_path / str(rank)) for rank in range(len(list(tmp_path.iterdir())))]
        for path in tmp_path.iterdir():
            path.unlink()
        return found

    return collect


def read(path: Path) -> dict[str, str]:
    """The variables that `env -0` wrote."""
    pairs = path.read_text().rstrip("\0").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def placement(found: list[dict[str, str]]) -> list[list[int]]:
    """The ranks of each node, checked against what every rank detects."""
    launches = [LaunchEnv.detect(each) for each in found]
    nodes: dict[int, list[int]] = {}
    for rank, env in enumerate(launches):
        assert (env.rank, env.world_size) == (rank, len(found))
        assert env.local_rank == len(nodes.setdefault(env.node_rank, []))
        nodes[env.node_rank].append(rank)
    ordered = [nodes[node] for node in sorted(nodes)]
    for env in launches:
        assert list(env.ranks_per_node) == [len(ranks) for ranks in ordered]
        assert env.local_world_size == len(nodes[env.node_rank])
    assert len({(env.master_addr, env.master_port) for env in launches}) == 1
    return ordered


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["-n1"], [[0]]),
        (["-N1", "-n2"], [[0, 1]]),
        (["-N2", "-n4"], [[0, 1, 2], [3]]),
        (["-N3", "-n5"], [[0, 1, 2], [3], [4]]),
        (["-N3", "-n5", "-m", "cyclic"], [[0, 3, 4], [1], [2]]),
        (["-N3", "--ntasks-per-node=2"], [[0, 1], [2, 3], [4, 5]]),
        (["-N2", "-n6", "-m", "plane=2"], None),
    ],
    ids=["1", "2", "uneven", "5", "cyclic", "even", "plane"],
)
def test_every_task_knows_its_place(
    environs: Environs, options: list[str], nodes: list[list[int]] | None
) -> None:
    """From Slurm's variables, not from arithmetic on ranks."""
    found = placement(environs(*options))
    assert nodes in (None, found)


def test_rank_0_may_live_on_any_node(environs: Environs, tmp_path_factory: object) -> None:
    """Arbitrary placement: the node list is sorted, the ranks are not."""
    assert isinstance(tmp_path_factory, pytest.TempPathFactory)
    hosts = tmp_path_factory.mktemp("hosts") / "file"
    hosts.write_text("n3\nn1\nn1\nn3\nn1\n")
    found = environs("-n5", "-m", "arbitrary", SLURM_HOSTFILE=str(hosts))
    assert placement(found) == [[1, 2, 4], [0, 3]]
    assert get_slurm_env(found[0])["nodelist"] == ["n1", "n3"]
    assert get_slurm_env(found[0])["tasks_per_node_list"] == [3, 2]


def submit(config: Path, tmp_path: Path, script: str, *options: str, tasks: int = 1) -> None:
    """Run a batch script (of several array tasks) to its end."""
    path = tmp_path / "job.sh"
    path.write_text(f"#!/bin/sh -e\n{script}\ntouch {tmp_path}/$SLURM_JOB_ID.done\n")
    command = ["sbatch", f"--output={tmp_path}/out.%j", *options, str(path)]
    code, out, err = launchers.run(command, environ_of(config), timeout=60)
    assert code == 0, out + err
    # sbatch --wait looks every ten seconds only
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.done"))) < tasks:
        assert time.monotonic() < deadline, [each.read_text() for each in tmp_path.glob("out.*")]
        time.sleep(0.1)


def test_a_batch_script_its_steps_and_their_ports(config: Path, tmp_path: Path) -> None:
    """The script's own shell is alone, a smaller step is its own world, steps meet apart."""
    script = f"""
    env -0 > {tmp_path}/shell
    srun -N2 -n2 sh -c 'env -0 > "{tmp_path}/one.$SLURM_PROCID"'
    srun -N3 -n6 sh -c 'env -0 > "{tmp_path}/two.$SLURM_PROCID"'
    """
    submit(config, tmp_path, script, "-N3", "-n6")
    with pytest.warns(DistmetricsWarning, match="SLURM_NTASKS=6"):
        shell = LaunchEnv.detect(read(tmp_path / "shell"))
    assert (shell.launcher, shell.world_size) == ("single", 1)
    one = [read(tmp_path / f"one.{rank}") for rank in range(2)]
    two = [read(tmp_path / f"two.{rank}") for rank in range(6)]
    assert placement(one) == [[0], [1]]
    assert sum(len(node) for node in placement(two)) == 6
    ports = {LaunchEnv.detect(each[0]).master_port for each in (one, two)}
    assert len(ports) == 2


def test_the_tasks_of_an_array_are_worlds_apart(config: Path, tmp_path: Path) -> None:
    """Each has a job id, and so a port, of its own."""
    script = f"srun sh -c 'env -0 > \"{tmp_path}/$SLURM_ARRAY_TASK_ID.$SLURM_PROCID\"'"
    submit(config, tmp_path, script, "-n2", "--array=3-4", tasks=2)
    places = set()
    for task in (3, 4):
        found = [read(tmp_path / f"{task}.{rank}") for rank in range(2)]
        placement(found)
        places.add(LaunchEnv.detect(found[0]).master_port)
    assert len(places) == 2


def test_the_shell_of_an_allocation_is_a_single_process(config: Path, tmp_path: Path) -> None:
    """What `salloc` starts is no task."""
    command = ["salloc", "-N2", "-n3", "sh", "-c", f"env -0 > {tmp_path}/shell"]
    code, _, err = launchers.run(command, environ_of(config), timeout=60)
    assert code == 0, err
    with pytest.warns(DistmetricsWarning, match="SLURM_NTASKS=3"):
        env = LaunchEnv.detect(read(tmp_path / "shell"))
    assert (env.launcher, env.world_size) == ("single", 1)


def run_ranks(config: Path, *options: str, **more: str) -> list[dict[str, object]]:
    """The reports of real ranks."""
    command = ["srun", "--kill-on-bad-exit=1", *options, launchers.TORCHRUN[0], launchers.REPORT]
    code, out, err = launchers.run(command, environ_of(config, **more), timeout=150)
    assert code == 0, err
    return launchers.reports(out)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (["-n1"], [[0]]),
        (["-N3", "-n5", "-m", "cyclic"], [[0, 3, 4], [1], [2]]),
        (["-N3", "--ntasks-per-node=2"], [[0, 1], [2, 3], [4, 5]]),
    ],
    ids=["1", "5 uneven", "6 even"],
)
def test_ranks_meet_and_their_groups_are_right(
    config: Path, options: list[str], nodes: list[list[int]]
) -> None:
    """With no variable but Slurm's; the nodes' names resolve nowhere but in Slurm."""
    found = run_ranks(config, *options)
    launchers.check(found, nodes)
    assert {each["launcher"] for each in found} == {"slurm"}


def test_ranks_meet_on_the_first_node_wherever_rank_0_is(config: Path, tmp_path: Path) -> None:
    """Rank 0 lives on the last node; the store is served on the first."""
    hosts = tmp_path / "hosts"
    hosts.write_text("n3\nn1\nn3\n")
    found = run_ranks(config, "-n3", "-m", "arbitrary", SLURM_HOSTFILE=str(hosts))
    launchers.check(found, [[1], [0, 2]])


def test_no_daemon_is_left_behind(tmp_path: Path) -> None:
    """The cluster of the tests cleans up after itself."""
    with cluster(tmp_path / "state", ["a"], [free_port(), free_port()]) as path:
        shown = subprocess.run(
            ["srun", "-n1", "hostname"],
            env={**os.environ, "SLURM_CONF": str(path)},
            capture_output=True,
            timeout=60,
            check=True,
        )
        assert shown.stdout.strip()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            assert str(tmp_path).encode() not in (process / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
