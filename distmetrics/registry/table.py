"""A registry as a table for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from distmetrics.registry.metric import Metric
    from distmetrics.registry.registry import Registry


def table(registry: Registry) -> Table:
    """A row for each declaration, in order, and for each key that a declaration needs."""
    found = Table(title_justify="left", caption_justify="left")
    for name in ("key", "reduction", "unit", "group", "scaling", "help"):
        found.add_column(name, overflow="fold")
    for metric in registry:
        found.add_row(*map(Text, _cells(metric, "")))
    referred = registry.referred()
    if referred:
        found.add_section()
    for metric in referred:
        needing = [other.pattern for other in registry if metric.pattern in other.refers]
        found.add_row(*map(Text, _cells(metric, f"needed by {', '.join(needing)}")))
    undeclared = f"{registry.default} (unregistered)"
    found.caption = (
        "any other key is an error" if registry.strict else f"any other key: {undeclared}"
    )
    return found


def _cells(metric: Metric, otherwise: str) -> tuple[str, ...]:
    scaling = "" if metric.ignored else metric.scaling
    return metric.pattern, str(metric), metric.unit, metric.group, scaling, metric.help or otherwise
