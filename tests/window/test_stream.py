"""How a rank's calls are cut into windows: labels, watermarks, late steps, flushes and the end."""

from __future__ import annotations

import pytest

from distmetrics.window.labels import (
    MAX_STEP,
    NEVER,
    first_step,
    label_of,
    mark_of,
    ordinal_of,
    step_of,
)
from distmetrics.window.lanes import Slot
from distmetrics.window.steps import Steps
from distmetrics.window.stream import Window, limb_range
from tests.window.feeding import Feed


@pytest.mark.parametrize("step", [0, 1, 9, MAX_STEP - 1, MAX_STEP + (1 << 40)])
def test_labels_and_watermarks_of_a_step_lie_in_order(step: int) -> None:
    """Before a step, its window, after its window, before the next step; all below the end."""
    mark, label = mark_of(step), label_of(step)
    assert mark < label < label + 1 < mark_of(step + 1) < NEVER
    assert [step_of(at) for at in (mark, label, label + 1)] == [step] * 3
    assert [first_step(at) for at in (mark, label, label + 1)] == [step, step, step + 1]
    assert [ordinal_of(label + offset) for offset in (-2, 0, 3)] == [-2, 0, 3]


def test_a_window_closes_when_a_later_one_begins() -> None:
    """The watermark is the first step that may still be logged."""
    feed = Feed(every=10)
    feed.log(3, 1)
    feed.log(9, 2)
    assert feed.take() == {}
    assert feed.stream.watermark == mark_of(9)
    feed.log(25, 4)
    (label, window), *rest = feed.take().items()
    assert (label, rest) == (label_of(9), [])
    assert feed.counted(window) == (3, {})
    assert window.steps.runs == [[3, 3], [9, 9]]
    assert feed.stream.watermark == mark_of(25)


def test_a_lower_step_within_the_open_window_is_not_late() -> None:
    """Its window is still open."""
    feed = Feed(every=10)
    feed.log(8, 1)
    feed.log(2, 2)
    feed.log(10, 4)
    assert [feed.counted(window) for window in feed.take().values()] == [(3, {})]


def test_a_step_of_an_earlier_window_is_late() -> None:
    """It travels with the window that the rank is in, apart from its steps."""
    feed = Feed(every=10)
    feed.log(12, 1)
    feed.log(3, 2)
    feed.log(3, 4)
    feed.log(20, 8)
    (window,) = feed.take().values()
    assert feed.counted(window) == (1, {3: 6})
    assert window.steps.runs == [[12, 12]]


def test_a_promise_without_values_is_no_step() -> None:
    """It closes what lies before it, and what comes below it is late."""
    feed = Feed(every=10)
    feed.log(4, 1)
    feed.stream.log(11, None, 0.0)
    assert list(feed.take()) == [label_of(9)]
    assert feed.stream.idle
    feed.log(10, 2)
    feed.log(11, 4)
    feed.stream.end(-1)
    (window,) = feed.take().values()
    assert feed.counted(window) == (4, {10: 2})


def test_a_flush_splits_a_window_and_later_steps_close_at_its_end() -> None:
    """The first part bears the flush's step; what was before the cut is late from then on."""
    feed = Feed(every=10)
    feed.log(13, 1)
    feed.stream.flush(14)
    assert feed.stream.watermark == label_of(14) + 1
    feed.log(16, 2)
    feed.log(14, 4)
    feed.log(20, 8)
    assert {label: feed.counted(window) for label, window in feed.take().items()} == {
        label_of(14): (1, {}),
        label_of(19): (2, {14: 4}),
    }


def test_a_flush_beyond_the_window_closes_it_at_its_end() -> None:
    """Nothing through the flush's step comes any more."""
    feed = Feed(every=10)
    feed.log(13, 1)
    feed.stream.flush(31)
    assert list(feed.take()) == [label_of(19)]
    assert first_step(feed.stream.watermark) == 32


def test_a_flush_below_the_watermark_leaves_the_open_window() -> None:
    """It would cut what is folded already."""
    feed = Feed(every=10)
    feed.log(13, 1)
    feed.stream.flush(12)
    assert feed.take() == {}
    assert feed.stream.watermark == mark_of(13)


