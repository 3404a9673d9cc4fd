"""Reading a launcher's environment variables: which one was set, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from distmetrics.errors import LaunchError


class Found(NamedTuple):
    """A variable that is set: its name and its text."""

    name: str
    text: str

    @property
    def number(self) -> int:
        """The text as an integer that is not negative.

        Raises:
            LaunchError: it is none; the message names the variable and quotes the text.
        """
        text = self.text.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise LaunchError(f"{self.name}={self.text!r} is not a whole number of 0 or more")
        return int(text)


def find(environ: Mapping[str, str], *names: str) -> Found | None:
    """The first of the named variables that is set; an empty one counts as not set."""
    for name in names:
        text = environ.get(name, "")
        if text.strip():
            return Found(name, text)
    return None
