"""Records as TensorBoard scalars."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distmetrics.errors import InvalidValue, MissingPackage
from distmetrics.record import Record
from distmetrics.sinks.axis import Axis
from distmetrics.sinks.contract import Run
from distmetrics.sinks.described import describe
from distmetrics.sinks.histograms import Bins, histograms
from distmetrics.sinks.scalars import scalars

if TYPE_CHECKING:
    from tensorboard.compat.proto.summary_pb2 import HistogramProto
    from torch.utils.tensorboard import SummaryWriter

    from distmetrics.registry import Registry
    from distmetrics.sinks.eventfile import EventFile


class TensorBoardSink:
    """Every number of a record as a scalar of its key, at the record's step and time.

    Histograms are drawn with their true bins.

    All of an attempt goes into one event file in ``<run_dir>/tensorboard/``, made with the first
    record. A resumed run hides what the attempts before it wrote from its first step on. NaN and
    infinities are kept.

    The registry's help text and unit are each scalar's description. The run's configuration, where
    it has one, is what TensorBoard's page of hyperparameters shows.

    Event files hold float32: 16777217 reads back as 16777216, 1/3 as 0.3333333432674408, 1e300 as
    infinity. metrics.jsonl has the exact values.

    A step lower than one before it is in the file as well, but TensorBoard's default loader hides
    the later steps of a curve that steps back; ``tensorboard --load_fast=false`` shows them all.

    Args:
        directory: where the event files go, instead of the run directory's ``tensorboard``.
        axis: a key, registered as an axis or a total, whose value is the x-axis instead of the
            step: samples or tokens so far. A record without it, such as a child's, is put at the
            last value of it.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> sink = TensorBoardSink(folder.name)
        >>> sink.open(Run(directory=None, name="example", registry=None))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        >>> sink.close()
        >>> len(list(Path(folder.name).iterdir()))
        1
        >>> folder.cleanup()
    """

    name = "tensorboard"

    def __init__(
        self, directory: str | os.PathLike[str] | None = None, *, axis: str | None = None
    ) -> None:
        self._axis = None if axis is None else Axis(axis)
        self._directory = None if directory is None else Path(directory)
        self._purge_step: int | None = None
        self._open = False
        self._lock = threading.Lock()  # the first record and the first `handle` may race
        self._events: EventFile | None = None
        self._writer: SummaryWriter | None = None
        self._registry: Registry | None = None
        self._config: Mapping[str, Any] = {}
        self._described: set[str] = set()

    @property
    def needs_directory(self) -> bool:
        """Whether the event files' place follows from the run directory."""
        return self._directory is None

    @property
    def handle(self) -> SummaryWriter | None:
        """A `torch.utils.tensorboard.SummaryWriter` into the same event file; None if not open.

        Any thread may use it beside the sink, for images, text, figures and layouts. Its `flush`
        and `close` are not needed.
        """
        if not self._open:
            return None
        events = self._event_file()
        with self._lock:
            if self._writer is None:
                from distmetrics.sinks.eventfile import summary_writer

                self._writer = summary_writer(events)
            return self._writer

    def open(self, run: Run) -> None:
        """Find TensorBoard and the place for its files.

        Raises:
            MissingPackage: tensorboard is not installed.
            InvalidValue: neither the sink nor the run has a directory, or `axis` is no total.
        """
        if self._axis is not None:
            self._axis.check(run.registry)
        try:
            import distmetrics.sinks.eventfile  # noqa: F401 - it imports tensorboard
        except ImportError as error:
            raise MissingPackage(
                f"the TensorBoard sink needs tensorboard ({error}); install it with: "
                "python -m pip install tensorboard"
            ) from error
        if self._directory is None:
            if run.directory is None:
                raise InvalidValue(
                    "TensorBoardSink has no place for its files: give the logger a run_dir, or "
                    'write TensorBoardSink(directory="...")'
                )
            self._directory = run.directory / "tensorboard"
        self._purge_step = run.resumed_from
        self._registry = run.registry
        self._config = run.config
        self._open = True

    def write(self, record: Record) -> None:
        """Write the record's numbers as one event.

        Raises:
            OSError: they could not be written; the file is as it was before.
        """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR

        numbers, drawn = scalars(record), histograms(record)
        step = record.step if self._axis is None else self._axis.of(record)
        if not (numbers or drawn):
            return
        event = Event(step=int(step), wall_time=record.time)
        add = event.summary.value.add
        for key, value in numbers.items():
            scalar = add(tag=key, simple_value=value)
            if key not in self._described:
                text = describe(self._registry, key, record.logger).text
                if text:
                    scalar.metadata.summary_description = text
                    scalar.metadata.plugin_data.plugin_name = "scalars"
                    # Without a class TensorBoard's default loader leaves the description out.
                    scalar.metadata.data_class = DATA_CLASS_SCALAR
        for key, bins in drawn.items():
            add(tag=key).histo.CopyFrom(_histogram(bins))
        self._event_file().add_event(event)
        self._described |= numbers.keys()

    def close(self) -> None:
        """Put all events on the disk."""
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            if self._events is not None:
                self._events.sync_and_close()

    def _event_file(self) -> EventFile:
        from distmetrics.sinks.eventfile import EventFile, hyperparameters

        with self._lock:
            if self._events is None:
                if self._directory is None:
                    raise InvalidValue("this TensorBoardSink is not open; call open(run) first")
                self._events = EventFile(self._directory, self._purge_step)
                if self._config:
                    self._events.add_event(hyperparameters(self._config))
            return self._events


def _histogram(bins: Bins) -> HistogramProto:
    """The bins as TensorBoard takes them: from `min` to the first limit, and so on, up to `max`."""
    from tensorboard.compat.proto.summary_pb2 import HistogramProto

    return HistogramProto(
        min=bins.edges[0],
        max=bins.edges[-1],
        num=sum(bins.counts),
        bucket_limit=bins.edges[1:],
        bucket=bins.counts,
    )
