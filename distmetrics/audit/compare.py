"""Comparing runs: every key of every run gets a verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distmetrics.audit import axis
from distmetrics.audit.aligned import Aligned, Floats, align
from distmetrics.audit.batch import GlobalBatch, find_global_batch
from distmetrics.audit.finding import DEFAULT_RTOL, Context
from distmetrics.audit.judge import judge
from distmetrics.audit.pattern import ROUNDING
from distmetrics.audit.remedy import remedy
from distmetrics.audit.verdict import Kind, Verdict, worst_first
from distmetrics.errors import InvalidValue
from distmetrics.runs import Declared, RunData, Series

_RANK_IN_NAME = re.compile(r"(?:rank|gpu|device|worker|proc(?:ess)?)[_/.-]?(\d+)")
_SAMPLES = re.compile(r"sample|example|seen|image|sequence|batch|(^|/)n$")
_COUNTED = re.compile(r"token|num_|count|size|total|(^|/)n(_|$)|mask|weight")
_OF_TRAINING = re.compile(r"loss|nll|perplex|entropy|norm")
_MOST_COUNTS = 24
_SOME = 1000


@dataclass(frozen=True)
class Report:
    """The verdicts on all keys of some runs.

    Attributes:
        runs: the runs, in order of their world sizes.
        verdicts: key to verdict, the worst first.
        rtol: the relative tolerance.
        strict: drift and noise count as faults.
        x: the axis that was compared by; None: the step.
        global_batch: a batch that differs between the world sizes; None if none was seen.
        warnings: what the readers and launches had to say.
        failures: world size to why it has no run; of an audit that launched a script.
    """

    runs: Sequence[RunData]
    verdicts: Mapping[str, Verdict]
    rtol: float = DEFAULT_RTOL
    strict: bool = False
    x: str | None = None
    global_batch: GlobalBatch | None = None
    warnings: Sequence[str] = ()
    failures: Mapping[int, str] = field(default_factory=dict)

    @property
    def world_sizes(self) -> list[int]:
        """The world sizes that were compared, ascending, each once."""
        return sorted({size for run in self.runs if (size := run.world_size) is not None})

    @property
    def faults(self) -> list[Verdict]:
        """The verdicts that fail the audit, the worst first."""
        return [one for one in self.verdicts.values() if one.is_fault(strict=self.strict)]

    @property
    def exit_code(self) -> int:
        """0: no logging fault; 1: some; 2: the audit could not be done for all world sizes."""
        if self.failures:
            return 2
        return 1 if self.faults else 0

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON holds it."""
        batch = self.global_batch
        return {
            "world_sizes": self.world_sizes,
            "exit_code": self.exit_code,
            "rtol": self.rtol,
            "strict": self.strict,
            "x": self.x,
            "global_batch": None if batch is None else batch.to_dict(),
            "warnings": list(self.warnings),
            "failures": {str(size): text for size, text in self.failures.items()},
            "runs": [
                {
                    "path": str(run.path),
                    "world_size": run.world_size,
                    "format": run.format,
                    "precision": run.precision,
                    "keys": len(run.series),
                }
                for run in self.runs
            ],
            "keys": {key: verdict.to_dict() for key, verdict in self.verdicts.items()},
        }


def compare(
    runs: Sequence[RunData],
    *,
    rtol: float = DEFAULT_RTOL,
    strict: bool = False,
    x: str | None = None,
    steps: int | None = None,
    failures: Mapping[int, str] | None = None,
) -> Report:
    """The verdicts on all keys of two or more runs.

    Args:
        runs: the runs, with their world sizes.
        rtol: relative differences up to this are none; ints compare exactly all the same.
        strict: drift and noise count as faults.
        x: compare by this key (samples, tokens) instead of the step.
        steps: compare only steps below this.
        failures: world sizes that have no run, and why.

    Raises:
        InvalidValue: fewer than two runs, a run without a world size or without keys, a negative
            tolerance, or an axis that some run does not have.
    """
    _check(runs, rtol)
    runs = sorted(runs, key=lambda run: run.world_size or 0)
    if steps is not None:
        runs = [_first_steps(run, steps) for run in runs]
    table = _Table(runs, x)
    verdicts = [_verdict(table, key, Context(rtol=rtol)) for key in table.keys]
    drifting = any(_shows_drift(one) for one in verdicts)
    agreed = _agreed(table, verdicts)
    if drifting or agreed is not None:
        context = Context(rtol=rtol, drifting=drifting, agreed=agreed)
        verdicts = [
            _verdict(table, one.key, context) if _may_change(table, one, context) else one
            for one in verdicts
        ]
    batch = find_global_batch(verdicts, runs)
    if batch is not None:
        verdicts = [batch.explained(one) for one in verdicts]
    return Report(
        runs,
        {one.key: one for one in worst_first(verdicts)},
        rtol,
        strict,
        x,
        batch,
        tuple(_warnings(runs)),
        dict(failures or {}),
    )


