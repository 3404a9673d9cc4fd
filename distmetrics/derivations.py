"""Derived keys: computed from the reduced values of a record, once all others are there."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from distmetrics.errors import DeclarationConflict, InvalidType, in_words
from distmetrics.record import Value
from distmetrics.reductions.expression import bounded
from distmetrics.registry import Metric, Registry
from distmetrics.registry.keys import nearest, shown


class Derivations:
    """The derived keys of a registry.

    Args:
        registry: what each key means.
        report: receives, once for each key, what went wrong in computing it.
    """

    def __init__(self, registry: Registry, report: Callable[[str], object]) -> None:
        self._registry = registry
        self._report = report
        self._reported: set[str] = set()
        self._computed: set[str] = set()
        self._lacking: dict[str, str] = {}

    def __bool__(self) -> bool:
        return any(metric.derived for metric in self._registry)

    def of(
        self, values: Mapping[str, Value], prefix: str, children: tuple[str, ...]
    ) -> dict[str, Value]:
        """The derived values of a record, under their full names.

        Args:
            values: all other values of the record, under their full names.
            prefix: that of the record's child, ``val/``, or empty.
            children: the prefixes of all children: what is declared under one of these belongs to
                that child alone.
        """
        known = _Known({key.removeprefix(prefix): value for key, value in values.items()}, prefix)
        found: dict[str, Value] = {}
        for name, metric in self._in(prefix, children):
            if prefix + name in values:
                self._say(metric.pattern, name, _given(prefix + name))
                continue
            value = self._value(name, metric, known)
            if value is not None:
                known[name] = found[prefix + name] = value
        return found

    def never_computed(self) -> Iterator[str]:
        """For each derived key that no record had, as far as values were asked for, why."""
        for name, lacking in self._lacking.items():
            if name not in self._computed and name not in self._reported:
                near = nearest(lacking, [m.pattern for m in self._registry if m.pattern != name])
                hint = f" (the nearest registered name is {near[0]!r})" if near else ""
                yield (
                    f"derived key {name!r} was in no record: it needs {lacking!r}, which no record "
                    f"had together with the other keys it needs{hint}"
                )

    def _in(self, prefix: str, children: tuple[str, ...]) -> Iterator[tuple[str, Metric]]:
        """The derived keys of a logger or child, by their names there."""
        for metric in self._registry:
            if not metric.derived:
                continue
            name = metric.pattern
            if prefix and name.startswith(prefix):
                name = name[len(prefix) :]
            elif name.startswith(children):
                continue
            # a child may declare, or ignore, it in its own way
            if self._registry.resolve(name, prefix).pattern == metric.pattern:
                yield name, metric

    def _value(self, name: str, metric: Metric, known: _Known) -> Value | None:
        reduction = metric.reduction
        assert reduction is not None
        if reduction.derive is None:  # a function that another process knows
            return None
        try:
            value = _number(reduction.derive(MappingProxyType(known)))
        except _Lacking as lacking:
            self._lacking.setdefault(metric.pattern, lacking.key)
            return None
        except BaseException as error:  # noqa: BLE001 - a user's function may raise SystemExit too
            self._say(metric.pattern, name, error)
            return None
        self._computed.add(metric.pattern)
        return value

    def _say(self, pattern: str, name: str, error: BaseException) -> None:
        if pattern not in self._reported:
            self._reported.add(pattern)
            self._report(
                f"derived key {name!r} could not be computed: {in_words(error)}; "
                "records lack it where that happens, and the other keys go on"
            )


class _Lacking(KeyError):
    """A derivation asked for a key that the record lacks."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class _Known(dict[str, Value]):
    """The values of a record by their names in its child; those with the prefix are found too."""

    def __init__(self, values: Mapping[str, Value], prefix: str) -> None:
        super().__init__(values)
        self._prefix = prefix

    def __missing__(self, key: str) -> Value:
        bare = str(key).removeprefix(self._prefix)
        if bare == key or bare not in self:
            raise _Lacking(key)
        return self[bare]


def _given(name: str) -> DeclarationConflict:
    return DeclarationConflict(
        f"another key gives a value of the name {name!r}, which is kept; rename one of the two"
    )


def _number(value: Any) -> Value | None:
    """A derived value as an int or float that can be written down; None stays None."""
    if value is None or type(value) is float:
        return value
    if isinstance(value, numbers.Integral):  # bools too
        return bounded(int(value))
    if isinstance(value, numbers.Real) or (getattr(value, "shape", None) == ()):
        return float(value)
    raise InvalidType(f"a derived value is a number or None, not {shown(value)}")
