"""SIGTERM, where a logger was asked to mind it: what was logged is kept, then all is as before."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

from distmetrics.errors import InvalidValue


def check_main_thread() -> None:
    """Raise `InvalidValue` in any other thread than the main one, which alone handles signals."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidValue(
            "handle_sigterm=True in a thread that is not the main one, where Python handles no "
            "signals; make the logger in the main thread, or leave it out"
        )


class Sigterm:
    """A handler of SIGTERM in front of the one that was there.

    Args:
        rescue: called first; its argument says whether the process ends after it, since nobody
            else handles the signal.

    Raises:
        InvalidValue: this is not the main thread, which alone may handle signals.
    """

    def __init__(self, rescue: Callable[[bool], object]) -> None:
        check_main_thread()
        self._rescue = rescue
        self._previous = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, self._handle)

    def remove(self) -> None:
        """Restore the handler of before, unless somebody has put another in front of this one."""
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        previous = self._previous
        if callable(previous):
            self._rescue(False)
            previous(number, frame)
        elif previous == signal.SIG_IGN:
            self._rescue(False)
        else:
            self._rescue(True)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
