"""One rank's contributions to a logger or child, cut into windows.

A stream is one rank's side of a logger or child. It is fed with what the training thread did, in
order, by the worker alone, and says which windows are closed and what it may still add to.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from distmetrics import exact
from distmetrics.snapshot import Snapshot
from distmetrics.snapshot.table import Key, KeyTable
from distmetrics.window.fold import fold
from distmetrics.window.labels import NEVER, first_step, label_of, mark_of
from distmetrics.window.lanes import Lanes, Slot
from distmetrics.window.steps import Steps
from distmetrics.window.tallies import BucketRange, Tallies, summed

FOLD_AT = 256
"""Snapshots of an open window that wait to be folded, at most; one with arrays counts more."""
_ELEMENTS = 1 << 12


class Pace(enum.IntFlag):
    """What is known of a child's steps; both once its steps have been of both kinds."""

    FOLLOWS = 1
    """they are its parent's, or later"""
    OWN = 2
    """they are its own (epochs, batches of an evaluation), and below its parent's"""


@dataclass
class Window:
    """One rank's part of a window.

    Attributes:
        main: what was logged for the steps of the window.
        late: what was logged for steps whose own windows had been closed.
        steps: the steps of `main`.
        began: when the window began, in seconds of the rank's clock without pauses.
        used: when something was last logged to it; what follows belongs to the next one.
        seconds: how long it lasted until then; set when it is closed.
    """

    began: float
    main: Slot = field(default_factory=Slot)
    late: dict[int, Slot] = field(default_factory=dict)
    steps: Steps = field(default_factory=Steps)
    unnamed: bool = False
    seconds: float = 0.0
    used: float = -math.inf

    def slots(self) -> list[Slot]:
        """The main slot and those of late steps."""
        return [self.main, *self.late.values()]


@dataclass(frozen=True)
class _Closing:
    """What `Reduction.at_close` may ask."""

    window: Window
    key: Key

    @property
    def seconds(self) -> float:
        return self.window.seconds

    def total(self) -> int | float | None:
        lanes = self.window.main.lanes
        return None if lanes is None else lanes.total(self.key)


