"""Law 11: a key that is declared in two ways is an error that names it, and harms no other key."""

from __future__ import annotations

from typing import Any

import pytest

import distmetrics as dm
from tests.logger.ranks import records, values


def test_tags_that_differ_between_ranks_raise_once_on_every_rank() -> None:
    """After the rank's next call has been taken; the key is set aside and the others go on."""
    raised: dict[int, list[str]] = {0: [], 1: [], 2: []}

    def train(logger: dm.Logger) -> None:
        tag: Any = dm.Count if dm.get_rank() == 1 else dm.Average
        for step in range(6):
            try:
                logger.log({"k": tag(1), "n": dm.Count(1)}, step=step)
                logger.flush(wait=True)
            except dm.DeclarationConflict as error:
                raised[dm.get_rank()].append(str(error))
        assert logger.latest == {"n": 3}

    found = records(3, train)
    assert values(found) == [{"n": 3}] * 6
    (text,) = raised[0]
    assert raised == {rank: [text] for rank in range(3)}
    assert "key 'k' was declared in two ways: average() (ranks 0 and 2); count() (rank 1)" in text
    assert "declare it alike on every rank" in text


def test_a_key_that_is_tagged_otherwise_later_raises_where_it_is_seen() -> None:
    """One rank sees its own contradiction at the call, of which nothing is taken."""

    def train(logger: dm.Logger) -> None:
        logger.log({"tp": dm.Count(3 + 2 * dm.get_rank())}, step=0)
        with pytest.raises(dm.DeclarationConflict, match=r"'tp'.*count\(\).*average\(\)"):
            logger.log({"tp": dm.Average(1.0)}, step=1)
        logger.log({"tp": dm.Count(2)}, step=1)

    assert values(records(2, train)) == [{"tp": 8}, {"tp": 4}]


def test_a_later_rank_that_contradicts_what_is_agreed_sets_the_key_aside() -> None:
    """Records before the conflict stay; from it on the key is missing for all."""

    def train(logger: dm.Logger) -> None:
        if dm.get_rank() == 0:
            logger.log({"k": dm.Count(5), "n": dm.Count(1)}, step=0)
        assert logger.flush(0, wait=True) == {"k": 5, "n": 1}
        logger.log({"k": dm.Count(1) if dm.get_rank() == 0 else dm.Maximum(7)}, step=1)
        with pytest.raises(dm.DeclarationConflict, match=r"maximum\(\) \(rank 1\)"):
            logger.flush(1, wait=True)
        logger.log({"n": dm.Count(1)}, step=2)

    found = records(2, train)
    assert [(r.step, r.values) for r in found] == [(0, {"k": 5, "n": 1}), (2, {"n": 2})]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"nonfinite": "skip"}, {}),
        ({}, {"nonfinite": "skip"}),
    ],
)
def test_tags_cannot_hide_what_registries_declare(first: Any, second: Any) -> None:
    """Registries are compared when the logger is made, so that they never differ later."""

    def registry() -> dm.Registry:
        made = dm.Registry()
        made.average("loss", **(first if dm.get_rank() == 0 else second))
        return made

    with pytest.raises(ValueError, match=r"different registries: 'loss' is average\(\)"):
        records(2, lambda logger: None, registry)


def test_many_conflicts_at_once_are_one_error_that_names_all() -> None:
    """Whoever fixes one of them sees the others too."""

    def train(logger: dm.Logger) -> None:
        tag: Any = dm.Count if dm.get_rank() else dm.Total
        logger.log({"a": tag(1), "b": tag(1), "n": dm.Count(1)}, step=0)
        with pytest.raises(dm.DeclarationConflict) as caught:
            logger.flush(wait=True)
        assert "'a'" in str(caught.value)
        assert "'b'" in str(caught.value)

    assert values(records(2, train)) == [{"n": 2}]


def test_a_conflict_that_nobody_has_seen_is_raised_by_close() -> None:
    """All else is written by then."""

    def train(logger: dm.Logger) -> None:
        tag: Any = dm.Count if dm.get_rank() else dm.Total
        logger.log({"k": tag(1), "n": dm.Count(1)}, step=0)
        with pytest.raises(dm.DeclarationConflict, match="'k'"):
            logger.close()

    assert values(records(2, train)) == [{"n": 2}]


def test_a_conflict_of_a_child_names_its_key_in_full() -> None:
    """The same name in the logger itself is not concerned."""

    def train(logger: dm.Logger) -> None:
        tag: Any = dm.Count if dm.get_rank() else dm.Average
        val = logger.child("val")
        logger.log({"k": dm.Count(1)}, step=0)
        val.log({"k": tag(1)})
        with pytest.raises(dm.DeclarationConflict, match="key 'val/k'"):
            val.flush(wait=True)

    assert values(records(2, train)) == [{"k": 2}]


def test_a_key_that_one_rank_declares_after_the_start_is_found_out() -> None:
    """Registries are compared when loggers are made; what comes later is seen with the values."""

    def train(logger: dm.Logger) -> None:
        if dm.get_rank() == 1:
            made[1].count("k")
        logger.log({"k": 1.0, "n": dm.Count(1)}, step=0)
        with pytest.raises(dm.DeclarationConflict, match=r"'k'.*average\(\).*count\(\)"):
            logger.flush(wait=True)

    made: dict[int, dm.Registry] = {}

    def registry() -> dm.Registry:
        return made.setdefault(dm.get_rank(), dm.Registry())

    assert values(records(2, train, registry)) == [{"n": 2}]
