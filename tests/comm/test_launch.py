"""What a process knows of its launch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from distmetrics.comm import LaunchEnv
from distmetrics.errors import DistmetricsWarning, LaunchError

TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "job7",
}
STEP = {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "2",
    "SLURM_NODEID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "3,1(x2)",
    "SLURM_STEP_NODELIST": "n[1-3]",
}


def test_without_variables_it_is_a_single_process() -> None:
    """No variable is set: rank 0 of 1, and no place to meet."""
    env = LaunchEnv.detect({})
    assert (env.launcher, env.rank, env.world_size, env.ranks_per_node) == ("single", 0, 1, (1,))
    assert (env.master_addr, env.master_port, env.job_id) == (None, None, None)


def test_torchrun_gives_every_field_and_its_source() -> None:
    """RANK and its kin, with the names of the variables."""
    env = LaunchEnv.detect(TORCHRUN)
    assert (env.launcher, env.rank, env.world_size) == ("torchrun", 1, 2)
    assert (env.local_rank, env.local_world_size, env.node_rank) == (1, 2, 0)
    assert env.ranks_per_node == (2,)
    assert (env.master_addr, env.master_port, env.job_id) == ("node1", 29500, "job7")
    assert env.sources["rank"] == "RANK"
    assert env.sources["local_world_size"] == "LOCAL_WORLD_SIZE"
    assert env.sources["node_rank"] == "GROUP_RANK"
    assert env.sources["master_addr"] == "MASTER_ADDR"


def test_two_torchrun_agents_of_different_size() -> None:
    """With two nodes the other one's size follows."""
    second = TORCHRUN | {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
    }
    assert LaunchEnv.detect(second).ranks_per_node == (3, 1)


def test_three_torchrun_agents_leave_the_nodes_to_the_meeting() -> None:
    """With more nodes the sizes are not told, and nothing is guessed."""
    third = TORCHRUN | {"WORLD_SIZE": "6", "GROUP_WORLD_SIZE": "3"}
    assert LaunchEnv.detect(third).ranks_per_node == ()


def test_variables_set_by_hand_beat_slurm() -> None:
    """C95: RANK and WORLD_SIZE go before SLURM_PROCID."""
    environ = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1234",
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
    }
    env = LaunchEnv.detect(environ)
    assert (env.launcher, env.rank, env.world_size, env.local_rank) == ("env", 1, 2, 1)
    assert (env.master_addr, env.master_port) == ("a", 1234)


def test_arguments_beat_variables() -> None:
    """C95: explicit arguments go before everything."""
    env = LaunchEnv.detect(TORCHRUN, rank=0, world_size=3, master_addr="there", master_port=4000)
    assert (env.launcher, env.rank, env.world_size) == ("explicit", 0, 3)
    assert (env.master_addr, env.master_port) == ("there", 4000)
    assert env.sources["rank"] == "argument rank"


def test_arguments_that_repeat_the_launcher_keep_its_word_on_the_nodes() -> None:
    """The same rank and world size as torchrun's: local ranks are torchrun's."""
    env = LaunchEnv.detect(TORCHRUN, rank=1, world_size=2)
    assert (env.local_rank, env.local_world_size) == (1, 2)


@pytest.mark.parametrize(
    ("environ", "missing"),
    [
        ({"RANK": "1"}, "WORLD_SIZE"),
        ({"RANK": "1", "WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR"),
        ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}, "SLURM_PROCID"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}, "SLURM_NTASKS"),
        ({"SLURM_PROCID": "1"}, "SLURM_NTASKS"),
        ({"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, "SLURM_LOCALID"),
        (
            {
                "SLURM_STEP_ID": "0",
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "SLURM_LOCALID": "1",
            },
            "SLURM_NODEID",
        ),
    ],
)
def test_half_set_variables_name_the_missing_one(environ: dict[str, str], missing: str) -> None:
    """C95: half a launch is an error, never a guess."""
    with pytest.raises(LaunchError, match=missing):
        LaunchEnv.detect(environ)