def _check(runs: Sequence[RunData], rtol: float) -> None:
    if len(runs) < 2:
        raise InvalidValue(
            f"an audit compares two or more runs, not {len(runs)}; run the script at another "
            "world size, or use `distmetrics audit run`"
        )
    for run in runs:
        if run.world_size is None:
            raise InvalidValue(
                f"{run.path}: the world size is not known, since no run.json says it; give it as "
                f"4={run.path}"
            )
    if all(not run.series for run in runs):
        raise InvalidValue("none of the runs holds a single number")
    if not 0 <= rtol < 1:
        raise InvalidValue(f"the relative tolerance is from 0 to below 1, not {rtol!r}")


class _Table:
    """All series of all runs by key."""

    def __init__(self, runs: Sequence[RunData], x: str | None) -> None:
        self.runs = runs
        self.x = x
        self.sizes = [run.world_size or 0 for run in runs]
        self.keys = list(dict.fromkeys(key for run in runs for key in run.series))
        self.places = [axis.positions(run, x) for run in runs] if x is not None else []
        self._counts = self._whole_counts()

    def declared(self, key: str) -> Declared | None:
        """What the first run that says anything declares of a key."""
        found = (run.declarations[key] for run in self.runs)
        return next((one for one in found if one is not None), None)

    def aligned(self, key: str) -> Aligned:
        series = [run.series[key] for run in self.runs]
        if self.x is not None:
            return axis.align_on(key, series, self.places, self.sizes, self.declared(key))
        return align(key, series, self.sizes, self.declared(key))

    def counts(self, aligned: Aligned) -> Mapping[str, Floats]:
        """The counts that are known at a key's steps."""
        return _Counts(self._counts, aligned) if self.x is None else {}

    def _whole_counts(self) -> dict[str, Series]:
        """Series that can tell the sizes of batches, those named like it first.

        Only those of a run of one rank are surely right; else those that all runs agree on.
        """
        found: dict[str, Series] = {}
        first = self.runs[0]
        for key, series in first.series.items():
            values = series.values
            if not len(values) or values.min() < 1 or not np.all(values == np.rint(values)):
                continue
            if self.sizes[0] == 1 or all(
                key in run.series and np.array_equal(run.series[key].values, values)
                for run in self.runs[1:]
            ):
                found[key] = series
        names = sorted(found, key=lambda key: (*_likely_size(key.lower()), key))
        return {key: found[key] for key in names[:_MOST_COUNTS]}


class _Counts(Mapping[str, Floats]):
    """Counts at the steps of one key, looked up when the judge asks for them."""

    def __init__(self, counts: Mapping[str, Series], aligned: Aligned) -> None:
        self._counts = {key: one for key, one in counts.items() if key != aligned.key}
        self._steps = aligned.steps

    def __getitem__(self, key: str) -> Floats:
        series = self._counts[key]
        if series.steps is self._steps or np.array_equal(series.steps, self._steps):
            return series.values
        rows = np.searchsorted(series.steps, self._steps)
        rows = np.minimum(rows, len(series) - 1)
        # A step without a count says nothing of it: 1 splits unevenly like any unknown.
        return np.where(series.steps[rows] == self._steps, series.values[rows], 1.0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)


def _verdict(table: _Table, key: str, context: Context) -> Verdict:
    lacking = [run for run in table.runs if key not in run.series]
    if lacking:
        return _missing(table, key, lacking)
    aligned = table.aligned(key)
    return judge(aligned, replace(context, counts=table.counts(aligned)))