def test_late_steps_alone_are_flushed_at_the_watermark() -> None:
    """Such a window has a label that no promise has excluded; several come one after another."""
    feed = Feed(every=1)
    feed.log(5, 1)
    feed.stream.flush(5)
    for n in (2, 4):
        feed.log(3, n)
        feed.stream.flush(5)
    feed.log(6, 8)
    feed.stream.end(-1)
    first = label_of(5)
    assert {label: feed.counted(window) for label, window in feed.take().items()} == {
        first: (1, {}),
        first + 1: (None, {3: 2}),
        first + 2: (None, {3: 4}),
        label_of(6): (8, {}),
    }


def test_an_end_closes_at_the_end_of_the_grid() -> None:
    """As if the steps had gone on; nothing comes any more."""
    feed = Feed(every=10)
    feed.log(13, 1)
    feed.stream.end(-1)
    assert list(feed.take()) == [label_of(19)]
    assert feed.stream.watermark == NEVER


def test_only_an_idle_stream_promises() -> None:
    """What is open may still close at an earlier label."""
    feed = Feed(every=1)
    feed.stream.promise(4)
    assert feed.stream.watermark == mark_of(4)
    feed.log(5, 1)
    feed.stream.promise(9)
    assert feed.stream.watermark == mark_of(5)


def test_without_a_grid_all_is_one_window_until_a_flush() -> None:
    """Calls without a step bear the flush's."""
    feed = Feed(every=None)
    feed.log(None, 1)
    feed.log(None, 2)
    feed.stream.flush(7)
    ((label, window),) = feed.take().items()
    assert (label, feed.counted(window)) == (label_of(7), (3, {}))
    assert window.steps.runs == [[7, 7]]
    assert feed.stream.watermark == label_of(7) + 1


def test_without_a_grid_named_steps_are_kept() -> None:
    """The flush's step is added only where a call has none."""
    feed = Feed(every=None)
    feed.log(2, 1)
    feed.log(3, 1)
    feed.stream.flush(7)
    feed.log(8, 1)
    feed.log(None, 1)
    feed.stream.flush(9)
    assert [window.steps.runs for window in feed.take().values()] == [[[2, 3]], [[8, 9]]]


def test_a_flush_at_or_below_an_earlier_one_makes_a_late_row() -> None:
    """Its label follows, its step is the flush's."""
    feed = Feed(every=None)
    for step, n in ((7, 1), (7, 2), (3, 4)):
        feed.log(None, n)
        feed.stream.flush(step)
    assert {label: feed.counted(window) for label, window in feed.take().items()} == {
        label_of(7): (1, {}),
        label_of(7) + 1: (None, {7: 2}),
        label_of(7) + 2: (None, {3: 4}),
    }


@pytest.mark.parametrize(("parent", "step"), [(-1, 8), (20, 20)])
def test_without_a_grid_the_end_is_a_flush_at_the_parents_step(parent: int, step: int) -> None:
    """So that ranks agree on it; without a parent at the first step that is left."""
    feed = Feed(every=None)
    feed.log(None, 1)
    feed.stream.flush(7)
    feed.log(None, 2)
    feed.stream.end(parent)
    assert list(feed.take()) == [label_of(7), label_of(step)]


def test_many_calls_are_folded_before_the_window_closes() -> None:
    """Memory follows the keys, not the calls."""
    feed = Feed(every=None)
    for n in range(1000):
        feed.log(None, n)
    window = feed.stream.folded()
    assert window is not None
    assert not window.main.pending
    assert feed.counted(window) == (sum(range(1000)), {})
    feed.stream.flush(0)
    assert [feed.counted(w) for w in feed.take().values()] == [(sum(range(1000)), {})]


def test_the_limbs_of_windows_are_those_that_any_uses() -> None:
    """Of none: an empty range that a maximum over ranks leaves out."""
    feed = Feed(every=1)
    feed.log(0, 1)
    feed.log(1, 1 << 70)
    feed.stream.end(-1)
    windows = list(feed.take().values())
    assert limb_range([]) == (67, 0)
    assert limb_range([Window(0.0, main=Slot(), steps=Steps())]) == (67, 0)
    assert limb_range(windows) == (34, 37)
