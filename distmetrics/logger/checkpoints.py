"""Where the scopes of a logger go on: a loaded state, or the rows of an earlier attempt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distmetrics.errors import DeclarationConflict
from distmetrics.exchange.schema import prefix_of
from distmetrics.logger.parts import Parts
from distmetrics.reductions import make
from distmetrics.registry import Registry
from distmetrics.snapshot.table import KeyTable
from distmetrics.window.labels import first_step
from distmetrics.worker.checkpoint import totals_of
from distmetrics.worker.events import Restored

if TYPE_CHECKING:
    from distmetrics.logger.scope import Scope


class Checkpoints:
    """What scopes go on from, those that are made later too.

    Args:
        registry: what each key means.
        parts: of the logger.
    """

    def __init__(self, registry: Registry, parts: Parts) -> None:
        self._registry = registry
        self._parts = parts
        self._past = parts.past
        if "" in self._past and parts.writer is not None:
            parts.writer.go_on(self._past[""]["latest"] + 1, {})
        self._saved: dict[str, Any] = {}
        self._scopes: dict[str, tuple[Scope, KeyTable]] = {}

    def enter(self, scope: Scope, table: KeyTable, now: float) -> None:
        """A scope was made."""
        self._scopes[scope.name] = (scope, table)
        self._restore(scope, table, now)

    def load(self, state: Mapping[str, Any], now: float) -> None:
        """Go on from a state instead of the rows of an earlier attempt.

        Raises:
            DeclarationConflict: the registry declares a key otherwise than the state has it.
        """
        self._past = {}
        self._saved = dict(state["streams"])
        for scope, table in self._scopes.values():
            self._restore(scope, table, now)
        root = self._saved.get("")
        if root is not None and self._parts.writer is not None:
            begin = root["steps"][0][0] if root["steps"] else root["latest"] + 1
            marks = {name: saved["watermark"] for name, saved in self._saved.items()}
            self._parts.writer.go_on(begin, marks)

    def _restore(self, scope: Scope, table: KeyTable, now: float) -> None:
        results = self._parts.worker.results
        saved, past = self._saved.get(scope.name), self._past.get(scope.name)
        if saved is not None:
            for part in saved["open"]:
                for name, entry in part["keys"].items():
                    self._declare(table, name, prefix_of(scope.name), entry["declaration"])
            results.continue_from(scope.name, -1, totals_of(saved))
            self._parts.streams.begin_with(scope.name, saved["totals"])
            self._parts.streams.push(Restored(scope.name, saved, self._parts.topology, now))
            scope.restore(saved["latest"], first_step(saved["watermark"]))
        elif past is not None:
            results.continue_from(scope.name, -1, totals_of(past))
            self._parts.streams.begin_with(scope.name, past["totals"])
            scope.restore(past["latest"], 0)

    def _declare(
        self, table: KeyTable, name: str, prefix: str, declaration: Mapping[str, Any]
    ) -> None:
        """Put a key of a state into a table, unless the registry says otherwise of it."""
        metric = self._registry.resolve(name, prefix)
        reduction = make(declaration["reduction"], **declaration["params"])
        if metric.source == "declared" and metric.reduction != reduction:
            raise DeclarationConflict(
                f"key {prefix + name!r} is {reduction} in the state and registered as "
                f"{metric.reduction}; load the state with the registry it was taken with"
            )
        table.add(name, metric, reduction)