@pytest.mark.parametrize("given", [{"rank": 0}, {"world_size": 2}])
def test_half_given_arguments_name_the_missing_one(given: dict[str, int]) -> None:
    """Rank and world size are given together."""
    with pytest.raises(LaunchError, match="rank and world_size are given together"):
        LaunchEnv.detect({}, **given)


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "one", "WORLD_SIZE": "2"}, "RANK='one'"),
        ({"RANK": "1.0", "WORLD_SIZE": "2"}, "RANK='1.0'"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"rank 2 \(RANK\)"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, r"world_size 0 \(WORLD_SIZE\)"),
        (TORCHRUN | {"LOCAL_RANK": "2"}, r"local_rank 2 \(LOCAL_RANK\)"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "3"}, r"local_world_size 3 \(LOCAL_WORLD_SIZE\)"),
        (TORCHRUN | {"MASTER_PORT": "70000"}, "MASTER_PORT: 70000"),
        (TORCHRUN | {"MASTER_PORT": "http"}, "MASTER_PORT='http'"),
        (STEP | {"SLURM_STEP_NODELIST": "n[1-"}, "n\\[1-"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "3,,1"}, "3,,1"),
    ],
)
def test_malformed_variables_are_named_and_quoted(environ: dict[str, str], named: str) -> None:
    """Whatever cannot be right says which variable it is."""
    with pytest.raises(LaunchError, match=named):
        LaunchEnv.detect(environ)


def test_rank_and_world_size_alone_assume_one_node_and_say_so() -> None:
    """The sources tell an assumption from what was said."""
    env = LaunchEnv.detect({"RANK": "1", "WORLD_SIZE": "3"})
    assert (env.local_rank, env.local_world_size, env.ranks_per_node) == (1, 3, ())
    assert env.sources["local_rank"].startswith("assumed")


def test_a_slurm_step_is_read_from_its_own_variables() -> None:
    """Cyclic placement: rank, local rank and node come from Slurm, not from arithmetic."""
    env = LaunchEnv.detect(STEP)
    assert (env.launcher, env.rank, env.world_size) == ("slurm", 4, 5)
    assert (env.local_rank, env.local_world_size, env.node_rank) == (2, 3, 0)
    assert env.ranks_per_node == (3, 1, 1)
    assert env.master_addr == "n1"
    assert 20000 <= (env.master_port or 0) < 30000
    assert env.job_id == "17"
    assert env.notes == ()


def test_uneven_nodes_give_each_its_own_size() -> None:
    """C92: '4(x2),3' with 11 tasks: node 2 has 3."""
    environ = {
        "SLURM_JOB_ID": "1",
        "SLURM_PROCID": "8",
        "SLURM_NTASKS": "11",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "2",
        "SLURM_TASKS_PER_NODE": "4(x2),3",
        "SLURM_NODELIST": "a,b,c",
    }
    env = LaunchEnv.detect(environ)
    assert (env.world_size, env.local_world_size, env.ranks_per_node) == (11, 3, (4, 4, 3))


def test_a_step_smaller_than_its_job_wins_with_one_warning() -> None:
    """SLURM_STEP_* beats the job's values."""
    environ = STEP | {"SLURM_NTASKS": "9", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
    with pytest.warns(DistmetricsWarning) as caught:
        env = LaunchEnv.detect(environ)
    assert env.world_size == 5
    assert len(caught) == 1
    assert "SLURM_STEP_NUM_TASKS=5" in str(caught[0].message)
    assert "SLURM_NTASKS=9" in str(caught[0].message)


def test_only_rank_0_warns() -> None:
    """The other ranks keep the note and stay silent."""
    env = LaunchEnv.detect(STEP | {"SLURM_NTASKS": "9"})
    assert len(env.notes) == 1


def test_tasks_against_tasks_per_node_warns_and_names_both() -> None:
    """C93: one task, although two a node were asked for."""
    environ = {"SLURM_NTASKS": "1", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "0"}
    with pytest.warns(DistmetricsWarning, match="SLURM_NTASKS=1 and SLURM_NTASKS_PER_NODE=2"):
        env = LaunchEnv.detect(environ)
    assert env.world_size == 1


def test_a_batch_scripts_own_shell_is_a_single_process() -> None:
    """PROCID=0 and NTASKS=6 without a step: nobody else will come."""
    environ = {
        "SLURM_JOB_ID": "4",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "6",
        "SLURM_TASKS_PER_NODE": "4,1(x2)",
    }
    with pytest.warns(DistmetricsWarning, match=r"SLURM_NTASKS=6.*srun"):
        env = LaunchEnv.detect(environ)
    assert (env.launcher, env.world_size, env.job_id) == ("single", 1, "4")


def test_an_interactive_shell_of_an_allocation_is_a_single_process() -> None:
    """What salloc sets: NTASKS without PROCID."""
    with pytest.warns(DistmetricsWarning, match="SLURM_NTASKS=3"):
        env = LaunchEnv.detect({"SLURM_JOB_ID": "5", "SLURM_NTASKS": "3"})
    assert (env.launcher, env.world_size) == ("single", 1)


@pytest.mark.parametrize(
    "more", [{}, {"SLURM_PROCID": "0"}, {"SLURM_NTASKS": "1"}, {"SLURM_JOB_NODELIST": "n1"}]
)
def test_a_job_id_alone_is_a_single_process_without_a_word(more: dict[str, str]) -> None:
    """C93: nothing is contradictory, so nothing is said."""
    env = LaunchEnv.detect({"SLURM_JOB_ID": "5"} | more)
    assert (env.world_size, env.notes) == (1, ())


def test_counts_that_do_not_fit_the_tasks_are_left_to_the_meeting() -> None:
    """The job's tasks per node beside a step of another size: noted, not used."""
    environ = STEP | {"SLURM_STEP_TASKS_PER_NODE": "", "SLURM_TASKS_PER_NODE": "4(x3)"}
    env = LaunchEnv.detect(environ)
    assert env.ranks_per_node == ()
    assert "SLURM_TASKS_PER_NODE=4(x3)" in env.notes[0]


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ({"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0"}, (5,)),
        (
            {"SLURM_STEP_NUM_NODES": "5", "SLURM_NTASKS_PER_NODE": "1", "SLURM_LOCALID": "0"},
            (1,) * 5,
        ),
    ],
)
def test_counts_follow_where_slurm_gives_no_list(
    more: dict[str, str], sizes: tuple[int, ...]
) -> None:
    """One node, or the tasks per node that were asked for, if they add up."""
    assert LaunchEnv.detect(STEP | {"SLURM_STEP_TASKS_PER_NODE": ""} | more).ranks_per_node == sizes


