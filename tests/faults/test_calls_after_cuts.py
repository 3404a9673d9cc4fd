"""Calls that a cut link has ended: those that follow match those of the other ranks."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.comm.inprocess import InProcess
from distmetrics.comm.reunion import Missing
from distmetrics.errors import PeerLostError
from distmetrics.testing import run_ranks_in_process
from distmetrics.worker import worker
from distmetrics.worker.broken import BrokenCalls

GIVEN_UP = {0: 3, 1: 1, 2: 2}
"""How many calls each rank gives up while the links are cut."""


class _Cut:
    """All links of an in-process world, while it is set."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.cut = threading.Event()
        patch.setattr(worker, "STRAGGLING", 0.0)
        for name in ("all_reduce", "all_gather"):
            patch.setattr(InProcess, name, self._failing(getattr(InProcess, name)))
        regroup = InProcess.regroup

        def regrouping(peer: InProcess, *args: Any) -> Missing | None:
            if self.cut.is_set():
                return Missing((), tuple({0, 1, 2} - {peer.rank}))
            return regroup(peer, *args)

        patch.setattr(InProcess, "regroup", regrouping)

    def _failing(self, original: Any) -> Any:
        def collective(peer: InProcess, *args: Any) -> Any:
            if self.cut.is_set():
                raise PeerLostError("the link is cut")
            return original(peer, *args)

        return collective


def _train(links: _Cut, met: threading.Barrier) -> list[Any]:
    """Make ten numbered calls, of which the cut ends some; what each came to."""
    rank = dm.get_rank()
    logger = dm.Logger(peer_timeout=30)
    logger._core._parts.worker._silence = 0.2  # ranks count as lost long before a call ends
    found: list[Any] = []

    def call(number: int) -> None:
        try:
            found.append(logger.reduce({"n": dm.Count(number)}))
        except PeerLostError as error:
            found.append(error.rank)

    call(0)
    met.wait(20)
    links.cut.set()
    for number in range(1, 1 + GIVEN_UP[rank]):
        call(number)
    met.wait(20)
    links.cut.clear()
    while logger._core._parts.worker.failure is not None:
        time.sleep(0.01)  # until this rank is connected again
    for number in range(1 + GIVEN_UP[rank], 6):
        call(number)
    logger.close()
    return found


def test_calls_match_after_ranks_have_given_up_different_numbers_of_them() -> None:
    """Those that another rank has given up end at once, naming it; the others pair as numbered."""
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        met = threading.Barrier(3)
        found = run_ranks_in_process(_train, 3, _Cut(patch), met, timeout=60)
    for rank, calls in enumerate(found):
        assert calls[0] == {"n": 0}
        assert all(isinstance(call, int) for call in calls[1:4]), (rank, calls)
        assert calls[4:] == [{"n": 12}, {"n": 15}], (rank, calls)
    assert found[1][2:4] == [0, 0]
    assert found[2][3] == 0


def _aligned(*given_up: Mapping[str, int]) -> list[BrokenCalls]:
    """Ranks that gave these calls up, connected again."""
    ranks = []
    for counts in given_up:
        rank = BrokenCalls()
        for stream, count in counts.items():
            for _ in range(count):
                rank.add(stream)
        ranks.append(rank)
    for rank in ranks:
        rank.align([dict(other.counts) for other in ranks])
    return ranks


def test_no_call_is_refused_twice() -> None:
    """Each rank has as many calls refused as it was behind, of that stream alone."""
    first, second = _aligned({"": 2, "val": 1}, {"": 1})
    assert first.refusal("") is None
    assert first.refusal("val") is None
    assert second.refusal("") is not None
    assert second.refusal("") is None
    assert second.refusal("val") is not None
    assert second.refusal("val") is None
    assert second.refusal("other") is None


def test_an_answer_ends_what_was_before() -> None:
    """Calls match then; one that was given up and answered on other ranks counts no more."""
    first, second = _aligned({"": 2}, {})
    second.answered("")
    assert second.refusal("") is None
    first.missed("")
    assert first.counts == {"": 1}
