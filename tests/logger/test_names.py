"""A name in records is that of one value: two keys that would give it are an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import distmetrics as dm
from tests.logger.ranks import records, values, warned

NAN = float("nan")
CALLS = [
    ({"lat": [1.0, 2.0]}, {"lat/p50": 9.0}, r"'lat', quantiles\(.*'lat/p50', average"),
    ({"mem": 1.0}, {"mem/max": 9.0}, r"'mem', per_rank\(.*'mem/max', average"),
    ({"loss": NAN}, {"loss/nonfinite": 9.0}, r"'loss', average\(\), whose NaN and infinities"),
    ({"loss": 1.0}, {"loss": {"nonfinite": 9.0}}, r"'loss', average\(\), whose NaN and infinities"),
]


def registry() -> dm.Registry:
    """Keys that give several names each."""
    made = dm.Registry()
    made.quantiles("lat", qs=[0.5])
    made.per_rank("mem")
    return made


@pytest.mark.parametrize(("first", "second", "match"), CALLS)
def test_a_key_that_another_makes_is_refused(
    first: Mapping[str, Any], second: Mapping[str, Any], match: str
) -> None:
    """In the call that brings the later of the two, whichever that is; what is known goes on."""

    def train(logger: dm.Logger) -> None:
        logger.log(first, step=0)
        with pytest.raises(dm.DeclarationConflict, match=rf"{match}.*rename one"):
            logger.log({**second, "n": 1}, step=1)
        logger.log(first, step=2)

    def turned(logger: dm.Logger) -> None:
        logger.log(second, step=0)
        with pytest.raises(dm.DeclarationConflict, match=r"rename one of the two"):
            logger.log(first, step=1)

    assert [record.step for record in records(1, train, registry)] == [0, 2]
    assert [record.step for record in records(1, turned, registry)] == [0]


@pytest.mark.parametrize("turn", [1, -1])
def test_two_new_keys_of_one_call_are_told_apart(turn: int) -> None:
    """Nothing of the call is taken; the first alone may come afterwards."""
    call: dict[str, Any] = dict([("lat", [1.0, 2.0]), ("lat/p50", 9.0)][::turn])

    def train(logger: dm.Logger) -> None:
        for _ in range(2):
            with pytest.raises(dm.DeclarationConflict, match="'lat/p50'"):
                logger.log(call, step=0)
        first = next(iter(call))
        logger.log({first: call[first]}, step=1)

    assert len(records(1, train, registry)) == 1


def test_a_lenient_logger_leaves_the_later_key_out() -> None:
    """The rest of the call is logged, and the key is told of once."""

    def train(logger: dm.Logger) -> None:
        for step in range(2):
            logger.log({"lat": [1.0, 2.0], "lat/p50": 9.0, "n": dm.Count(1)}, step=step)

    with warned(r"'lat/p50' would be the name of two values", times=1):
        found = records(1, train, registry, errors="warn")
    assert values(found) == [{"lat/p50": 1.0, "n": 1}] * 2


def test_a_key_of_the_parent_and_one_of_a_child_differ() -> None:
    """Records apart, but one name in every chart."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        logger.log({"val/loss": 1.0, "val/top5/acc": 1.0}, step=0)
        with pytest.raises(dm.DeclarationConflict, match=r"'val/loss'.*key 'loss' of child 'val'"):
            val.log({"loss": 2.0})
        with pytest.raises(dm.DeclarationConflict, match="key 'acc' of child 'val/top5'"):
            val.child("top5").log({"acc": 2.0})
        val.log({"lat": [1.0]})
        with pytest.raises(dm.DeclarationConflict, match="key 'lat' of child 'val', quantiles"):
            logger.log({"val/lat/p50": 1.0}, step=1)

    assert len(records(1, train, registry)) == 2


def ratio() -> dm.Registry:
    """A ratio for a child, of keys that its parent may have too."""
    made = dm.Registry()
    made.ratio("val/acc", "right", "n")
    return made


@pytest.mark.parametrize("world_size", [1, 3])
def test_a_ratio_under_a_childs_name_is_the_childs_once_there_is_one(world_size: int) -> None:
    """Before, nothing tells that it is meant for it; only rank 0 may evaluate."""

    def train(logger: dm.Logger) -> None:
        for step in range(3):
            logger.log({"right": 1, "n": 2}, step=step)
            logger.flush(wait=True)
            if dm.get_rank() == 0:
                val = logger.child("val")
                val.log({"right": 3, "n": 4})
                val.flush(step)

    found = records(world_size, train, ratio)
    counts = {"right": world_size, "n": 2 * world_size}
    mine = [record.values for record in found if record.logger is None]
    assert mine == [counts | {"val/acc": 0.5}, counts, counts]
    assert [r.values["val/acc"] for r in found if r.logger == "val"] == [0.75] * 3


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_child_that_came_first_keeps_the_name_of_its_ratio(world_size: int) -> None:
    """Ranks without the child make the ratio themselves; it is left out, and nobody is told."""

    def train(logger: dm.Logger) -> None:
        if dm.get_rank() == 0:
            val = logger.child("val")
            val.log({"right": 3, "n": 4})
            val.flush(0)
        logger.reduce({"x": 1})
        logger.log({"right": 1, "n": 2}, step=1)

    found = records(world_size, train, ratio)
    assert {r.logger: r.values.get("val/acc") for r in found} == {"val": 0.75, None: None}


def test_what_a_collective_call_returns_stands_for_itself() -> None:
    """Its keys may be those of records, and collide among themselves alone."""

    def train(logger: dm.Logger) -> None:
        logger.log({"lat": [1.0]}, step=0)
        assert logger.reduce({"lat/p50": 3.0}) == {"lat/p50": 3.0}
        with pytest.raises(dm.DeclarationConflict, match="'lat/p50'"):
            logger.reduce({"lat": 3.0})

    assert len(records(1, train, registry)) == 1


@pytest.mark.parametrize("holder", [0, 1])
def test_keys_of_different_ranks_collide(holder: int) -> None:
    """The later is set aside, every rank is told once, and all else goes on."""
    raised: dict[int, list[str]] = {0: [], 1: []}

    def train(logger: dm.Logger) -> None:
        mine: dict[str, Any] = {"lat": [1.0, 2.0]} if dm.get_rank() == holder else {"lat/p50": 9.0}
        for step in range(4):
            try:
                logger.log({**mine, "n": dm.Count(1)}, step=step)
                logger.flush(wait=True)
            except dm.DeclarationConflict as error:
                raised[dm.get_rank()].append(str(error))

    kept = 1.0 if holder == 0 else 9.0
    assert values(records(2, train, registry)) == [{"lat/p50": kept, "n": 2}] * 4
    (text,) = raised[0]
    assert raised == {0: [text], 1: [text]}
    assert "(rank 1), which is set aside, the other keys go on: rename one of the two keys" in text
    assert "key 'lat', quantiles(qs=[0.5])" in text
    assert "key 'lat/p50', average()" in text