def test_torchrun_within_a_slurm_step_is_torchruns() -> None:
    """One agent a task: the step's numbers are those of the agents."""
    env = LaunchEnv.detect(STEP | TORCHRUN)
    assert (env.launcher, env.rank, env.world_size, env.job_id) == ("torchrun", 1, 2, "17")


def test_rank_variables_copied_from_slurm_keep_slurms_nodes() -> None:
    """`export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS` is a usual line of job scripts."""
    env = LaunchEnv.detect(STEP | {"RANK": "4", "WORLD_SIZE": "5"})
    assert (env.launcher, env.local_rank, env.local_world_size) == ("env", 2, 3)
    assert env.ranks_per_node == (3, 1, 1)


def test_user_addresses_beat_those_derived_from_slurm() -> None:
    """MASTER_ADDR and MASTER_PORT each go first."""
    env = LaunchEnv.detect(STEP | {"MASTER_ADDR": "head"})
    assert env.master_addr == "head"
    assert 20000 <= (env.master_port or 0) < 30000
    assert LaunchEnv.detect(STEP | {"MASTER_PORT": "99"}).master_port == 99


def test_all_ranks_of_a_step_derive_the_same_place_to_meet() -> None:
    """Whatever the placement."""
    places = set()
    for rank, (node, local) in enumerate([(1, 0), (0, 0), (0, 1), (1, 1), (0, 2)]):
        env = LaunchEnv.detect(
            STEP
            | {
                "SLURM_PROCID": str(rank),
                "SLURM_NODEID": str(node),
                "SLURM_LOCALID": str(local),
                "SLURM_STEP_TASKS_PER_NODE": "3,2",
                "SLURM_STEP_NUM_NODES": "2",
                "SLURM_STEP_NODELIST": "n[1,3]",
            }
        )
        places.add((env.master_addr, env.master_port))
    assert len(places) == 1


def test_the_environment_is_only_read() -> None:
    """The default is os.environ, and a launch is a value: frozen, hashable, comparable."""
    env = LaunchEnv.detect(STEP)
    assert env == LaunchEnv.detect(dict(STEP))
    assert hash(env) == hash(LaunchEnv.detect(dict(STEP)))
    with pytest.raises(AttributeError):
        env.rank = 1  # type: ignore[misc]
    sources: Any = env.sources
    with pytest.raises(TypeError):
        sources["rank"] = "mine"


@pytest.mark.parametrize(
    "names",
    list(itertools.combinations(["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"], 3)),
)
def test_any_three_of_torchruns_variables_work_or_name_what_is_missing(
    names: tuple[str, ...],
) -> None:
    """A partly set environment never makes another world."""
    environ = {name: TORCHRUN[name] for name in names}
    if {"RANK", "WORLD_SIZE"} <= set(names):
        assert LaunchEnv.detect(environ).rank == 1
    else:
        with pytest.raises(LaunchError, match="is not set"):
            LaunchEnv.detect(environ)
