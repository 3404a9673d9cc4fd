"""A pytest plugin: tests that fail when a metric depends on the number of ranks.

Switched on in a `conftest.py`, so that other test suites do not import torch for it::

    pytest_plugins = ["distmetrics.testing.plugin"]

Then a test asks for the fixture::

    def test_my_metrics(world_size_invariant):
        world_size_invariant(evaluate)  # runs evaluate() on 1, 2 and 4 ranks

The ini option ``distmetrics_world_sizes`` sets other world sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from distmetrics.testing.invariance import assert_world_size_invariant

_OPTION = "distmetrics_world_sizes"


class InvarianceCheck(Protocol):
    """Fails the test unless a function returns the same values at every world size."""

    def __call__(
        self,
        fn: Callable[[], Mapping[str, Any]],
        world_sizes: Sequence[int] | None = None,
        rtol: float = 0.0,
    ) -> None:
        """As `assert_world_size_invariant`; `world_sizes` is by default what the ini file says."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the ini option."""
    parser.addini(_OPTION, "world sizes of the fixture world_size_invariant", default="1 2 4")


@pytest.fixture
def world_size_invariant(pytestconfig: pytest.Config) -> InvarianceCheck:
    """Checks that a function returns the same values at every world size."""
    written = str(pytestconfig.getini(_OPTION)).replace(",", " ").split()
    if not all(part.isdecimal() and int(part) > 0 for part in written) or len(written) < 2:
        raise pytest.UsageError(f"{_OPTION} lists two or more world sizes, not {written!r}")
    default = tuple(map(int, written))

    def check(
        fn: Callable[[], Mapping[str, Any]],
        world_sizes: Sequence[int] | None = None,
        rtol: float = 0.0,
    ) -> None:
        __tracebackhide__ = True
        assert_world_size_invariant(fn, world_sizes or default, rtol)

    return check