def _missing(table: _Table, key: str, lacking: Sequence[RunData]) -> Verdict:
    declared = table.declared(key)
    where = ", ".join(str(run.world_size) for run in lacking)
    kind, reason = Kind.MISSING, f"not logged in the runs of world size {where}"
    number = _RANK_IN_NAME.search(key.lower())
    if key.endswith("/nonfinite"):
        kind, reason = Kind.NONFINITE, f"NaN or infinite values, but none at world size {where}"
    elif declared is not None and declared.scaling == "per_rank":
        kind, reason = Kind.EXPECTED_SCALING, "declared as a value of each rank"
    elif number and all(int(number[1]) >= (run.world_size or 0) for run in lacking):
        kind, reason = Kind.EXPECTED_SCALING, "a value of one rank, missing where there is none"
    return Verdict(key, kind, remedy=remedy(kind, key, declared), reason=reason)


def _likely_size(name: str) -> tuple[bool, bool]:
    """Sorts the names of counts: of samples, of anything else, others."""
    return _SAMPLES.search(name) is None, _COUNTED.search(name) is None


def _shows_drift(verdict: Verdict) -> bool:
    """Whether a key shows that the trainings themselves differ by rounding."""
    return verdict.kind is Kind.DRIFT or (verdict.kind is Kind.CLOSE and bool(verdict.max_rel_diff))


def _may_change(table: _Table, verdict: Verdict, context: Context) -> bool:
    """Whether a verdict may be another one in the light of the other keys.

    That trainings drift matters for counts and ratios of counts, which repeat their values.
    """
    if verdict.kind not in {Kind.WEIGHTING, Kind.RANK_LOCAL} or not context.drifting:
        return verdict.kind is Kind.UNDECIDED
    values = table.runs[0].series[verdict.key].values[:_SOME]
    return len(np.unique(values)) < 0.9 * len(values) or bool(np.max(np.abs(values)) <= 1)


def _agreed(table: _Table, verdicts: Sequence[Verdict]) -> float | None:
    """The last step up to which a loss or a norm is equal in all runs; None without one.

    Where another of them is noise, the trainings are not the same, whatever this one says.
    """
    if table.x is not None:
        return None
    telling = [one for one in verdicts if _OF_TRAINING.search(one.key.lower())]
    if any(one.kind is Kind.NOISE for one in telling):
        return None
    lasts = [
        _last_equal(table.aligned(one.key))
        for one in telling
        if one.kind in {Kind.IDENTICAL, Kind.CLOSE, Kind.DRIFT}
    ]
    return max((last for last in lasts if last is not None), default=None)


def _last_equal(aligned: Aligned) -> float | None:
    """The last step before the runs differ; None for what hardly changes, as no loss does."""
    values = aligned.values[0]
    if aligned.integer or len(np.unique(values)) <= len(values) / 2:
        return None
    apart = np.flatnonzero(aligned.relative() > ROUNDING)
    if not len(apart):
        return float(aligned.steps[-1])
    return float(aligned.steps[apart[0] - 1]) if apart[0] else None


def _first_steps(run: RunData, steps: int) -> RunData:
    cut = {}
    for key, one in run.series.items():
        end = int(np.searchsorted(one.steps, steps))
        if end:
            exact = None if one.exact is None else one.exact[:end]
            cut[key] = replace(
                one,
                steps=one.steps[:end],
                values=one.values[:end],
                spans=one.spans[:end],
                exact=exact,
            )
    return replace(run, series=cut)


def _warnings(runs: Sequence[RunData]) -> Iterator[str]:
    for run in runs:
        yield from run.warnings
        if not run.series:
            yield f"{run.path} holds no number"
    single = [run for run in runs if run.precision == "float32"]
    if single:
        names = ", ".join(str(run.path) for run in single)
        yield f"compared as float32, since no more is kept in: {names}"
    lasts = {run.last_step for run in runs if run.last_step is not None}
    if len(lasts) > 1:
        told = ", ".join(f"{run.last_step} at world size {run.world_size}" for run in runs)
        yield f"the runs end at different steps ({told}); only common steps are compared"
