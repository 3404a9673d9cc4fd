"""The training that most tests let ranks do, with a fault at a named point of one of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import distmetrics as dm
from tests.faults import work
from tests.faults.points import at
from tests.faults.ranks import Life

PEER_TIMEOUT = 30.0
"""Seconds: longer than any pause of a busy machine."""


class Lost(NamedTuple):
    """What a training thread learns of a lost rank."""

    rank: int | None
    step: int | None
    key: str | None
    text: str

    @classmethod
    def of(cls, error: dm.PeerLostError) -> Lost:
        """What the error says."""
        return cls(error.rank, error.step, error.key, str(error))


class Fault(NamedTuple):
    """What happens to a rank, and where."""

    rank: int
    point: str
    how: str = "die"
    after: int = 1


def logger_of(run_dir: Path, **options: Any) -> dm.Logger:
    """The logger of the known training."""
    return dm.Logger(
        work.registry(),
        run_dir=run_dir,
        every=work.EVERY,
        **{"on_peer_lost": "error", "peer_timeout": PEER_TIMEOUT, **options},
    )


def inject(life: Life, fault: Fault | None) -> None:
    """Let this rank reach its fault, if it is the one that has it."""
    if fault is not None and fault.rank == life.rank:
        at(fault.point, getattr(life, fault.how), fault.after)


def steady(
    life: Life, run_dir: Path, steps: int, pace: float, fault: Fault | None, options: dict[str, Any]
) -> dict[str, Any]:
    """Train so many steps, whatever becomes of the others; the logger's counters at the end.

    What is learned of lost ranks is said, and how long a call took at most is returned.
    """
    inject(life, fault)
    logger = logger_of(run_dir, **options)
    slowest = 0.0
    for step in range(steps):
        time.sleep(pace)
        given = work.outputs(life.rank, step)
        began = time.monotonic()
        try:
            logger.log(given, step=step)
        except dm.PeerLostError as error:
            life.say("lost", Lost.of(error))
        slowest = max(slowest, time.monotonic() - began)
        life.say("spooled", logger.stats()["spooled_step"])
    logger.flush()
    began = time.monotonic()
    try:
        logger.close()
    except dm.PeerLostError as error:
        life.say("lost", Lost.of(error))
    closing = time.monotonic() - began
    return {**logger.stats(), "slowest": slowest, "closing": closing}


def until_told(
    life: Life, run_dir: Path, pace: float, fault: Fault | None, options: dict[str, Any]
) -> int:
    """Train until the test says that it is enough; how many steps that were."""
    inject(life, fault)
    logger = logger_of(run_dir, **options)

    def call(what: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        try:
            what(*args, **kwargs)
        except dm.PeerLostError as error:
            life.say("lost", Lost.of(error))

    step = 0
    while not life.heard:
        time.sleep(pace)
        call(logger.log, work.outputs(life.rank, step), step=step)
        step += 1
        if step % 50 == 0:
            life.say("trained", step)
    last = life.hear("enough")
    while step < last:
        call(logger.log, work.outputs(life.rank, step), step=step)
        step += 1
    call(logger.close)
    return step
