"""Wall time of a rank's training, without the time spent in pauses."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Seconds of this process that stand still within `paused`."""

    def __init__(self) -> None:
        self._lost = 0.0
        self._depth = 0
        self._paused_at = 0.0

    def now(self) -> float:
        """Seconds since some moment, without pauses."""
        at = self._paused_at if self._depth else time.perf_counter()
        return at - self._lost

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stand still; pauses may be nested."""
        if not self._depth:
            self._paused_at = time.perf_counter()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self._lost += time.perf_counter() - self._paused_at
