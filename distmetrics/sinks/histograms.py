"""A record's histograms, for back ends that draw them."""

from __future__ import annotations

from typing import Any, NamedTuple

from distmetrics.record import Record


class Bins(NamedTuple):
    """Bins as they are drawn.

    Attributes:
        edges: one more than there are bins, rising.
        counts: of each bin.
    """

    edges: list[float]
    counts: list[int]

    def coarsened(self, most: int) -> Bins:
        """At most so many bins: neighbours are put together, as many in each but the last.

        >>> Bins([0.0, 1.0, 2.0, 3.0], [5, 6, 7]).coarsened(2)
        Bins(edges=[0.0, 2.0, 3.0], counts=[11, 7])
        """
        each = -(-len(self.counts) // most)
        counts = [sum(self.counts[i : i + each]) for i in range(0, len(self.counts), each)]
        return Bins([*self.edges[:-1:each], self.edges[-1]], counts)


def histograms(record: Record) -> dict[str, Bins]:
    """The record's histograms by key, with the true bins.

    What lies below or above all bins is drawn as one more bin, as wide as its neighbour; NaN and
    infinities are not drawn.

    Example:
        >>> values = {"loss": 0.5, "h": {"edges": [0.0, 1.0, 3.0], "counts": [3, 4], "above": 1}}
        >>> histograms(Record(step=9, first_step=0, window=9, time=0.0, values=values))
        {'h': Bins(edges=[0.0, 1.0, 3.0, 5.0], counts=[3, 4, 1])}
    """
    return {key: _bins(value) for key, value in record.values.items() if isinstance(value, dict)}


def _bins(value: dict[str, Any]) -> Bins:
    edges, counts = list(value["edges"]), list(value["counts"])
    if value.get("below"):
        edges.insert(0, 2 * edges[0] - edges[1])
        counts.insert(0, value["below"])
    if value.get("above"):
        edges.append(2 * edges[-1] - edges[-2])
        counts.append(value["above"])
    return Bins(edges, counts)
