"""The training thread's part: the values of one call, checked and copied, nothing more.

The usual call, a flat dict of scalars with the keys and types of an earlier call, takes one
`torch.stack` for each dtype. Any other goes key by key. Nothing here waits for a device, does
I/O or communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from distmetrics.errors import DeclarationConflict, DistmetricsError, InvalidValue
from distmetrics.reductions import Reduction
from distmetrics.registry import Metric, Registry
from distmetrics.snapshot.fast import FastPath
from distmetrics.snapshot.plan import Place, Plan, Snapshot, check_weights, make_plan
from distmetrics.snapshot.table import Key, KeyTable
from distmetrics.values import Flat, Tagged, flatten, is_scalar, raise_at_once, to_flat

REMEMBERED = 1024
"""Shapes of calls that are remembered, at most; a loop with more of them begins anew."""


@dataclass(frozen=True)
class _Entry:
    """One key's contributions in a call, before the key has its place.

    A key that is made from others comes without values, or with those of a key that it takes.
    """

    name: str
    metric: Metric
    reduction: Reduction
    values: Flat | None
    weights: Flat | None


_Placed = tuple[Key, Place, Place | None]
"""A key with the places of its values and of their weights."""


class Snapshotter:
    """Takes the snapshots of one logger or child.

    Args:
        registry: what each key means.
        prefix: the child's name and ``/``; empty for the logger itself.
        lenient: report a bad value through `report` and log the rest of the call.
        note: receives what a user should know once.
        report: receives the error of a bad value (`lenient` only).
        children: the prefixes of the logger's children, whose keys are not its own.
    """

    def __init__(
        self,
        registry: Registry,
        prefix: str,
        lenient: bool,
        note: Callable[[str], None],
        report: Callable[[str, DistmetricsError], None],
        children: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.table = KeyTable()
        self._children = children
        self._registry = registry
        self._prefix = prefix
        self._lenient = lenient
        self._note = note
        self._report = report
        self._noted: set[str] = set()
        self._revision = registry.revision
        self._plans: dict[Any, Plan] = {}
        self._fast: dict[tuple[str, ...], FastPath] = {}

    def take(self, outputs: Mapping[str, Any], weight: Any = None) -> Snapshot | None:
        """A snapshot of the outputs, None where they hold nothing to log.

        Raises:
            InvalidType, InvalidValue: a value is not accepted.
            DeclarationConflict: a value's tag and its declaration differ.
            UnknownKey: a strict registry does not know a key.
        """
        names = tuple(outputs) if type(outputs) is dict else ()
        if self._revision != self._registry.revision:
            self._revision = self._registry.revision
            self._fast.clear()
        fast = self._fast.get(names)
        if fast is not None:
            snapshot = self._take_fast(fast, outputs, weight)
            if snapshot is not None:
                return snapshot
        flat = flatten(outputs, self._refuse if self._lenient else raise_at_once)
        entries, clean = self._entries(flat, weight)
        if not entries:
            return None
        made, whole = self._made(flat, {entry.name: entry.reduction for entry in entries})
        entries += made
        keys = [self.table.add(entry.name, entry.metric, entry.reduction) for entry in entries]
        if clean and whole and names and tuple(flat) == names:
            self._learn(names, outputs, weight)
        return self._group(keys, entries)

    def _refuse(self, key: str, error: DistmetricsError) -> None:
        self._report(self._prefix + key, error)

    # --- the usual call ---

    def _take_fast(
        self, fast: FastPath, outputs: Mapping[str, Any], weight: Any
    ) -> Snapshot | None:
        try:
            return fast.take(list(outputs.values()), weight)
        except InvalidValue:
            if not self._lenient:
                raise
            return None  # key by key, so that the rest of the call is logged

    def _learn(self, names: tuple[str, ...], outputs: Mapping[str, Any], weight: Any) -> None:
        ignored = {name for name in names if self._registry.resolve(name, self._prefix).ignored}
        fast = FastPath.learn(names, list(outputs.values()), weight, self.table, ignored)
        if fast is not None:
            if len(self._fast) >= REMEMBERED:
                self._fast.clear()
            self._fast[names] = fast

    # --- key by key ---

    def _entries(self, flat: dict[str, Any], weight: Any) -> tuple[list[_Entry], bool]:
        """The contributions of each key, and whether none had to be left out."""
        entries, clean = [], True
        for name, value in flat.items():
            try:
                entry = self._entry(name, value, flat, weight)
            except DistmetricsError as error:
                if not self._lenient:
                    raise
                clean = False
                self._refuse(name, error)
                continue
            if entry is not None:
                entries.append(entry)
        return entries, clean

    def _entry(self, name: str, value: Any, flat: dict[str, Any], weight: Any) -> _Entry | None:
        metric = self._registry.resolve(name, self._prefix)
        reduction = self._reduction(name, value, metric)
        if reduction is None:
            return None
        if reduction.virtual:
            needed = ", ".join(map(repr, reduction.refers or reduction.inputs))
            raise InvalidValue(
                f"key {name!r} is declared as {reduction}, which is made from "
                f"{needed or 'reduced values'}: log those, or rename this key"
            )
        tagged = isinstance(value, Tagged)
        values, shape = to_flat(name, value.value if tagged else value)
        if reduction.scalar and len(values) != 1:
            raise InvalidValue(
                f"key {name!r}: {reduction.kind} takes one number, not a value of shape {shape}"
            )
        given = self._weight(name, reduction, value if tagged else None, flat, weight)
        weights = None
        if given is not None:
            weights = _checked_weight(name, given, shape, reduction)
        self.table.check(name, reduction)
        return _Entry(name, metric, reduction, values, weights)

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
        known = self.table.get(name)
        if known is not None and known.reduction != declared:
            raise DeclarationConflict(
                f"key {name!r} came as {known.reduction} before and now comes without a tag, "
                f"as {declared}; a key has one declaration: tag it in every call, or register it"
            )
        if not is_scalar(value):
            self._once(name, f"key {name!r} is not registered and its value is no scalar: ignored")
            return None
        self._once(
            name,
            f"key {name!r} is not registered: taken as {declared}; "
            f"registry.{declared.kind}({name!r}) says so, registry.ignore({name!r}) leaves it out",
        )
        return declared

    def _tagged(self, name: str, tag: Reduction, declared: Reduction, metric: Metric) -> Reduction:
        """How a tagged value combines: as its tag says, which may not differ from a declaration."""
        if metric.source != "declared":
            return tag
        same = {**declared.params, "weight": None} == {**tag.params, "weight": None}
        if declared.kind != tag.kind or not same:
            raise DeclarationConflict(
                f"key {name!r} is registered as {declared} and now comes as {tag}; "
                "a key has one declaration: drop the tag, or rename the key"
            )
        return declared

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
                f"key {name!r} is declared as {reduction}: its weight {key!r} is not in the call; "
                f"log {key!r} with it, or pass weight= to log (a weight is never guessed)"
            )
        return weight

    def _made(
        self, flat: dict[str, Any], given: Mapping[str, Reduction]
    ) -> tuple[list[_Entry], bool]:
        """The keys that are made from those of a call, and whether none had to be left out."""
        found: dict[str, _Entry] = {}
        clean = True
        for needed in flat:
            for name, metric in self._registry.virtual(needed, self._prefix, self._children()):
                if name in found:
                    continue
                try:
                    found[name] = self._made_entry(name, metric, flat, given)
                except DistmetricsError as error:
                    if not self._lenient:
                        raise
                    clean = False
                    self._refuse(name, error)
        return list(found.values()), clean

    def _made_entry(
        self, name: str, metric: Metric, flat: dict[str, Any], given: Mapping[str, Reduction]
    ) -> _Entry:
        reduction = metric.reduction
        assert reduction is not None
        self.table.check(name, reduction)
        for needed in reduction.refers:
            if needed != reduction.takes:
                self._check_sum(name, reduction, needed, given)
        values = None
        if reduction.takes in flat:
            taken = flat[reduction.takes]
            values, _ = to_flat(
                reduction.takes, taken.value if isinstance(taken, Tagged) else taken
            )
        return _Entry(name, metric, reduction, values, None)

    def _check_sum(
        self, name: str, reduction: Reduction, needed: str, given: Mapping[str, Reduction]
    ) -> None:
        """Raise where the sum that a key is made from is none."""
        known = self.table.get(needed)
        has = given.get(needed) if known is None else known.reduction
        if has is None and not self._registry.resolve(needed, self._prefix).ignored:
            return  # it is not logged yet, and is looked at when it is
        if has is None or not has.summable:
            raise InvalidValue(
                f"key {name!r} is declared as {reduction}, which needs the sum of {needed!r}, but "
                f"that is {has or 'ignored'}; register {needed!r} as a count or a total"
            )

    def _group(self, keys: list[Key], entries: list[_Entry]) -> Snapshot:
        """The entries as one array for each dtype, and the plan that says so."""
        columns: dict[Any, list[Flat]] = {}

        def place(flat: Flat) -> Place:
            dtype = (flat.dtype, flat.device) if isinstance(flat, torch.Tensor) else flat.dtype
            column = columns.setdefault(dtype, [])
            column.append(flat)
            return dtype, len(column) - 1

        placed = [
            (key, place(e.values), None if e.weights is None else place(e.weights))
            for key, e in zip(keys, entries, strict=True)
            if e.values is not None
        ]
        plan = self._plan(placed, {dtype: position for position, dtype in enumerate(columns)})
        arrays = [_joined(parts) for parts in columns.values()]
        sizes = [[len(part) for part in parts] for parts in columns.values()]
        ones = all(size == 1 for row in sizes for size in row)
        staged = not any(isinstance(array, torch.Tensor) for array in arrays)
        return Snapshot(plan, arrays, None if ones else sizes, staged)

    def _plan(self, placed: list[_Placed], order: Mapping[Any, int]) -> Plan:
        """The plan of these columns, the same one for calls of the same form."""
        signature = tuple((key.index, values, weights) for key, values, weights in placed)
        plan = self._plans.get(signature)
        if plan is None:
            if len(self._plans) >= REMEMBERED:
                self._plans.clear()
            plan = self._plans[signature] = make_plan(placed, order)
        return plan


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


def _joined(parts: list[Flat]) -> Flat:
    if isinstance(parts[0], torch.Tensor):
        with torch.no_grad():
            return torch.cat(parts)  # type: ignore[arg-type]
    return np.concatenate(parts)
