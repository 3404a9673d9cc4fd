"""The store of declarations: one for each declared text, in order, without contradictions."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from distmetrics.errors import DeclarationConflict, InvalidValue
from distmetrics.registry.keys import Matcher, matcher
from distmetrics.registry.metric import Metric
from distmetrics.registry.parameters import COUNTED


@dataclass(frozen=True)
class Pattern:
    """A declared pattern, compiled."""

    metric: Metric
    matches: Matcher


@dataclass(frozen=True)
class Index:
    """What a look-up needs, made from all declarations and thrown away with the next one.

    Attributes:
        names: by declared text, patterns too: a key that equals the text of a pattern is meant.
        patterns: the ones that come first in precedence first.
        referred: for each key that some declaration needs, what it then is.
        found: the look-ups so far, by prefix and key.
    """

    names: dict[str, Metric]
    patterns: tuple[Pattern, ...]
    referred: dict[str, Referred]
    found: dict[tuple[str, str], Metric] = field(default_factory=dict)


@dataclass(frozen=True)
class Referred:
    """What is known of a key from the declarations that need it.

    Attributes:
        counted: whether it is a count; a key that only gives seconds is not.
        replicated_over: all dimensions over which a key that needs this one is replicated: ranks
            that saw the same samples hold the same weights as well.
        makes: the ratios and rates that need it.
    """

    counted: bool = False
    replicated_over: tuple[str, ...] = ()
    makes: tuple[Metric, ...] = ()


class Declarations:
    """All declarations by their text, in the order in which the last of each text was made.

    Attributes:
        revision: how often anything was declared.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._metrics: dict[str, Metric] = {}
        self._matchers: dict[str, Matcher] = {}
        self._index: Index | None = None
        self._lock = threading.Lock()  # a worker looks keys up while the loop declares

    def __iter__(self) -> Iterator[Metric]:
        return iter(tuple(self._metrics.values()))

    def __len__(self) -> int:
        return len(self._metrics)

    def add(self, metrics: list[Metric], where: str) -> None:
        """Take all of these declarations, or none.

        A pattern that stands here already is replaced, and so is a name whose meaning stays what
        it is, or that is, or was, ignored.

        Raises:
            DeclarationConflict: a name would mean something else than before, or a derived key has
                a name under which another key gives a value.
            InvalidValue: a key would refer to itself, through others or not, or to a key that is
                made from others.
        """
        with self._lock:
            for metric in metrics:
                self._refuse_conflict(metric, where)
            after = {**self._metrics}
            for metric in metrics:
                after.pop(metric.pattern, None)  # the later of equals is the last
                after[metric.pattern] = metric
            for metric in metrics:
                _refuse_references(metric, after, where)
            self._matchers |= {
                metric.pattern: matcher(metric.pattern)
                for metric in metrics
                if not metric.exact and metric.pattern not in self._matchers
            }
            self._metrics, self._index = after, None
            self.revision += 1

    def index(self) -> Index:
        """What a look-up needs, as of now."""
        index = self._index
        if index is None:
            with self._lock:
                index = self._index = self._indexed()
        return index

    def _indexed(self) -> Index:
        patterns = [
            Pattern(metric, self._matchers[metric.pattern]) for metric in self if not metric.exact
        ]
        patterns.reverse()  # the sort is stable: of equally long ones the later comes first
        patterns.sort(key=lambda pattern: -len(pattern.metric.pattern))
        return Index(dict(self._metrics), tuple(patterns), _referred(self))

    def _refuse_conflict(self, metric: Metric, where: str) -> None:
        before = self._metrics.get(metric.pattern)
        if before is None or before.ignored or metric.ignored or before.meaning == metric.meaning:
            return
        if metric.exact or before.exact:
            raise DeclarationConflict(
                f"{where}: key {metric.pattern!r} is declared in two ways: first {before}, "
                f"now {metric}; keep one of them, or give the second a key of its own"
            )


def _referred(metrics: Iterable[Metric]) -> dict[str, Referred]:
    found: dict[str, Referred] = {}
    for metric in metrics:
        params = {} if metric.reduction is None else metric.reduction.params
        counted = {params.get(name) for name in COUNTED}
        for name in dict.fromkeys(metric.refers):
            before = found.get(name, Referred())
            over = dict.fromkeys((*before.replicated_over, *metric.replicated_over))
            makes = (*before.makes, metric) if metric.virtual else before.makes
            found[name] = Referred(before.counted or name in counted, tuple(over), makes)
    return found


def _refuse_references(metric: Metric, declared: dict[str, Metric], where: str) -> None:
    """Raise where a declaration and the keys it needs, or is needed by, do not go together."""
    _refuse_cycle(metric, declared, where)
    for name in metric.refers:
        target = declared.get(name)
        if target is not None and target.virtual:
            raise _made_from_others(where, metric, name, target)
    if metric.virtual:
        for other in declared.values():
            if metric.pattern in other.refers:
                raise _made_from_others(where, other, metric.pattern, metric)
    _refuse_given_name(metric, declared, where)


def _refuse_given_name(metric: Metric, declared: dict[str, Metric], where: str) -> None:
    """Raise where a derived key and another one give the same name: both are then in each record.

    Of other keys the logger tells, since they may never be logged together.
    """
    if metric.derived:
        giver = declared.get(metric.pattern.rpartition("/")[0])
        pairs = [] if giver is None else [(metric, giver)]
    else:
        names = metric.reduction.gives(metric.pattern) if metric.reduction else ()
        found = [declared[name] for name in names if name in declared]
        pairs = [(other, metric) for other in found if other.derived]
    for derived, giver in pairs:
        name, given = derived.pattern, giver.reduction
        if given is not None and giver.exact and name in given.gives(giver.pattern):
            raise DeclarationConflict(
                f"{where}: {name!r} would be the name of two values: of key {name!r}, {derived}, "
                f"and of key {giver.pattern!r}, {giver}, which gives it too; rename one of the two"
            )


def _made_from_others(where: str, metric: Metric, name: str, target: Metric) -> InvalidValue:
    return InvalidValue(
        f"{where}: {metric.pattern!r} is {metric}, and needs {name!r} in the call, but {name!r} is "
        f"{target}, made from other keys and never logged; refer to logged keys"
    )


def _refuse_cycle(metric: Metric, declared: dict[str, Metric], where: str) -> None:
    came_from: dict[str, str] = {}
    waiting = [metric.pattern]
    while waiting:
        name = waiting.pop()
        for needed in declared[name].uses if name in declared else ():
            if needed == metric.pattern:
                chain = [name]
                while chain[-1] != metric.pattern:
                    chain.append(came_from[chain[-1]])
                way = " needs ".join(repr(part) for part in [*reversed(chain), needed])
                raise InvalidValue(
                    f"{where}: a key that is {metric} refers to itself: {way}; name another key"
                )
            if needed not in came_from:
                came_from[needed] = name
                waiting.append(needed)
