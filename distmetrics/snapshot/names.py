"""The names under which values come back: each is that of one value, whichever keys give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from distmetrics.errors import DeclarationConflict
from distmetrics.reductions import Reduction

REMEDY = "rename one of the two keys"


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

    def yields_to(self, new: Giver) -> bool:
        """Whether this key is made from others and gives way to one of a child.

        What is declared under a child's name belongs to the child, once there is one.
        """
        return self.reduction.virtual and len(new.prefix) > len(self.prefix)

    def said(self, name: str) -> str:
        """The key for people, and how it comes by a name."""
        child = f" of child {self.prefix[:-1]!r}" if self.prefix else ""
        text = f"key {self.name!r}{child}, {self.reduction}"
        counts = name == f"{self.prefix}{self.name}/nonfinite"
        return f"{text}, whose NaN and infinities it counts" if counts else text


class Conflict(NamedTuple):
    """Two keys that give the same name.

    Attributes:
        text: what they are, the new one last.
        yields: whether the new one gives way by itself.
    """

    text: str
    yields: bool


class Names:
    """The names that are given, and the keys that give them."""

    def __init__(self) -> None:
        self._givers: dict[str, Giver] = {}

    def conflict(self, giver: Giver) -> Conflict | None:
        """What keeps a new key from giving its names; None: nothing does."""
        for name in giver.gives():
            known = self._givers.get(name)
            if known is not None and not known.yields_to(giver):
                text = (
                    f"{name!r} would be the name of two values: of {known.said(name)}, and of "
                    f"{giver.said(name)}"
                )
                return Conflict(text, giver.yields_to(known))
        return None

    def check(self, giver: Giver) -> None:
        """Raise `DeclarationConflict` where another key gives one of its names."""
        found = self.conflict(giver)
        if found is not None:
            raise DeclarationConflict(f"{found.text}; {REMEDY}")

    def add(self, giver: Giver) -> list[Giver]:
        """A key gives its names from now on; the keys that yield theirs to it."""
        before = [self._givers[name] for name in giver.gives() if name in self._givers]
        self._givers.update(dict.fromkeys(giver.gives(), giver))
        return [known for known in before if known != giver]
