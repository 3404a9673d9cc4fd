"""What ranks agree on follows from what all of them said, alike on every rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distmetrics import reductions
from distmetrics.exchange.schema import COLLECTIVE, Schema, StreamSchema, declare, prefix_of, said
from distmetrics.registry import Metric
from distmetrics.snapshot.table import KeyTable

KINDS = ("count", "average", "maximum", "std", "same")


def table_of(keys: dict[str, str]) -> KeyTable:
    """A rank's table of keys and their kinds."""
    table = KeyTable()
    for name, kind in keys.items():
        reduction = reductions.make(kind)
        table.add(name, Metric(name, reduction), reduction)
    return table


def told(table: KeyTable, schema: Schema, stream: str = "", every: int | None = 1) -> Any:
    """What a rank says of a stream."""
    known = schema.get(stream) or StreamSchema(stream, every)
    return {stream: {"every": every, "pace": 0, "keys": known.unknown(table)}}


TABLES = st.lists(
    st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(KINDS), max_size=5),
    min_size=1,
    max_size=4,
)


@given(TABLES, TABLES)
def test_all_ranks_agree_on_the_same(first: list[dict[str, str]], later: list[Any]) -> None:
    """Order, places and conflicts follow from what was said, in two rounds as in one."""
    ranks = [Schema() for _ in first]
    tables = [table_of(keys) for keys in first]
    for number, more in enumerate((*later, *[{}] * len(ranks))[: len(ranks)]):
        for name, kind in more.items():
            if tables[number].get(name) is None:
                reduction = reductions.make(kind)
                tables[number].add(name, Metric(name, reduction), reduction)
    for _ in range(2):
        saying = [told(table, schema) for table, schema in zip(tables, ranks, strict=True)]
        conflicts = [schema.learn(saying) for schema in ranks]
        assert all(texts == conflicts[0] for texts in conflicts)
    (streams, *others) = [schema.state() for schema in ranks]
    assert all(state == streams for state in others)
    agreed = ranks[0].get("")
    assert agreed is not None
    ways = {name: {t[name] for t in map(kinds_of, tables) if name in t} for name in "abcdef"}
    assert agreed.aside == {name for name, kinds in ways.items() if len(kinds) > 1}
    assert {key.name for key in agreed.table} >= {n for n, k in ways.items() if len(k) == 1}
    for table in tables:
        assert not agreed.unknown(table)
        check_placement(table, agreed)


def kinds_of(table: KeyTable) -> dict[str, str]:
    """The kinds of a table's keys."""
    return {key.name: key.reduction.kind for key in table}


def check_placement(table: KeyTable, agreed: StreamSchema) -> None:
    """Every agreed key's state goes to its own place, and what is set aside goes nowhere."""
    placement = agreed.placement(table)
    for mine, theirs, width, start in (
        (*placement.keys, lambda r: 1, lambda k: k.index),
        (*placement.rows, lambda r: r.sums, lambda k: k.row),
        (*placement.fields, lambda r: r.maxes, lambda k: k.field),
    ):
        expected = {}
        for key in table:
            other = agreed.table.get(key.name)
            if key.name not in agreed.aside and other is not None:
                for i in range(width(key.reduction)):
                    expected[start(key) + i] = start(other) + i
        assert dict(zip(mine.tolist(), theirs.tolist(), strict=True)) == expected


def test_a_key_keeps_its_place_when_others_come() -> None:
    """What is agreed is never reordered; a placement follows what was added."""
    schema = Schema()
    table = table_of({"b": "average"})
    schema.learn([told(table, schema)])
    agreed = schema.get("")
    assert agreed is not None
    before = agreed.placement(table)
    assert agreed.placement(table) is before
    schema.learn([told(table_of({"a": "count"}), schema), told(table, schema)])
    assert [key.name for key in agreed.table] == ["b", "a"]
    assert agreed.placement(table) is not before
    assert agreed.placement(table).rows[1].tolist() == [0, 1]


def test_a_conflict_names_both_ways_and_the_ranks() -> None:
    """Once; the key is set aside and the others go on."""
    schema = Schema()
    ways = [table_of({"k": kind, "n": "count"}) for kind in ("count", "average", "count")]
    texts = schema.learn([told(table, schema) for table in ways])
    assert texts == [
        (
            "key 'k' was declared in two ways: count() (ranks 0 and 2); average() (rank 1); it is "
            "set aside, the other keys go on: declare it alike on every rank"
        )
    ]
    assert schema.learn([told(table, schema) for table in ways]) == []
    agreed = schema.get("")
    assert agreed is not None
    assert agreed.aside == {"k"}


def test_a_child_of_two_grids_is_set_aside_whole() -> None:
    """Its windows cannot be matched; the text says who made it how."""
    schema = Schema()
    table = table_of({"k": "count"})
    schema.learn([told(table, schema, "val", 4)])
    texts = schema.learn([{}, told(table, schema, "val", None)])
    assert texts == [
        (
            "child 'val' was made in two ways: every=None (rank 1); every=4 (agreed before); it is "
            "set aside"
        )
    ]
    assert [stream.name for stream in schema] == []
    assert schema.aside == {"val"}


def test_schemas_of_a_broken_round_are_united() -> None:
    """A rank that got further has told the others; the order goes on from theirs."""
    behind, ahead = Schema(), Schema()
    table = table_of({"b": "average", "a": "count"})
    for schema in (behind, ahead):
        schema.learn([told(table_of({"b": "average"}), schema)])
    ahead.learn([told(table, ahead)])
    ahead.learn([told(table, ahead, "val", None)])
    states = [behind.state(), ahead.state()]
    for schema in (behind, ahead):
        schema.unite(states)
    assert behind.state() == ahead.state() == states[1]


@pytest.mark.parametrize(
    ("stream", "prefix"), [("", ""), ("val", "val/"), (f"{COLLECTIVE}reduce", "")]
)
def test_only_a_childs_keys_have_a_prefix(stream: str, prefix: str) -> None:
    """Those of the logger and of a collective call come back as they are."""
    assert prefix_of(stream) == prefix


def test_a_declaration_is_told_for_people() -> None:
    """With all that makes two of them differ."""
    reduction = reductions.make("std", ddof=1)
    metric = Metric("k", reduction, nonfinite="skip", replicated_over=("tensor", "context"))
    key = KeyTable().add("k", metric, reduction)
    assert said(declare(key)) == (
        "std(ddof=1) replicated over context, tensor skipping non-finite values"
    )


@pytest.mark.parametrize("turn", [1, -1])
def test_of_two_keys_that_give_one_name_the_later_is_set_aside(turn: int) -> None:
    """Over all streams of records, in the order in which ranks and keys were told of."""
    schema = Schema()
    ranks = [("", table_of({"val/k": "count"})), ("val", table_of({"k": "average"}))][::turn]
    texts = schema.learn([told(table, schema, stream) for stream, table in ranks])
    ways = ["key 'val/k', count()", "key 'k' of child 'val', average()"][::turn]
    assert texts == [
        (
            f"'val/k' would be the name of two values: of {ways[0]}, and of {ways[1]} (rank 1), "
            "which is set aside, the other keys go on: rename one of the two keys"
        )
    ]
    assert schema.learn([told(table, schema, stream) for stream, table in ranks]) == []
    aside = [schema.get(name) for name, _ in ranks]
    assert [None if stream is None else len(stream.aside) for stream in aside] == [0, 1]
    again = Schema()
    again.unite([schema.state()])
    assert again.state() == schema.state()
    assert again.learn([told(table, again, stream) for stream, table in ranks]) == []
