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

    def pause(self) -> tuple[float, float]:
        """When the last pause began, and the seconds of it if it is under way, else 0."""
        return self._paused_at, time.perf_counter() - self._paused_at if self._depth else 0.0

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


class ChildClock:
    """The clock of a child: pauses of its logger in which it is used are none for it.

    Args:
        clock: the logger's.
        goes_on: seconds of pauses that it was used in count for ever; False: until the pause ends,
            for a child whose windows begin where the logger was last used.
    """

    def __init__(self, clock: Clock, goes_on: bool) -> None:
        self._clock = clock
        self._goes_on = goes_on
        self._kept = 0.0
        self._pause = 0.0
        self._worked = 0.0

    def now(self) -> float:
        """Seconds since some moment; whoever asks is at work."""
        began, worked = self._clock.pause()
        if not self._goes_on:
            return self._clock.now() + worked
        if worked:
            if began != self._pause:
                self._pause = began
                self._kept += self._worked
            self._worked = worked
        return self._clock.now() + self._kept + self._worked
