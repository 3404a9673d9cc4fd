"""What a user should know: notes, and warnings and errors that wait for the next call."""

from __future__ import annotations

import logging
import sys
import warnings
from collections import deque

from distmetrics.errors import DistmetricsError, DistmetricsWarning, PeerLostError

_LOG = logging.getLogger("distmetrics")


class Notices:
    """Texts and errors for the user of a logger, from any thread.

    What a worker finds waits here until the training thread's next call, which warns or raises
    after it has been taken.

    Args:
        lenient: warn of errors instead of raising them.
    """

    def __init__(self, lenient: bool) -> None:
        self.quiet = False
        self._lenient = lenient
        self._waiting: deque[str | DistmetricsError] = deque()
        self._bad: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def bad_values(self) -> int:
        """How many values were left out of calls that were logged otherwise."""
        return sum(self._bad.values())

    def note(self, text: str) -> None:
        """Something worth knowing once; said on rank 0, where `quiet` is False."""
        if not self.quiet:
            _LOG.info(text)

    def announce(self, text: str) -> None:
        """Something worth knowing at once, whatever the training thread does meanwhile."""
        _LOG.warning(text)

    def say(self, text: str) -> None:
        """Something to warn of at once: the training thread itself is waiting."""
        warnings.warn(text, DistmetricsWarning, stacklevel=_user_level())

    def add(self, what: str | DistmetricsError) -> None:
        """Something to warn of, or an error to raise, at the next call."""
        self._waiting.append(what)

    def add_bad_value(self, key: str, error: DistmetricsError) -> None:
        """A value that is left out of a call that is logged otherwise."""
        self._bad[key] = self._bad.get(key, 0) + 1
        if self._bad[key] == 1:
            self.add(f"{error} (left out; further ones of this key are counted in stats())")

    def write(self) -> None:
        """Log what waits, where a warning or an error would hide the one that ends the training."""
        while self._waiting:
            _LOG.warning("%s", self._waiting.popleft())

    def tell(self) -> None:
        """Warn of what waits, then raise the errors among it.

        Raises:
            DistmetricsError: the error that waits; several are raised as one.
        """
        errors: list[DistmetricsError] = []
        while self._waiting:
            what = self._waiting.popleft()
            # a lost peer comes as an error only where that was asked for
            raises = isinstance(what, PeerLostError) or not self._lenient
            if isinstance(what, DistmetricsError) and raises:
                errors.append(what)
            else:
                warnings.warn(str(what), DistmetricsWarning, stacklevel=_user_level())
        if errors:
            first = errors[0]  # with what else it knows, such as the rank
            first.args = ("\n".join(map(str, errors)),)
            raise first


def _user_level() -> int:
    """The level at which the caller of this function finds the first frame outside the package."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - the documented way to a caller's frame
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(
        "distmetrics."
    ):
        level, frame = level + 1, frame.f_back
    return level
