"""A call key by key: what each value is, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distmetrics.errors import DeclarationConflict, DistmetricsError, InvalidType, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry import Metric, Registry
from distmetrics.snapshot.names import Names
from distmetrics.snapshot.plan import check_weights
from distmetrics.snapshot.table import KeyTable
from distmetrics.values import Flat, Refuse, Tagged, is_scalar, to_flat


@dataclass(frozen=True)
class Entry:
    """One key's contributions in a call, before the key has its place.

    A key that is made from others comes without values, or with those of a key that it takes.
    """

    name: str
    metric: Metric
    reduction: Reduction
    values: Flat | None
    weights: Flat | None


class Entries:
    """Takes the calls of one logger or child apart. Nothing enters the table here.

    Args:
        registry: what each key means.
        table: the keys of the logger or child.
        refuse: receives what is left out of a call; None: its error is raised.
        note: receives what a user should know once.
        children: the prefixes of the logger's children, whose keys are not its own.
    """

    def __init__(
        self,
        registry: Registry,
        table: KeyTable,
        refuse: Refuse | None,
        note: Callable[[str], None],
        children: Callable[[], Iterable[str]],
    ) -> None:
        self._registry = registry
        self._table = table
        self._prefix = table.prefix
        self._refuse = refuse
        self._note = note
        self._children = children
        self._noted: set[str] = set()

    def of(self, flat: dict[str, Any], weight: Any) -> tuple[list[Entry], bool]:
        """The contributions of a flat call, and whether none had to be left out.

        Raises:
            InvalidType, InvalidValue: a value is not accepted.
            DeclarationConflict: a value's tag and its declaration differ, or two keys give the same
                name.
            UnknownKey: a strict registry does not know a key.
        """
        entering = Names()
        entries, clean = self._logged(flat, weight, entering)
        if not entries:
            return [], clean
        given = {entry.name: entry.reduction for entry in entries}
        made, whole = self._made(flat, given, entering)
        return entries + made, clean and whole

    def _logged(
        self, flat: dict[str, Any], weight: Any, entering: Names
    ) -> tuple[list[Entry], bool]:
        """The contributions of each key, and whether none had to be left out."""
        entries, clean = [], True
        for name, value in flat.items():
            try:
                entry = self._entry(name, value, flat, weight)
                if entry is not None:
                    self._table.check(name, entry.reduction, entering)
            except DistmetricsError as error:
                if self._refuse is None:
                    raise
                clean = False
                self._refuse(self._prefix + name, error)
                continue
            if entry is not None:
                entries.append(entry)
        return entries, clean

    def _entry(self, name: str, value: Any, flat: dict[str, Any], weight: Any) -> Entry | None:
        metric = self._registry.resolve(name, self._prefix)
        reduction = self._reduction(name, value, metric)
        if reduction is None:
            return None
        if reduction.virtual:
            needed = ", ".join(map(repr, reduction.refers or reduction.inputs))
            raise InvalidValue(
                f"key {self._shown(name)} is declared as {reduction}, which is made from "
                f"{needed or 'reduced values'}: log those, or rename this key"
            )
        tagged = isinstance(value, Tagged)
        values, shape = to_flat(self._prefix + name, value.value if tagged else value)
        if reduction.scalar and len(values) != 1:
            raise InvalidValue(
                f"key {self._shown(name)}: {reduction.kind} takes one number, not a value of "
                f"shape {shape}"
            )
        given = self._weight(name, reduction, value if tagged else None, flat, weight)
        weights = None
        if given is not None:
            weights = _checked_weight(self._prefix + name, given, shape, reduction)
        return Entry(name, metric, reduction, values, weights)

    def _reduction(self, name: str, value: Any, metric: Metric) -> Reduction | None:
        """How this value combines; None where it is ignored."""
        if metric.ignored:
            return None
        declared = metric.reduction
        assert declared is not None
        if isinstance(value, Tagged):
            return self._tagged(name, value.reduction, declared, metric)
        if metric.registered:
            return declared
        known = self._table.get(name)
        if known is not None and known.reduction != declared:
            raise DeclarationConflict(
                f"key {self._shown(name)} came as {known.reduction} before and now comes without "
                f"a tag, as {declared}; a key has one declaration: tag it in every call, or "
                "register it"
            )
        if not is_scalar(value):
            self._once(
                name,
                f"key {self._shown(name)} is not registered and its value is no scalar: ignored",
            )
            return None
        key = self._shown(name)
        self._once(
            name,
            f"key {key} is not registered: taken as {declared}; "
            f"registry.{declared.kind}({key}) says so, registry.ignore({key}) leaves it out",
        )
        return declared

    def _tagged(self, name: str, tag: Reduction, declared: Reduction, metric: Metric) -> Reduction:
        """How a tagged value combines: as its tag says, which may not differ from a declaration."""
        if metric.source != "declared":
            return tag
        same = {**declared.params, "weight": None} == {**tag.params, "weight": None}
        if declared.kind != tag.kind or not same:
            raise DeclarationConflict(
                f"key {self._shown(name)} is registered as {declared} and now comes as {tag}; "
                "a key has one declaration: drop the tag, or rename the key"
            )
        return declared

    def _shown(self, name: str) -> str:
        return repr(self._prefix + name)

    def _once(self, name: str, text: str) -> None:
        if name not in self._noted:
            self._noted.add(name)
            self._note(text)

    def _weight(
        self, name: str, reduction: Reduction, tag: Tagged | None, flat: dict[str, Any], weight: Any
    ) -> Any:
        """The weight (or denominator) of a value as it was given; None: each element weighs 1."""
        if reduction.pairs:
            assert tag is not None
            if tag.weight is None:
                raise InvalidType(
                    f"key {self._shown(name)}: the denominator of its {type(tag).__name__} is "
                    "None; pass both numbers, or leave the key out of the call"
                )
            return tag.weight
        if not reduction.weighted:
            return None
        if tag is not None and tag.weight is not None:
            return tag.weight
        key = reduction.params.get("weight")
        if key is not None and key in flat:
            found = flat[key]
            return found.value if isinstance(found, Tagged) else found
        if weight is None and key is not None:
            raise InvalidValue(
                f"key {self._shown(name)} is declared as {reduction}: its weight {key!r} is not in "
                f"the call; log {key!r} with it, or pass weight= to log (a weight is never guessed)"
            )
        return weight

    def _made(
        self, flat: dict[str, Any], given: Mapping[str, Reduction], entering: Names
    ) -> tuple[list[Entry], bool]:
        """The keys that are made from those of a call, and whether none had to be left out."""
        found: dict[str, Entry] = {}
        clean = True
        for needed in flat:
            for name, metric in self._registry.virtual(needed, self._prefix, self._children()):
                if name in found:
                    continue
                try:
                    entry = self._made_entry(name, metric, flat, given)
                    self._table.check(name, entry.reduction, entering)
                    found[name] = entry
                except DistmetricsError as error:
                    if self._refuse is None:
                        raise
                    clean = False
                    self._refuse(self._prefix + name, error)
        return list(found.values()), clean

    def _made_entry(
        self, name: str, metric: Metric, flat: dict[str, Any], given: Mapping[str, Reduction]
    ) -> Entry:
        reduction = metric.reduction
        assert reduction is not None
        for needed in reduction.refers:
            if needed != reduction.takes:
                self._check_sum(name, reduction, needed, given)
        values = None
        if reduction.takes in flat:
            taken = flat[reduction.takes]
            taken = taken.value if isinstance(taken, Tagged) else taken
            values, _ = to_flat(self._prefix + reduction.takes, taken)
        return Entry(name, metric, reduction, values, None)

    def _check_sum(
        self, name: str, reduction: Reduction, needed: str, given: Mapping[str, Reduction]
    ) -> None:
        """Raise where the sum that a key is made from is none."""
        known = self._table.get(needed)
        has = given.get(needed) if known is None else known.reduction
        if has is None and not self._registry.resolve(needed, self._prefix).ignored:
            return  # it is not logged yet, and is looked at when it is
        if has is None or not has.summable:
            raise InvalidValue(
                f"key {self._shown(name)} is declared as {reduction}, which needs the sum of "
                f"{needed!r}, but that is {has or 'ignored'}; register {needed!r} as a count or "
                "a total"
            )


def _checked_weight(name: str, given: Any, shape: tuple[int, ...], reduction: Reduction) -> Flat:
    role = "denominator" if reduction.pairs else "weight"
    weights, weight_shape = to_flat(name, given, role)
    if weight_shape != shape and not (len(weights) == 1 and np.prod(shape, dtype=int) == 1):
        raise InvalidValue(
            f"key {name!r}: its {role} has shape {weight_shape} and its value {shape}; a {role} "
            "has the shape of its value, or both are scalars"
        )
    if not reduction.pairs and isinstance(weights, np.ndarray):
        check_weights(name, weights)
    return weights
