"""Records as rows of a W&B run, also without an account or a network."""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from distmetrics.errors import DistmetricsWarning, InvalidValue, MissingPackage
from distmetrics.record import Record
from distmetrics.sinks.axis import Axis
from distmetrics.sinks.contract import Run
from distmetrics.sinks.described import describe
from distmetrics.sinks.histograms import Bins, histograms
from distmetrics.sinks.scalars import scalars
from distmetrics.sinks.wandb_account import has_credentials
from distmetrics.sinks.wandb_file import await_end

if TYPE_CHECKING:
    import wandb

    from distmetrics.registry import Registry

_NO_KEY = (
    "W&B was asked to run online, but no API key is configured; the run is kept offline. Run "
    "`wandb login` or set WANDB_API_KEY before the next one, and upload this one with `wandb sync`"
)
Mode = Literal["online", "offline", "disabled", "shared"]
_MODES: dict[str, Mode] = {
    "online": "online",
    "offline": "offline",
    "disabled": "disabled",
    "shared": "shared",
    "run": "online",  # W&B's names of old
    "dryrun": "offline",
}
_SERVICE = "WANDB_SERVICE"
_RESERVED = frozenset({"", "attempt", "_step", "_timestamp", "_runtime", "_wandb"})


class WandbSink:
    """Each record as one row of a W&B run, its step in the ordinary key ``step``.

    W&B's own step only ever rises, and drops rows that would step back; so it is left to count
    rows, and `define_metric` makes ``step`` the x-axis of every key (``val/step`` for the keys of
    the child ``val``). Rows of a resumed run bear its ``attempt``: W&B cannot take rows back, so
    the steps that a crashed attempt had logged after the checkpoint are in the run twice, and the
    highest attempt is the one that counts.

    **Mode.** The argument; else ``WANDB_MODE`` and W&B's settings; else online where an API key is
    configured (``WANDB_API_KEY``, ``wandb login``) and offline where none is. Nothing ever prompts:
    online without a key, or with a server that cannot be reached in time, becomes offline with a
    warning. Offline runs are uploaded later with ``wandb sync``.

    **Files** are in ``<run_dir>/wandb/``. Output and code are not captured, and `os.environ` is
    left as it was found.

    **Summary.** Of a key that the registry declares, W&B keeps the rules that its reduction calls
    for: the last value alone of counts and totals, as it does by itself; else ``min``, ``max`` and
    ``last`` of the whole curve (``loss.min`` in W&B's table of runs; a `minimum` has no ``max`` and
    a `maximum` no ``min``). Help texts and units are in the run's configuration, under
    ``about_metrics``.

    **Values.** Histograms are W&B's, with the true bins; where there are more than it takes,
    neighbours are put together. NaN and infinities are kept. Integers are exact in the file up to
    2**63 and floats beyond; W&B's charts compute in float64, exact up to 2**53. Keys are taken as
    they are, but for those that name a column of W&B or of this sink (``step``, ``attempt``,
    ``_step``, ``_timestamp``, ``_runtime``, ``_wandb`` and the empty key): these get a ``_`` at the
    end.

    Args:
        mode: ``"online"``, ``"offline"``, ``"disabled"`` or ``"shared"``; None finds out as above.
        init_timeout: seconds that the server may take to accept the run.
        finish_timeout: seconds that the last upload may take when the sink closes. What is not
            uploaded by then is in the run's files.
        axis: a key, registered as an axis or a total, that is the x-axis of all others instead of
            the step: samples or tokens so far. Records without it, such as a child's, bear the
            last value of it.
        run: an active W&B run of your own to log into. It is not finished by the sink.
        options: passed to `wandb.init`: ``project``, ``entity``, ``name``, ``group``, ``tags``, ...

    Example:
        >>> import distmetrics as dm
        >>> digits = dm.sinks.WandbSink("offline", project="digits", tags=["baseline"])
        >>> digits.name  # to be given to dm.Logger(run_dir=..., sinks=[digits])
        'wandb'
    """

    name = "wandb"

    def __init__(
        self,
        mode: Mode | None = None,
        *,
        init_timeout: float = 30.0,
        finish_timeout: float = 30.0,
        run: wandb.Run | None = None,
        axis: str | None = None,
        **options: Any,
    ) -> None:
        if mode is not None and mode not in get_args(Mode):
            known = ", ".join(repr(name) for name in get_args(Mode))
            raise InvalidValue(
                f"WandbSink: mode={mode!r} is not known; use {known}, or leave it out"
            )
        self._mode = mode
        self._init_timeout = init_timeout
        self._finish_timeout = finish_timeout
        self._run = run
        self._owns_run = run is None
        self._options = options
        self._id: str | None = None
        self._axis = None if axis is None else Axis(axis)
        self._defined: set[str] = set()
        self._registry: Registry | None = None
        self._about: dict[str, str] = {}

    @property
    def close_timeout(self) -> float:
        """Seconds that `close` may take."""
        return self._finish_timeout + 5.0

    @property
    def needs_directory(self) -> bool:
        """Whether W&B's files go to the run directory."""
        return self._owns_run and "dir" not in self._options

    @property
    def handle(self) -> wandb.Run | None:
        """The W&B run, for images, tables and artifacts; None before it began."""
        return self._run

    def open(self, run: Run) -> None:
        """Begin the W&B run, or go on with the one that `state` named.

        Raises:
            MissingPackage: wandb is not installed.
            InvalidValue: neither the sink nor the run has a directory, or `axis` is no total.
        """
        self._registry = run.registry
        if self._axis is not None:
            self._axis.check(run.registry)
        if not self._owns_run:
            return
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise MissingPackage(
                f"the W&B sink needs wandb ({error}); install it with: python -m pip install wandb"
            ) from error
        with _environment_restored():
            self._run = self._begin(run)

    def write(self, record: Record) -> None:
        """Log the record as one row."""
        if self._run is None:
            raise InvalidValue("this WandbSink is not open; call open(run) before it is used")
        axis = "step" if record.logger is None else f"{record.logger}/step"
        numbers: dict[str, Any] = {**scalars(record), **self._histograms(record)}
        if self._axis is not None:
            numbers.setdefault(self._axis.key, self._axis.of(record))
        columns = {_column(key, axis): key for key in numbers}
        self._define(axis, columns, record.logger)
        row = {column: numbers[key] for column, key in columns.items()}
        row["_timestamp"] = record.time
        row[axis] = record.step
        if record.attempt > 0:
            row["attempt"] = record.attempt
        self._run.log(row, commit=True)

    def _histograms(self, record: Record) -> dict[str, Any]:
        import wandb

        return {
            key: wandb.Histogram(np_histogram=(np.array(bins.counts), np.array(bins.edges)))
            for key, bins in _drawn(record, wandb.Histogram.MAX_LENGTH)
        }

    def state(self) -> dict[str, str]:
        """The run's id, with which a resumed run goes on."""
        return {} if self._id is None else {"id": self._id}

    def close(self) -> None:
        """Finish the run, unless it is the user's own, and wait until its file is complete."""
        if self._run is None or not self._owns_run:
            return
        file = Path(self._run.settings.sync_file)
        size = file.stat().st_size if file.exists() else None
        with _environment_restored():
            self._run.finish()
        if size is not None and not await_end(file, size, self._finish_timeout):
            warnings.warn(
                f"W&B's service has not completed {file} within {self._finish_timeout} s; it goes "
                "on by itself, and metrics.jsonl has every record",
                DistmetricsWarning,
                stacklevel=2,
            )

    def _begin(self, run: Run) -> wandb.Run:
        import wandb

        settings = wandb.setup().settings
        options = dict(self._options)
        directory = options.pop("dir", run.directory)
        if directory is None:
            raise InvalidValue(
                "WandbSink has no place for its files: give the logger a run_dir, or write "
                'WandbSink(dir="...")'
            )
        Path(directory).mkdir(parents=True, exist_ok=True)  # or W&B would use another folder
        resumed = run.state.get("id")
        given = options.pop("id", None) or settings.run_id
        self._id = str(resumed or given or _new_id())
        if resumed:
            options["resume"] = "allow"
        options.setdefault("name", settings.run_name or run.name)
        options.setdefault("config", dict(run.config))
        options.setdefault("reinit", "create_new")  # a run of the user's own goes on beside
        options.update(dir=str(directory), id=self._id, settings=self._settings(options))
        mode = self._resolved_mode(settings)
        try:
            return wandb.init(mode=mode, **options)
        except wandb.Error as error:
            if mode not in ("online", "shared"):
                raise
            # W&B's service holds on to the refused run's id, so this run takes another.
            self._id = options["id"] = _new_id()
            options.pop("resume", None)
            warnings.warn(
                f"W&B did not accept the run ({error}); it is kept offline as run {self._id}: "
                f"upload it with `wandb sync` from {directory}/wandb",
                DistmetricsWarning,
                stacklevel=2,
            )
            return wandb.init(mode="offline", **options)

    def _settings(self, options: dict[str, Any]) -> wandb.Settings:
        """Neither output nor its capture, no code, no endless wait, unless the user says so."""
        import wandb

        given = options.pop("settings", None) or {}
        if isinstance(given, wandb.Settings):
            given = {name: getattr(given, name) for name in given.model_fields_set}
        quiet = {
            "silent": True,
            "console": "off",
            "disable_git": True,
            "disable_code": True,
            "save_code": False,
            "init_timeout": self._init_timeout,
            "finish_timeout": self._finish_timeout,
            "finish_timeout_raises": False,
        }
        known = wandb.Settings.model_fields  # older releases have no finish_timeout
        quiet = {name: value for name, value in quiet.items() if name in known}
        return wandb.Settings(**{**quiet, **given})

    def _resolved_mode(self, settings: wandb.Settings) -> Mode:
        mode = _MODES[self._mode or settings.mode]
        if mode in ("offline", "disabled") or has_credentials(settings):
            return mode
        if self._mode is not None or os.environ.get("WANDB_MODE"):
            warnings.warn(_NO_KEY, DistmetricsWarning, stacklevel=2)
        return "offline"

    def _define(self, axis: str, columns: Mapping[str, str], logger: str | None) -> None:
        """Make `axis` the x-axis of the columns that have none yet, and say what their keys are.

        One definition a column, as of several patterns that match one W&B takes any. A column with
        a ``*`` can only be defined as a pattern: it keeps W&B's own x-axis and summary.
        """
        assert self._run is not None
        if axis not in self._defined:
            self._defined.add(axis)
            self._run.define_metric(_escaped(axis), hidden=True)
        about = {}
        along = axis if self._axis is None else _column(self._axis.key, axis)
        for column in columns.keys() - self._defined:
            self._defined.add(column)
            description = describe(self._registry, columns[column], logger)
            if description.text:
                about[column] = description.text
            if "*" not in column:
                # Without a rule W&B keeps the last value as a plain number.
                several = description.registered and description.kind != "histogram"
                rules = description.rules if several else ("last",)
                summary = None if rules == ("last",) else ",".join(rules)
                of = axis if column == along else along
                self._run.define_metric(
                    _escaped(column), step_metric=of, step_sync=False, summary=summary
                )
        if about:
            self._about |= dict(sorted(about.items()))
            config: Any = self._run.config
            config.update({"about_metrics": self._about}, allow_val_change=True)


def _drawn(record: Record, most: int) -> Iterator[tuple[str, Bins]]:
    """The record's histograms in at most so many bins."""
    for key, bins in histograms(record).items():
        yield key, bins.coarsened(most)


def _column(key: str, axis: str) -> str:
    """The column of a key: itself, with one ``_`` more if that is a reserved name and any ``_``."""
    bare = key.rstrip("_")
    return f"{key}_" if bare == axis or bare in _RESERVED else key


def _new_id() -> str:
    return secrets.token_hex(4)


def _escaped(key: str) -> str:
    """The key as a name for `define_metric`, which takes bare dots for a path."""
    return key.replace("\\", "\\\\").replace(".", "\\.")


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Hide empty W&B variables, which it refuses, and take back what it adds.

    W&B reads ``WANDB_SILENT=""`` as an invalid boolean, where it means "not set". It leaves the
    address of its service in ``WANDB_SERVICE``.
    """
    empty = [key for key, value in os.environ.items() if key.startswith("WANDB_") and not value]
    service = os.environ.get(_SERVICE)
    for key in empty:
        del os.environ[key]
    try:
        yield
    finally:
        for key in empty:
            os.environ.setdefault(key, "")
        if service is None:
            os.environ.pop(_SERVICE, None)
