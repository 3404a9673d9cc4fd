"""The training thread's part: the values of one call, checked and copied, nothing more.

The usual call, a flat dict of scalars with the keys and types of an earlier call, takes one
`torch.stack` for each dtype. Any other goes key by key. Nothing here waits for a device, does
I/O or communicates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from distmetrics.errors import DistmetricsError, InvalidValue
from distmetrics.registry import Registry
from distmetrics.snapshot.entries import Entries, Entry
from distmetrics.snapshot.fast import FastPath
from distmetrics.snapshot.names import Names
from distmetrics.snapshot.plan import Place, Plan, Snapshot, make_plan
from distmetrics.snapshot.table import Key, KeyTable
from distmetrics.values import Flat, Refuse, flatten, raise_at_once

REMEMBERED = 1024
"""Shapes of calls that are remembered, at most; a loop with more of them begins anew."""

_Placed = tuple[Key, Place, Place | None]
"""A key with the places of its values and of their weights."""


class Snapshotter:
    """Takes the snapshots of one logger or child.

    Args:
        registry: what each key means.
        prefix: the child's name and ``/``; empty for the logger itself.
        refuse: receives the error of a bad value, by its key, and the rest of the call is logged;
            None: the error is raised, and nothing of the call is logged.
        note: receives what a user should know once.
        children: the prefixes of the logger's children, whose keys are not its own.
        names: those that are given in the same records; None: they need not be distinct.
    """

    def __init__(
        self,
        registry: Registry,
        prefix: str,
        refuse: Refuse | None,
        note: Callable[[str], None],
        children: Callable[[], Iterable[str]] = tuple,
        names: Names | None = None,
    ) -> None:
        self.table = KeyTable(prefix, names)
        self._registry = registry
        self._prefix = prefix
        self._refuse = refuse
        self._entries = Entries(registry, self.table, refuse, note, children)
        self._revision = registry.revision
        self._plans: dict[Any, Plan] = {}
        self._fast: dict[tuple[str, ...], FastPath] = {}

    def take(self, outputs: Mapping[str, Any], weight: Any = None) -> Snapshot | None:
        """A snapshot of the outputs, None where they hold nothing to log.

        Raises:
            InvalidType, InvalidValue: a value is not accepted.
            DeclarationConflict: a value's tag and its declaration differ, or two keys give the same
                name.
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
        flat = flatten(outputs, raise_at_once if self._refuse is None else self._refuse_key)
        entries, clean = self._entries.of(flat, weight)
        if not entries:
            return None
        keys = [self.table.add(entry.name, entry.metric, entry.reduction) for entry in entries]
        if clean and names and tuple(flat) == names:
            self._learn(names, outputs, weight)
        return self._group(keys, entries)

    def _refuse_key(self, key: str, error: DistmetricsError) -> None:
        assert self._refuse is not None
        self._refuse(self._prefix + key, error)

    # --- the usual call ---

    def _take_fast(
        self, fast: FastPath, outputs: Mapping[str, Any], weight: Any
    ) -> Snapshot | None:
        try:
            return fast.take(list(outputs.values()), weight)
        except InvalidValue:
            if self._refuse is None:
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

    def _group(self, keys: list[Key], entries: list[Entry]) -> Snapshot:
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


def _joined(parts: list[Flat]) -> Flat:
    if isinstance(parts[0], torch.Tensor):
        with torch.no_grad():
            return torch.cat(parts)  # type: ignore[arg-type]
    return np.concatenate(parts)
