"""From what a user names to sinks: names, objects of the contract, plain functions."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.record import Record
from distmetrics.sinks.console import ConsoleSink
from distmetrics.sinks.contract import RecordFunction, Run, Sink
from distmetrics.sinks.memory import MemorySink
from distmetrics.sinks.mlflow import MlflowSink
from distmetrics.sinks.prometheus import PrometheusSink
from distmetrics.sinks.tensorboard import TensorBoardSink
from distmetrics.sinks.wandb import WandbSink

JSONL = "jsonl"
"""Accepted among the names and adds nothing: a run directory always has its metrics.jsonl."""

_BY_NAME: dict[str, Callable[[], Sink]] = {
    "console": ConsoleSink,
    "memory": MemorySink,
    "mlflow": MlflowSink,
    "prometheus": PrometheusSink,
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
}

SinkSpec = str | Sink | RecordFunction
"""What may stand in ``Logger(sinks=[...])``."""


class NamedSink(NamedTuple):
    """A sink and the name it goes by in `Logger.sink` and `Logger.stats`."""

    name: str
    sink: Sink


class FunctionSink:
    """A plain function as a sink: it is called with each record.

    Example:
        >>> sink = FunctionSink(lambda record: print(record.step, dict(record.values)))
        >>> sink.write(Record(step=9, first_step=0, window=9, time=0.0, values={"loss": 0.25}))
        9 {'loss': 0.25}
    """

    def __init__(self, function: RecordFunction) -> None:
        self.handle = function
        self.name = str(getattr(function, "__name__", type(function).__name__))

    def open(self, run: Run) -> None:
        """Nothing to open."""

    def write(self, record: Record) -> None:
        """Call the function."""
        self.handle(record)

    def close(self) -> None:
        """Nothing to close."""


def make_sinks(
    specs: SinkSpec | Iterable[SinkSpec], run_dir: str | os.PathLike[str] | None
) -> list[NamedSink]:
    """The sinks that `specs` names, in their order, each under a name of its own.

    Opens nothing and imports no back end's package, so that every rank can call it and a mistake
    raises on all of them alike; only rank 0 uses what comes back.

    Args:
        specs: names (``"tensorboard"``, ``"wandb"``, ``"console"``, ``"prometheus"``, ``"mlflow"``,
            ``"memory"``, ``"jsonl"``), objects of the contract
            (`distmetrics.sinks.contract.Sink`), and functions that take a record; or one of these.
        run_dir: the run directory; None for a run that keeps no files.

    Raises:
        InvalidValue: an unknown name, the same name or object twice, a sink that keeps files
            without a run directory.
        InvalidType: something that is no name, no sink and no function.

    Example:
        >>> [name for name, _ in make_sinks(["tensorboard", "jsonl", print], "runs/exp1")]
        ['tensorboard', 'print']
    """
    sinks: list[NamedSink] = []
    seen: list[SinkSpec] = []
    for spec in _several(specs):
        if any(spec is other or (isinstance(spec, str) and spec == other) for other in seen):
            raise InvalidValue(f"sinks: {spec!r} is given twice; give each sink once")
        seen.append(spec)
        if isinstance(spec, str) and spec == JSONL:
            _require_directory(JSONL, run_dir)
            continue
        sink = _sink(spec)
        name = str(getattr(sink, "name", type(sink).__name__))
        if getattr(sink, "needs_directory", False):
            _require_directory(name, run_dir)
        sinks.append(NamedSink(_free_name(name, sinks), sink))
    return sinks


def _several(specs: Any) -> Iterable[Any]:
    return specs if isinstance(specs, Iterable) and not isinstance(specs, str) else (specs,)


def _sink(spec: Any) -> Sink:
    if isinstance(spec, str):
        if spec not in _BY_NAME:
            raise InvalidValue(_unknown(spec))
        return _BY_NAME[spec]()
    if isinstance(spec, type):
        raise InvalidType(
            f"sinks: {spec.__name__} is a class; give an object of it: {spec.__name__}()"
        )
    if isinstance(spec, Sink):
        return spec
    missing = [name for name in ("open", "write", "close") if not hasattr(spec, name)]
    if len(missing) < 3:
        raise InvalidType(
            f"sinks: {spec!r} lacks {' and '.join(missing)}; a sink has open(run), write(record) "
            "and close()"
        )
    if callable(spec):
        return FunctionSink(spec)
    raise InvalidType(
        f"sinks: {spec!r} of type {type(spec).__name__} is no sink; give a name ({_known()}), "
        "an object with open(run), write(record) and close(), or a function that takes a record"
    )


def _require_directory(name: str, run_dir: str | os.PathLike[str] | None) -> None:
    if run_dir is None:
        raise InvalidValue(
            f"sinks: {name!r} keeps files, and there is no run directory; give the logger one: "
            'Logger(run_dir="runs/exp1")'
        )


def _free_name(name: str, taken: list[NamedSink]) -> str:
    """`name`, or the first of ``name-2``, ``name-3``, ... that no other sink has."""
    names = {sink.name for sink in taken}
    free, number = name, 1
    while free in names:
        number += 1
        free = f"{name}-{number}"
    return free


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name.lower(), [*_BY_NAME, JSONL], n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return f"sinks: unknown sink {name!r}; {guess}Known are {_known()}"


def _known() -> str:
    return ", ".join(repr(name) for name in sorted([*_BY_NAME, JSONL]))
