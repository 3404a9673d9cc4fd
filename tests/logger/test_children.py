"""Children: their own windows, prefixed keys, made on any ranks."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.testing import run_ranks_in_process
from tests.logger.ranks import records, values, warned


def of(found: list[dm.Record], name: str | None) -> list[tuple[int, dict[str, Any]]]:
    """Step and values of the records of a logger or child."""
    return [(record.step, dict(record.values)) for record in found if record.logger == name]


def test_an_evaluation_is_one_record_with_the_step_of_its_parent() -> None:
    """All calls up to the flush are one step, so that a count is the plain sum."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for step in range(4):
            logger.log({"loss": dm.Average(step)}, step=step)
            if step % 2:
                for _ in range(3):
                    val.log({"loss": dm.Average(10 * step), "n": dm.Count(2)})
                val.flush()

    found = records(2, train)
    assert of(found, None) == [(step, {"loss": float(step)}) for step in range(4)]
    assert of(found, "val") == [
        (1, {"val/loss": 10.0, "val/n": 12}),
        (3, {"val/loss": 30.0, "val/n": 12}),
    ]


def test_a_child_may_be_made_and_used_on_one_rank_only() -> None:
    """Its record comes while the others train on, not at the end of the run."""
    seen = threading.Event()

    def notice(record: dm.Record) -> None:
        if record.logger == "val":
            seen.set()

    def rank() -> None:
        with dm.Logger(sinks=[notice] if dm.get_rank() == 0 else []) as logger:
            for step in range(3):
                logger.log({"n": dm.Count(1)}, step=step)
            if dm.get_rank() == 1:
                val = logger.child("val")
                val.log({"acc": dm.Ratio(1, 2)})
                val.flush()
            logger.log({"n": dm.Count(1)}, step=3)
            assert seen.wait(20)

    run_ranks_in_process(rank, 3)


def test_a_child_may_have_windows_of_its_own_length() -> None:
    """A child with `every` has a grid of its own, apart from its parent's."""

    def train(logger: dm.Logger) -> None:
        discriminator = logger.child("disc", every=4)
        for step in range(8):
            logger.log({"n": dm.Count(1)}, step=step)
            discriminator.log({"n": dm.Count(1), "step": dm.Maximum(step)}, step=step)

    found = records(2, train, every=2)
    assert [step for step, _ in of(found, None)] == [1, 3, 5, 7]
    assert of(found, "disc") == [
        (3, {"disc/n": 2, "disc/step": 3}),
        (7, {"disc/n": 2, "disc/step": 7}),
    ]


def test_children_of_children_join_their_names() -> None:
    """`child("a").child("b")` is `child("a/b")`."""

    def train(logger: dm.Logger) -> None:
        logger.log({"x": dm.Average(0.0)}, step=2)
        inner = logger.child("val").child("clean")
        assert inner is logger.child("val/clean")
        inner.log({"loss": dm.Average(1.0)})
        inner.flush()

    found = records(2, train)
    assert of(found, "val/clean") == [(2, {"val/clean/loss": 1.0})]


def test_keys_of_a_child_are_looked_up_with_its_prefix_first() -> None:
    """A declaration for `val/n` beats the one for `n`, in the child only."""

    def registry() -> dm.Registry:
        declared = dm.Registry()
        declared.count("n")
        declared.maximum("val/n")
        declared.average("loss", weight="n")
        return declared

    def train(logger: dm.Logger) -> None:
        for scope in (logger, logger.child("val"), logger.child("test")):
            for n in (2, 3):
                scope.log({"n": n, "loss": float(n)}, step=0)
            scope.flush(0)

    found = records(2, train, registry)
    assert of(found, None) == [(0, {"n": 10, "loss": 2.6})]
    assert of(found, "val") == [(0, {"val/n": 3, "val/loss": 2.6})]
    assert of(found, "test") == [(0, {"test/n": 10, "test/loss": 2.6})]


def test_ratios_and_rates_of_children_are_made_from_the_childs_keys() -> None:
    """A ratio that is declared once has a value in the parent and in each child."""

    def registry() -> dm.Registry:
        declared = dm.Registry()
        declared.ratio("accuracy", "correct", "n")
        declared.rate("speed", of="n", seconds="took")
        declared.ratio("val/top5", "correct5", "n")
        return declared

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        logger.log({"correct": 1, "n": 4, "took": 0.5, "correct5": 2}, step=0)
        val.log({"correct": 3, "n": 4, "took": 0.25, "correct5": 4})
        val.flush()

    found = records(2, train, registry)
    parent, child = dict(of(found, None)[0][1]), dict(of(found, "val")[0][1])
    assert (parent["accuracy"], parent["speed"]) == (0.25, 16.0)
    assert "top5" not in parent
    assert "val/top5" not in parent
    assert (child["val/accuracy"], child["val/speed"], child["val/top5"]) == (0.75, 32.0, 1.0)


