"""Every error and warning that distmetrics raises, in one tree.

::

    DistmetricsError
    ├── InvalidType           (TypeError)     a value or option of a type that is not accepted
    ├── InvalidValue          (ValueError)    the right type, a value that is not accepted
    ├── UnknownKey            (KeyError)      a strict registry was given an unregistered key
    ├── DeclarationConflict   (ValueError)    one key declared in two ways
    ├── LaunchError           (ValueError)    the launcher's variables are missing or malformed
    ├── NotInitialized        (RuntimeError)  several processes, but no process group
    ├── RunDirError           (OSError)       the run directory is taken, locked or not a run
    ├── MissingPackage        (ImportError)   an optional package is not installed
    ├── PeerTimeoutError      (TimeoutError)  ranks that did not arrive in time
    └── PeerLostError         (RuntimeError)  a rank that is gone

    DistmetricsWarning        (UserWarning)   something to look at; the training goes on
"""

from __future__ import annotations

from collections.abc import Sequence


def in_words(error: BaseException) -> str:
    """The type of an error and its message, if it has one that can be told.

    >>> in_words(KeyError("loss")), in_words(TimeoutError())
    ("KeyError: 'loss'", 'TimeoutError')
    """
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - it was raised by code of anybody's
        return f"{name}, whose message cannot be shown"
    return f"{name}: {text}" if text else name


class DistmetricsError(Exception):
    """Base of all errors of this package."""


class InvalidType(DistmetricsError, TypeError):
    """A value or an option has a type that is not accepted."""


class InvalidValue(DistmetricsError, ValueError):
    """A value or an option has the right type but breaks a rule."""


class UnknownKey(DistmetricsError, KeyError):
    """A strict registry was given a key that nobody registered."""

    def __str__(self) -> str:  # KeyError would show the repr
        return str(self.args[0]) if self.args else ""


class DeclarationConflict(DistmetricsError, ValueError):
    """One key was declared in two ways."""


class LaunchError(DistmetricsError, ValueError):
    """The launcher's environment variables are missing, malformed or contradict each other."""


class NotInitialized(DistmetricsError, RuntimeError):
    """Several processes were launched but torch.distributed has no process group."""


class RunDirError(DistmetricsError, OSError):
    """A run directory holds a run already, is locked by another writer, or holds no run."""


class MissingPackage(DistmetricsError, ImportError):
    """An optional package is needed and not installed; the message holds the install command."""


class PeerTimeoutError(DistmetricsError, TimeoutError):
    """Some ranks did not arrive in time; `ranks` lists them."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)


class PeerLostError(DistmetricsError, RuntimeError):
    """A rank is gone: its connection closed or it stopped answering.

    `rank`, `step` (its last known step) and `key` (one of the window that waited) are None where
    they could not be told.
    """

    def __init__(
        self,
        message: str,
        rank: int | None = None,
        step: int | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.step = step
        self.key = key


class DistmetricsWarning(UserWarning):
    """Something to look at; the training goes on."""
