"""Every test begins without a world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from distmetrics.comm import cleanup_distributed


@pytest.fixture(autouse=True)
def no_world_is_left() -> Iterator[None]:
    """What a set-up in this process found is forgotten: forked ranks would inherit it."""
    cleanup_distributed()
    yield
    cleanup_distributed()
