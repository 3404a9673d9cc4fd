"""Slurm's notations."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics.comm import expand_nodelist, get_slurm_env, parse_tasks_per_node
from distmetrics.errors import LaunchError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("a-[1-2]-b", ["a-1-b", "a-2-b"]),
        ("alpha,beta", ["alpha", "beta"]),
        ("linux[1,2]", ["linux1", "linux2"]),
        ("login,gpu[007,009],x", ["login", "gpu007", "gpu009", "x"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("n[1,3]", ["n1", "n3"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[099-101]", ["n099", "n100", "n101"]),
        ("host-1.cluster.local", ["host-1.cluster.local"]),
        ("[1-2]", ["1", "2"]),
        ("b[2],a[1]", ["b2", "a1"]),
        (" a , b ", ["a", "b"]),
        (["n[1-2]", "m"], ["n1", "n2", "m"]),
    ],
)
def test_a_node_list_expands_in_order_and_with_its_padding(text: str, names: list[str]) -> None:
    """C91: dashes, names without numbers, commas within brackets, several brackets, padding."""
    assert expand_nodelist(text) == names


@pytest.mark.parametrize(
    "text",
    [
        *("n[1-", "n[", "n]", "n[]", "n[1,]", "n[3-1]", "n[a-c]", "n[1-2-3]", "n[[1]]", "n[1]]"),
        *("", ",", "a,,b", "a,", ",a", "a b", "n[ 1]", "(null)", "n[-1]", "n[1-]", "n[9-010]"),
        *("n[1-99999999999]", "n[0-999]m[0-999]o[0-999]", "n[²]", "n[1" + "0" * 5000 + "]"),
    ],
)
def test_a_malformed_node_list_is_quoted_and_the_way_around_named(text: str) -> None:
    """C91: an unknown form is an error that quotes the text and names the override."""
    with pytest.raises(LaunchError, match="MASTER_ADDR") as caught:
        expand_nodelist(text)
    assert repr(text) in str(caught.value)


_prefixes = st.from_regex(re.compile(r"[a-z][a-z.-]{0,6}", re.ASCII), fullmatch=True)


@st.composite
def _node_groups(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A compressed list and the names it stands for."""
    texts, names = [], []
    for _ in range(draw(st.integers(1, 4))):
        prefix = draw(_prefixes)
        suffix = draw(st.sampled_from(["", "-ib", ".x"]))
        if draw(st.booleans()):
            texts.append(f"{prefix}{suffix}")
            names.append(f"{prefix}{suffix}")
            continue
        width = draw(st.integers(1, 4))
        ranges = []
        for _ in range(draw(st.integers(1, 3))):
            low = draw(st.integers(0, 10**width - 1))
            high = low + draw(st.integers(0, 12))
            single = high == low and draw(st.booleans())
            ranges.append(f"{low:0{width}d}" if single else f"{low:0{width}d}-{high:0{width}d}")
            names.extend(f"{prefix}{n:0{width}d}{suffix}" for n in range(low, high + 1))
        texts.append(f"{prefix}[{','.join(ranges)}]{suffix}")
    return ",".join(texts), names


@given(_node_groups())
def test_expanding_a_compressed_list_gives_the_list(group: tuple[str, list[str]]) -> None:
    """The expansion is the inverse of Slurm's compression."""
    text, names = group
    assert expand_nodelist(text) == names


@given(st.text(alphabet="an01-,[] ()x", max_size=14))
def test_any_text_expands_or_raises_our_error(text: str) -> None:
    """No input makes anything but a list of plain names or a LaunchError."""
    try:
        names = expand_nodelist(text)
    except LaunchError:
        return
    assert names
    assert all(re.fullmatch(r"[^\s\[\],()]+", name) for name in names)


@pytest.mark.parametrize(
    ("text", "nnodes", "ntasks", "counts"),
    [
        ("1(x2)", None, None, [1, 1]),
        ("4(x2),3", None, 11, [4, 4, 3]),
        ("4(x2),3", 3, None, [4, 4, 3]),
        ("2", 3, 6, [2, 2, 2]),
        ("2", None, None, [2]),
        ("3,1(x2)", 3, 5, [3, 1, 1]),
        ("16", 1, 16, [16]),
        (" 2 , 1 ", None, None, [2, 1]),
    ],
)
def test_tasks_per_node_expand_to_a_count_for_each_node(
    text: str, nnodes: int | None, ntasks: int | None, counts: list[int]
) -> None:
    """C92: repeats are expanded, and a single count is repeated for several nodes."""
    assert parse_tasks_per_node(text, nnodes, ntasks) == counts


@pytest.mark.parametrize(
    ("text", "nnodes", "ntasks"),
    [
        *((bad, None, None) for bad in ("", "x", "2(x)", "2(x0)", "0", "-1", "2(3)", "2,", "1.5")),
        ("2(x3", None, None),
        ("1(x999999999)", None, None),
        ("²", None, None),
        ("2(x2)", 3, None),
        ("2", 3, 5),
        ("4(x2),3", None, 12),
    ],
)
def test_malformed_tasks_per_node_are_quoted(
    text: str, nnodes: int | None, ntasks: int | None
) -> None:
    """Malformed counts, and counts that contradict the nodes or tasks, are quoted errors."""
    with pytest.raises(LaunchError) as caught:
        parse_tasks_per_node(text, nnodes, ntasks)
    assert repr(text) in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 5)), min_size=1, max_size=6))
def test_expanding_compressed_counts_gives_the_counts(runs: list[tuple[int, int]]) -> None:
    """The parser is the inverse of Slurm's run-length form."""
    text = ",".join(f"{count}(x{times})" if times > 1 else f"{count}" for count, times in runs)
    counts = [count for count, times in runs for _ in range(times)]
    assert parse_tasks_per_node(text) == counts
    assert parse_tasks_per_node(text, len(counts), sum(counts)) == counts


def test_the_slurm_environment_is_parsed_with_the_step_first() -> None:
    """Values of the step beat those of the job; all keys are there."""
    env = get_slurm_env(
        {
            "SLURM_JOB_ID": "12_3",
            "SLURM_NTASKS": "6",
            "SLURM_STEP_NUM_TASKS": "2",
            "SLURM_JOB_NUM_NODES": "3",
            "SLURM_STEP_NUM_NODES": "2",
            "SLURM_NODELIST": "n[1-3]",
            "SLURM_STEP_NODELIST": "n[1-2]",
            "SLURM_TASKS_PER_NODE": "4,1(x2)",
            "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
            "SLURM_NODEID": "1",
            "SLURM_PROCID": "1",
            "SLURM_LOCALID": "0",
        }
    )
    assert env == {
        "job_id": "12_3",
        "ntasks": 2,
        "ntasks_per_node": 1,
        "tasks_per_node_list": [1, 1],
        "nnodes": 2,
        "node_id": 1,
        "proc_id": 1,
        "local_id": 0,
        "nodelist": ["n1", "n2"],
    }


def test_outside_slurm_the_environment_holds_nothing() -> None:
    """Every key is there, with None or an empty list."""
    env = get_slurm_env({})
    assert env.pop("tasks_per_node_list") == env.pop("nodelist") == []
    assert set(env.values()) == {None}
    assert "job_id" in env


@pytest.mark.parametrize("value", [None, 3, b"n[1-2]", [None]])
def test_what_is_no_node_list_is_quoted(value: Any) -> None:
    """A variable that is not set, say."""
    with pytest.raises(LaunchError, match=r"not (None|3|b'n\[1-2\]'|\[None\]) \(is SLURM_JOB_NO"):
        expand_nodelist(value)
