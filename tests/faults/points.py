"""Named points of a round at which a rank dies, stops or errs: while data is in flight there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from distmetrics.comm.communicator import Op
from distmetrics.exchange.round import AllGather, AllReduce
from distmetrics.record import Record
from distmetrics.rundir import METRICS
from distmetrics.sinks.append import AppendFile
from distmetrics.spool.journal import Journal
from distmetrics.worker import worker as worker_module
from distmetrics.worker.writer import Writer

POINTS = ("spooling", "header", "exchange", "sum", "max", "reduced", "commit", "sink", "committed")
WRITING = ("commit", "sink", "committed")
"""In the order in which a round passes them.

``spooling``: before closed windows are on disk; ``header``: before the header is sent;
``exchange``: before what is new is exchanged; ``sum``, ``max``: before that lane is sent;
``reduced``: after the lanes have come back; ``commit``: on rank 0 before records are written;
``sink``: in the middle of a line of ``metrics.jsonl``; ``committed``: on rank 0 after that, before
the others know. Those of `WRITING` rank 0 alone passes.
"""

Action = Callable[[str], object]


def at(point: str, action: Action, after: int = 0) -> None:
    """Do something in this process when a round passes a point with windows of the training.

    Args:
        point: one of `POINTS`.
        action: called with the point, once.
        after: how many times the point is passed before.
    """
    fire = _Countdown(point, action, after)
    if point == "spooling":
        _before(Journal, "add", lambda _, stream, windows: bool(windows), fire)
    elif point == "commit":
        _before(Writer, "write", lambda _, records: bool(records), fire)
    elif point == "sink":
        _within_a_line(fire)
    elif point == "committed":
        write = Writer.write

        def written(self: Writer, records: Sequence[Record]) -> None:
            write(self, records)
            if records:
                fire()

        Writer.write = written  # type: ignore[method-assign]
    else:
        _in_rounds(point, fire)


class _Countdown:
    def __init__(self, point: str, action: Action, after: int) -> None:
        self.point, self.action, self.left = point, action, after

    def __call__(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.action(self.point)


def _before(owner: type, name: str, counts: Callable[..., bool], fire: _Countdown) -> None:
    original = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        if counts(*args, **kwargs):
            fire()
        return original(*args, **kwargs)

    mock.patch.object(owner, name, patched).start()


def _within_a_line(fire: _Countdown) -> None:
    """Write the first half of what is appended, look, and write the rest."""
    append = AppendFile.append

    def halves(self: AppendFile, data: bytes) -> None:
        if self.path.name != METRICS:
            append(self, data)
            return
        append(self, data[: len(data) // 2])
        fire()
        append(self, data[len(data) // 2 :])

    mock.patch.object(AppendFile, "append", halves).start()


def _in_rounds(point: str, fire: _Countdown) -> None:
    """Look at each collective of a round before it is begun."""
    original = worker_module.drive

    def drive(round_: Any, communicator: Any) -> Any:
        return original(_watched(round_, point, fire), communicator)

    mock.patch.object(worker_module, "drive", drive).start()


def _watched(round_: Any, point: str, fire: _Countdown) -> Any:
    """The same generator; `fire` is called where it passes the point."""
    result, first, last = None, True, ""
    while True:
        if last == "max" and point == "reduced":
            fire()
        try:
            request = round_.send(result)
        except StopIteration as end:
            return end.value
        last = _name(request, first)
        if last == point and (last != "header" or _has_windows(request)):
            fire()
        first = False
        result = yield request


def _name(request: AllReduce | AllGather, first: bool) -> str:
    if first:
        return "header"
    if isinstance(request, AllGather):
        return "exchange"
    return "sum" if request.op is Op.SUM else "max"


def _has_windows(request: AllReduce | AllGather) -> bool:
    """Whether a rank's header tells of closed windows: some limbs are in use."""
    return isinstance(request, AllReduce) and bool(request.array[2] > 0)