class Stream:
    """One rank's side of a logger or child.

    Args:
        name: the child's name, "" for the logger itself.
        every: steps of a window; None: one window until a flush.
        table: the keys of the stream.
        promised: the watermark that this rank has given for the stream before it was made here.
        now: the rank's clock.
        rank: this rank.
        lasts: whether its windows take time, so that there are rates by the clock.
    """

    def __init__(
        self,
        name: str,
        every: int | None,
        table: KeyTable,
        promised: int,
        now: float,
        rank: int = 0,
        lasts: bool = True,
    ) -> None:
        self.name = name
        self.every = every
        self.table = table
        self.watermark = promised
        self._rank = rank
        self._closed: dict[int, Window] = {}
        self.latest = -1
        self.pace = Pace(0)
        self._open: Window | None = None
        self._last_label = -1
        self._cut = 0
        self._ended = now
        self._lasts = lasts

    @property
    def idle(self) -> bool:
        """Whether nothing is open."""
        return self._open is None

    def folded(self) -> Window | None:
        """What is open, folded; it stays open. None where nothing is."""
        if self._open is not None:
            fold(self._open.slots(), self.table)
            self._open.seconds = max(0.0, self._open.used - self._open.began)
        return self._open

    def restore(self, watermark: int, latest: int, window: Window | None) -> None:
        """Go on where a checkpoint was taken; before anything is logged."""
        self.watermark = max(self.watermark, watermark)
        self.latest = latest
        self._open = window

    def begin(self, since: float) -> None:
        """The window that is opened next began then, not when the previous one ended."""
        self._ended = since

    # --- what the training thread did, in order ---

    def log(self, step: int | None, snapshot: Snapshot | None, now: float) -> None:
        """Add a snapshot; None promises that nothing below `step` comes any more."""
        if self.every is None:
            self._log_until_flush(step, snapshot, now)
            return
        assert step is not None
        if snapshot is None:
            self._pass(step)
            return
        if self._is_late(step):
            slot = self._window().late.setdefault(step, Slot())
        else:
            self._pass(step)
            window = self._window()
            window.steps.add(step)
            slot = window.main
        self.latest = max(self.latest, step)
        self._put(slot, snapshot, step, now)

    def flush(self, step: int) -> None:
        """Close the window that ends at `step`, and promise nothing more through it."""
        if self.every is None:
            self._flush_all(step)
            return
        at = first_step(self.watermark)
        window = self._open
        if step < at:
            if window is not None and not window.steps:
                self._close_late()
            return
        if window is not None:
            self._close(label_of(min(self._grid_end(at), step)))
        self.watermark = max(self.watermark, label_of(step) + 1)
        self._cut = step + 1

    def end(self, parent: int) -> None:
        """Close what is open, at the end of its grid, and promise nothing more at all.

        Args:
            parent: the latest step of the parent, -1 for none: where a child without a grid ends.
        """
        if self._open is not None:
            at = first_step(self.watermark)
            if self.every is not None:
                self._close(label_of(self._grid_end(at)))
            else:
                self._flush_all(parent if parent >= 0 else max(self.latest, at))
        self.watermark = NEVER

    def promise(self, step: int) -> None:
        """Promise nothing below `step`, where nothing is open."""
        if self._open is None:
            self.watermark = max(self.watermark, mark_of(step))

    @property
    def closed(self) -> int:
        """How many windows have been closed since they were taken."""
        return len(self._closed)

    def take_closed(self) -> dict[int, Window]:
        """The windows closed since the last call, by label, folded and ready to be offered."""
        closed, self._closed = self._closed, {}
        if closed:
            self._seal(list(closed.values()))
        return closed

    def _seal(self, windows: list[Window]) -> None:
        """Fold what the windows hold, and set what a rank adds at their end."""
        table = self.table
        slots = [slot for window in windows for slot in window.slots()]
        fold(slots, table)
        self._add_at_rank(slots)
        timed = [key for key in table if key.reduction.at_close is not None]
        if not self._lasts:
            timed = [key for key in timed if key.reduction.takes is not None]
        for window in windows:
            if not timed or window.main.lanes is None:
                continue
            lanes = window.main.lanes.grown(table.extent())
            window.main.lanes = lanes
            for key in timed:
                assert key.reduction.at_close is not None
                fields = slice(key.field, key.field + key.reduction.maxes)
                lanes.maxes[fields] = key.reduction.at_close(_Closing(window, key))

    def _add_at_rank(self, slots: list[Slot]) -> None:
        """Add what is told apart by rank."""
        apart = [key for key in self.table if key.reduction.at_rank is not None]
        for lanes in filter(None, (slot.lanes for slot in slots if apart)):
            added: dict[int, dict[int, int]] = {}
            for key in apart:
                if key.index >= len(lanes.counters):
                    continue
                assert key.reduction.at_rank is not None
                fields = lanes.maxes[key.field : key.field + key.reduction.maxes].tolist()
                for tally, bucket, count in key.reduction.at_rank(fields, self._rank):
                    added.setdefault(key.tally + tally, {})[bucket] = count
            lanes.tallies = summed((lanes.tallies, Tallies.of(added)))

    # --- windows on a grid ---

    def _is_late(self, step: int) -> bool:
        at = first_step(self.watermark)
        if step >= at:
            return False
        window = self._open
        if window is None or not window.steps:
            return True
        assert self.every is not None
        return step < max(self._grid_end(at) - self.every + 1, self._cut)

    def _pass(self, step: int) -> None:
        """Close the open window if `step` lies beyond it; raise the watermark."""
        at = first_step(self.watermark)
        if step > self._grid_end(at) and self._open is not None:
            self._close(label_of(self._grid_end(at)))
        self.watermark = max(self.watermark, mark_of(step))

    def _grid_end(self, step: int) -> int:
        assert self.every is not None
        return (step // self.every + 1) * self.every - 1

    def _close_late(self) -> None:
        """Close a window that holds late steps only, at the watermark."""
        label = self.watermark
        if label != label_of(first_step(label)):  # else it waits for that window
            self._close(label)
            self.watermark = label + 1

    # --- one window until a flush ---

    def _log_until_flush(self, step: int | None, snapshot: Snapshot | None, now: float) -> None:
        if snapshot is None:
            if step is not None:
                self.promise(step)
            return
        window = self._window()
        if step is None:
            window.unnamed = True
        else:
            window.steps.add(step)
            self.latest = max(self.latest, step)
        self._put(window.main, snapshot, -1 if step is None else step, now)

    def _flush_all(self, step: int) -> None:
        window = self._open
        label = label_of(step)
        if window is None:
            self.watermark = max(self.watermark, label + 1)
        elif label >= self.watermark:
            self._name_steps(window, step)
            self._close(label)
            self.watermark = label + 1
        else:
            late = Window(window.began, late={step: window.main}, used=window.used)
            self._open = late
            label = self.watermark
            self._close(label)
            self.watermark = label + 1

    @staticmethod
    def _name_steps(window: Window, step: int) -> None:
        if window.unnamed or not window.steps:
            window.steps.add(step)

    # --- both ---

    def _window(self) -> Window:
        if self._open is None:
            self._open = Window(self._ended)
        return self._open

    def _put(self, slot: Slot, snapshot: Snapshot, step: int, now: float) -> None:
        self._window().used = now
        slot.pending.append((snapshot, step))
        if snapshot.sizes is not None:
            slot.waiting += sum(map(sum, snapshot.sizes)) // _ELEMENTS
        slot.waiting += 1
        if slot.waiting >= FOLD_AT:
            fold([slot], self.table)

    def _close(self, label: int) -> None:
        window = self._open
        assert window is not None
        assert label > self._last_label
        end = max(window.began, window.used)
        window.seconds = end - window.began
        self._ended = end
        self._open = None
        self._last_label = label
        self._closed[label] = window


def limb_range(windows: Iterable[Window]) -> tuple[int, int]:
    """The limbs ``[lo, hi)`` that the sums of these windows use; (LIMBS, 0) where they use none."""
    lo, hi = exact.LIMBS, 0
    for window in windows:
        for slot in window.slots():
            lanes: Lanes | None = slot.lanes
            if lanes is not None and lanes.sums.digits.size:
                lo, hi = min(lo, lanes.sums.lo), max(hi, lanes.sums.hi)
    return lo, hi


def tally_spans(windows: Iterable[Window]) -> dict[int, BucketRange]:
    """For each tally that these windows use the span of its buckets."""
    found: dict[int, BucketRange] = {}
    for window in windows:
        for slot in window.slots():
            if slot.lanes is not None and slot.lanes.tallies:
                for tally, span in slot.lanes.tallies.spans():
                    found[tally] = found.get(tally, span).union(span)
    return found
