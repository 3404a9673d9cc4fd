"""The names under which values come back: each is that of one value, whichever keys give it."""

from __future__ import annotations

from dataclasses import dataclass

from distmetrics.errors import DeclarationConflict
from distmetrics.reductions import Reduction


@dataclass(frozen=True)
class Giver:
    """A key with its names in records.

    Attributes:
        prefix: of its child, ``val/``, or empty.
        name: as used in the call.
        reduction: how its contributions combine.
    """

    prefix: str
    name: str
    reduction: Reduction

    def gives(self) -> tuple[str, ...]:
        """The names in records of all that comes of it."""
        return self.reduction.gives(self.prefix + self.name)

    def said(self, name: str) -> str:
        """The key for people, and how it comes by a name."""
        child = f" of child {self.prefix[:-1]!r}" if self.prefix else ""
        text = f"key {self.name!r}{child}, {self.reduction}"
        counts = name == f"{self.prefix}{self.name}/nonfinite"
        return f"{text}, whose NaN and infinities it counts" if counts else text


class Names:
    """The names that are given, and the keys that give them."""

    def __init__(self) -> None:
        self._givers: dict[str, Giver] = {}

    def conflict(self, giver: Giver) -> str | None:
        """What keeps a new key from giving its names; None: nothing does."""
        for name in giver.gives():
            known = self._givers.get(name)
            if known is not None:
                return (
                    f"{name!r} would be the name of two values: of {known.said(name)}, and of "
                    f"{giver.said(name)}"
                )
        return None

    def check(self, giver: Giver) -> None:
        """Raise `DeclarationConflict` where another key gives one of its names."""
        text = self.conflict(giver)
        if text is not None:
            raise DeclarationConflict(f"{text}; rename one of the two keys")

    def add(self, giver: Giver) -> None:
        """A key gives its names from now on."""
        self._givers.update(dict.fromkeys(giver.gives(), giver))
