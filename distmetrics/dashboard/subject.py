"""What a dashboard is about: the keys of one run or several, or those that a registry declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from distmetrics.errors import DistmetricsError, RunDirError
from distmetrics.registry import Metric, Registry
from distmetrics.runs import RunData, open_run
from distmetrics.runs.jsonl import RUN, read_facts
from distmetrics.sinks.described import Description, describe, describe_foreign

_OPTIONS = ("unit", "help", "group", "replicated_over", "nonfinite", "scaling")


@dataclass(frozen=True)
class Subject:
    """The keys that a dashboard may show, and what is known of them.

    Attributes:
        title: the name of the run, the runs or the registry.
        keys: key to its description, in the order in which they came.
        patterns: declared patterns whose keys are not known.
        logged: the keys that have values.
        runs: the runs, with their values; none for a registry.
        names: a short name for each run.
        config: the first run's configuration.
        folder: the run directory of the first run; None for a registry.
        warnings: what reading them complained of.
    """

    title: str
    keys: Mapping[str, Description]
    patterns: Mapping[str, Description] = field(default_factory=dict)
    logged: frozenset[str] = frozenset()
    runs: Sequence[RunData] = ()
    names: Sequence[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None
    warnings: Sequence[str] = ()


def subject_of(*places: str | Path) -> Subject:
    """The subject that lies at some places: run directories, or one ``registry.toml``.

    A place may be any run that `distmetrics.runs.open_run` reads, also one that another tool
    wrote. A run directory without a record yet is described by its ``run.json``.

    Raises:
        RunDirError: there is no run at a place.
        InvalidValue, InvalidType, DeclarationConflict: the registry's file breaks a rule.
    """
    if len(places) == 1 and Path(places[0]).suffix == ".toml":
        path = Path(places[0])
        return _of_registry(Registry.from_toml(path), path.stem)
    return of_runs([_opened(place) for place in places])


def without_bins(subject: Subject) -> Subject:
    """The subject as tools see it that are given histograms whole, and not bin by bin."""
    keys = {key: one for key, one in subject.keys.items() if one.kind != "histogram"}
    patterns = {key: one for key, one in subject.patterns.items() if one.kind != "histogram"}
    return replace(subject, keys=keys, patterns=patterns, logged=subject.logged & keys.keys())


def of_runs(runs: Sequence[RunData]) -> Subject:
    """The subject that some runs are, which must be at least one."""
    keys: dict[str, Description] = {}
    patterns: dict[str, Description] = {}
    warnings: list[str] = []
    config: dict[str, Any] = {}
    for run in runs:
        facts = read_facts(run.path / RUN, warnings) if run.path.is_dir() else {}
        registry = written_registry(facts, warnings)
        declared = _of_registry(registry, "") if registry is not None else None
        for key in run.series:
            keys.setdefault(key, describe_foreign(registry, key))
        if declared is not None:
            for key, description in declared.keys.items():
                keys.setdefault(key, description)
            if not run.series:
                patterns.update(declared.patterns)
        written = facts.get("config")
        config = config or run.config or (written if isinstance(written, dict) else {})
        warnings += run.warnings
    names = short_names([run.path for run in runs])
    return Subject(
        title=", ".join(names) if len(names) <= 3 else f"{len(names)} runs",
        keys=keys,
        patterns=patterns,
        logged=frozenset(key for run in runs for key in run.series),
        runs=tuple(runs),
        names=names,
        config=config,
        folder=runs[0].path if runs[0].path.is_dir() else runs[0].path.parent,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def written_registry(facts: Mapping[str, Any], warnings: list[str]) -> Registry | None:
    """The registry in a ``run.json``; declarations that this version does not know are left out.

    None where it holds none.
    """
    written = facts.get("registry")
    if not isinstance(written, list):
        return None
    default, lost = facts.get("default"), 0
    try:
        registry = Registry(default if isinstance(default, str) else "average")
    except DistmetricsError:
        registry = Registry()
    for one in written:
        try:
            _declare(registry, one)
        except (DistmetricsError, TypeError, KeyError, AttributeError):
            lost += 1
    if lost:
        warnings.append(f"{lost} declarations of the run's registry are not understood")
    return registry


def short_names(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of some paths that tell them apart.

    >>> short_names([Path("runs/a/w1"), Path("runs/a/w2")]), short_names([Path("a/x"), Path("b/x")])
    (['w1', 'w2'], ['a/x', 'b/x'])
    """
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts))
    for length in range(1, longest + 1):
        names = ["/".join(one[-length:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, start=1)]


def _opened(place: str | Path) -> RunData:
    try:
        return open_run(place)
    except RunDirError:
        folder = Path(place)
        if not (folder / RUN).is_file():
            raise
    return RunData(folder, "distmetrics", None, {})


def _declare(registry: Registry, written: Mapping[str, Any]) -> None:
    options = {name: written[name] for name in _OPTIONS if name in written}
    params = written.get("params", {})
    registry.declare(written["reduction"], [written["pattern"]], params, **options)


def _of_registry(registry: Registry, title: str) -> Subject:
    keys: dict[str, Description] = {}
    patterns: dict[str, Description] = {}
    for metric in registry:
        if metric.ignored:
            continue
        for name in _made_of(metric):
            if "*" in name or not metric.exact:
                patterns.setdefault(name, describe(registry, metric.pattern))
            else:
                keys.setdefault(name, describe(registry, name))
    for metric in registry:
        for name in metric.refers:
            keys.setdefault(name, describe(registry, name))
    return Subject(title, keys, patterns)


def _made_of(metric: Metric) -> Iterable[str]:
    """The keys of records that one declaration makes."""
    assert metric.reduction is not None
    name = metric.pattern
    if metric.reduction.kind == "per_rank":
        return (f"{name}/rank*", f"{name}/min", f"{name}/max", f"{name}/argmax")
    if metric.reduction.kind == "histogram":
        return ()  # which bins there are its records say
    if metric.reduction.kind == "quantiles":
        return (f"{name}/p{100 * q:g}" for q in metric.reduction.params.get("qs", ()))
    return (name,)
