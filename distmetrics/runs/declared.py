"""What the registry in a `run.json` says of a key.

The declarations are read as plain data, so that a file of another version, with kinds of reductions
that this one does not know, still tells the scaling classes of its keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

_OWN_SCALING = {"rate": "extensive", "per_rank": "per_rank"}
_PER_RANK_PARTS = ("min", "max", "argmax", "mean")


@dataclass(frozen=True)
class Declared:
    """What a run declares of one key.

    Attributes:
        reduction: the name of its reduction, "average".
        scaling: "invariant", "extensive" or "per_rank".
        params: the options of the reduction, such as its weight.
        unit: the unit of the value.
        replicated_over: names of mesh dimensions whose ranks hold the same value.
    """

    reduction: str
    scaling: str = "invariant"
    params: Mapping[str, Any] = None  # type: ignore[assignment]
    unit: str = ""
    replicated_over: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", dict(self.params or {}))

    @property
    def weight(self) -> str | None:
        """The key that holds the weights, None without one."""
        found = self.params.get("weight")
        return found if isinstance(found, str) else None


class Declarations:
    """The declarations of a run: an exact name beats a pattern, a longer pattern a shorter one.

    >>> found = Declarations([{"pattern": "perf/*", "reduction": "rate"}])
    >>> found["perf/tokens"].scaling, found["loss"]
    ('extensive', None)
    """

    def __init__(self, written: Iterable[object] = ()) -> None:
        self._names: dict[str, Declared] = {}
        patterns: list[tuple[str, Declared]] = []
        for one in written:
            if not isinstance(one, Mapping) or not isinstance(one.get("pattern"), str):
                continue
            self._names[one["pattern"]] = declared = _declared(one)
            patterns.append((one["pattern"], declared))
        self._names.update(
            (name, Declared("count"))
            for declared in list(self._names.values())
            for name in _referred(declared)
            if name not in self._names
        )
        patterns.reverse()  # the sort is stable: of equally long patterns the later one wins
        self._patterns = sorted(patterns, key=lambda one: -len(one[0]))

    def __bool__(self) -> bool:
        return bool(self._names)

    def __getitem__(self, key: str) -> Declared | None:
        """What is declared of a key; of a child's key by its whole name or without the prefix.

        The order is that of the registry itself: the whole name, a pattern that names the child,
        the bare name, any pattern; ``k/rank0`` and its like belong to a key ``k`` per rank.
        """
        bare = key.partition("/")[2] or key
        return (
            self._names.get(key)
            or (self._of_child(key, bare) if bare != key else None)
            or self._names.get(bare)
            or self._part_of_per_rank(key)
            or self._by_pattern(key, bare)
        )

    def _of_child(self, key: str, bare: str) -> Declared | None:
        child = key.partition("/")[0]
        for text, declared in self._patterns:
            names_child = "/" in text or text.startswith(child)
            if names_child and fnmatchcase(key, text) and not fnmatchcase(bare, text):
                return declared
        return None

    def _by_pattern(self, key: str, bare: str) -> Declared | None:
        matching = (
            declared
            for text, declared in self._patterns
            if fnmatchcase(bare, text) or fnmatchcase(key, text)
        )
        return next(matching, None)

    def _part_of_per_rank(self, key: str) -> Declared | None:
        base, _, part = key.rpartition("/")
        if not base or not (part in _PER_RANK_PARTS or part.removeprefix("rank").isdigit()):
            return None
        found = self[base]
        return found if found is not None and found.scaling == "per_rank" else None


def _declared(written: Mapping[str, Any]) -> Declared:
    reduction = str(written.get("reduction", ""))
    params = written.get("params")
    over = written.get("replicated_over")
    return Declared(
        reduction,
        str(written.get("scaling") or _OWN_SCALING.get(reduction, "invariant")),
        params if isinstance(params, Mapping) else {},
        str(written.get("unit") or ""),
        tuple(map(str, over)) if isinstance(over, list | tuple) else (),
    )


def _referred(declared: Declared) -> list[str]:
    names = (declared.params.get(name) for name in ("weight", "numerator", "denominator", "of"))
    return [name for name in names if isinstance(name, str)]