def test_two_evaluations_at_one_step_are_two_records() -> None:
    """Neither is lost or mixed with the other, and the second is the latest."""
    latest = {}

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=5)
        val = logger.child("val")
        for loss in (1.0, 2.0):
            val.log({"loss": dm.Average(loss)})
            assert val.flush(wait=True) == {"val/loss": loss}
        latest[dm.get_rank()] = dict(val.latest)

    found = records(2, train)
    assert of(found, "val") == [(5, {"val/loss": 1.0}), (5, {"val/loss": 2.0})]
    assert latest[0] == latest[1] == {"val/loss": 2.0}


def test_evaluations_before_training_and_without_a_parents_step_are_kept() -> None:
    """A child can be flushed before its parent has logged anything."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for loss in (1.0, 2.0):
            val.log({"loss": dm.Average(loss)})
            val.flush()

    assert [values["val/loss"] for _, values in of(records(2, train), "val")] == [1.0, 2.0]


def test_a_flush_of_an_empty_child_is_no_record() -> None:
    """Nothing was logged, so nothing is written."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        logger.log({"n": dm.Count(1)}, step=0)
        val.flush()
        assert val.flush(wait=True) == {}

    assert values(records(2, train)) == [{"n": 2}]


def test_steps_of_a_childs_calls_are_its_records_steps() -> None:
    """Where calls of a child without `every` name steps, the record spans them."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val")
        for step in (3, 4, 9):
            val.log({"n": dm.Count(1)}, step=step)
        val.flush(10)

    (record,) = records(2, train)
    assert (record.first_step, record.step, record.window) == (3, 9, 10)
    assert record.values == {"val/n": 6}


def test_what_a_child_has_not_flushed_is_written_at_the_end() -> None:
    """`close` ends the windows of all children."""

    def train(logger: dm.Logger) -> None:
        logger.log({"n": dm.Count(1)}, step=3)
        logger.child("val").log({"n": dm.Count(1)})

    assert of(records(2, train), "val") == [(3, {"val/n": 2})]


@pytest.mark.parametrize("name", ["", "/", "a/", "/a", "a\x00b", None, 3, "a\nb"])
def test_a_wrong_name_is_an_error(name: Any) -> None:
    """The name of a child is a text without slashes at its ends or control characters."""

    def train(logger: dm.Logger) -> None:
        with pytest.raises((InvalidType, InvalidValue), match="child's name"):
            logger.child(name)

    records(1, train)


def test_a_child_has_one_length_of_windows() -> None:
    """The same name gives the same child; another `every` is an error on this rank."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val", every=2)
        assert logger.child("val", every=2) is val
        with pytest.raises(InvalidValue, match="child 'val' was made with every=2, now with"):
            logger.child("val", every=3)
        with pytest.raises(InvalidValue, match="every=2"):
            logger.child("val")
        for wrong, error in ((0, InvalidValue), (-1, InvalidValue), (1.5, InvalidType)):
            with pytest.raises(error, match="every="):
                logger.child("other", every=wrong)  # type: ignore[arg-type]

    records(1, train)


def test_a_child_made_in_two_ways_on_two_ranks_is_set_aside() -> None:
    """All ranks are told, and the logger and its other children go on."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val", every=1 + dm.get_rank())
        for step in range(3):
            val.log({"n": dm.Count(1)}, step=step)
            logger.log({"n": dm.Count(1)}, step=step)
        logger.flush()
        with pytest.raises(dm.DeclarationConflict, match=r"child 'val'.*every=1.*rank 0.*every=2"):
            logger.flush(wait=True)
        logger.log({"n": dm.Count(1)}, step=3)

    found = records(2, train)
    assert of(found, None) == [(step, {"n": 2}) for step in range(4)]
    assert of(found, "val") == []


def test_a_lower_step_in_a_child_is_warned_of_as_in_the_logger() -> None:
    """A child with `every` keeps lower steps as late records."""

    def train(logger: dm.Logger) -> None:
        val = logger.child("val", every=1)
        for step in (4, 2):
            val.log({"n": dm.Count(1)}, step=step)

    with warned("step 2 comes after step 4"):
        found = records(2, train)
    assert [(r.step, r.late) for r in found] == [(2, True), (4, False)]
