"""The parts of a logger on one rank, made and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from distmetrics.comm import LaunchEnv
from distmetrics.comm.communicator import Communicator, connect, current
from distmetrics.derivations import Derivations
from distmetrics.errors import InvalidValue, NotInitialized, RunDirError
from distmetrics.exchange.topology import Mesh, Topology
from distmetrics.logger.notices import Notices
from distmetrics.logger.startup import Start, agree_on_start
from distmetrics.reductions import MOST_RANKS
from distmetrics.registry import Registry
from distmetrics.rundir import Resume, RunDirectory
from distmetrics.sinks import NamedSink, Run, SinkSpec, make_sinks
from distmetrics.spool.journal import Journal
from distmetrics.worker.contributions import Contributions
from distmetrics.worker.holdups import Holdups
from distmetrics.worker.streams import Streams
from distmetrics.worker.worker import IDLE, Worker
from distmetrics.worker.writer import Writer


@dataclass(frozen=True)
class Options:
    """What a logger is made of; see `distmetrics.logger.Logger` for the meaning of each."""

    run_dir: Path | None
    sinks: SinkSpec | Sequence[SinkSpec]
    every: int | None
    mesh: Mesh | None
    config: Mapping[str, Any]
    resume: Resume
    peer_timeout: float
    start_timeout: float
    notice_after: float
    raise_lost: bool
    spool_dir: Path | None
    handle_sigterm: bool
    record_contributions: bool


@dataclass(frozen=True)
class Parts:
    """The parts of a logger on this rank.

    Attributes:
        streams: what the training thread feeds.
        worker: the thread that reduces and, on rank 0, writes.
        topology: which ranks are replicas.
        derivations: the derived keys.
        writer: the sinks, on rank 0.
        directory: the run directory, on rank 0.
        past: where a resumed run had come to, by stream.
    """

    streams: Streams
    worker: Worker
    topology: Topology
    derivations: Derivations
    writer: Writer | None
    directory: RunDirectory | None
    past: dict[str, Any] = field(default_factory=dict)


def assemble(registry: Registry, options: Options, notices: Notices) -> Parts:
    """The parts of a logger, its worker running.

    Ranks: all.
    Collective: connects a Gloo group, and 2 or 4 small all-gathers on it.
    """
    named = make_sinks(options.sinks, options.run_dir)
    _check_process_group()
    communicator = connect(
        options.peer_timeout,
        options.start_timeout,
        options.notice_after,
        notices.say,
        lasting=True,
    )
    notices.quiet = communicator.rank > 0
    try:
        topology, refusal = _topology(communicator, registry, options)
        start = agree_on_start(
            communicator,
            registry,
            options.run_dir,
            options.every,
            options.config,
            topology.recorded(),
            options.resume,
            refusal,
        )
    except BaseException:
        communicator.close()
        raise
    writer, holdups = None, None
    if communicator.rank == 0:
        holdups = Holdups(options.every, options.notice_after, notices.announce)
        writer = _writer(named, registry, options, start, communicator, notices)
    rank = topology.rank
    streams = Streams(
        _journal(options.spool_dir, rank, start, notices),
        notices.add,
        rank,
        _contributions(options, rank, notices),
    )
    # every rank computes derived keys; what goes wrong is the same everywhere, and said once
    derivations = Derivations(registry, notices.note if notices.quiet else notices.add)
    worker = Worker(
        streams,
        communicator,
        topology,
        writer,
        notices.add,
        start.attempt,
        raise_lost=options.raise_lost,
        idle=min(IDLE, options.peer_timeout / 4),
        silence=options.peer_timeout,
        holdups=holdups,
        derivations=derivations,
    )
    streams.alone = communicator.world_size == 1
    worker.start()
    _note_left_out(registry, topology.world_size, notices)
    return Parts(streams, worker, topology, derivations, writer, start.directory, start.past)


def _note_left_out(registry: Registry, world_size: int, notices: Notices) -> None:
    """Say which keys do not show every rank."""
    names = [m.pattern for m in registry if m.reduction is not None and m.reduction.at_rank]
    if names and world_size > MOST_RANKS:
        notices.note(
            f"{', '.join(map(repr, names))}: the first {MOST_RANKS} of {world_size} ranks have "
            "keys of their own; min, max and argmax are of all ranks"
        )


def _topology(
    communicator: Communicator, registry: Registry, options: Options
) -> tuple[Topology, str | None]:
    """The ranks' topology, and why it will not do."""
    rank, world_size = communicator.rank, communicator.world_size
    try:
        topology = Topology(rank, world_size, options.mesh)
        for metric in registry:
            topology.check(metric.replicated_over, metric.pattern)
    except InvalidValue as error:
        return Topology(rank, world_size), str(error)
    return topology, None


def _writer(
    named: Sequence[NamedSink],
    registry: Registry,
    options: Options,
    start: Start,
    communicator: Communicator,
    notices: Notices,
) -> Writer:
    directory = start.directory
    # sinks open later, wherever the process is then
    folder = None if options.run_dir is None else options.run_dir.absolute()

    def remember(sinks: Mapping[str, Any]) -> None:
        if directory is not None:
            try:
                directory.remember(sinks)
            except RunDirError as error:
                notices.add(str(error))

    run = Run(
        folder,
        "distmetrics" if folder is None else folder.resolve().name,
        registry,
        options.config,
        communicator.world_size,
        start.attempt,
        state={} if directory is None else directory.sinks,
    )
    restore = (lambda: None) if directory is None else directory.restore
    return Writer(named, run, notices.add, remember, restore)


def _journal(folder: Path | None, rank: int, start: Start, notices: Notices) -> Journal | None:
    """This rank's spool; None where there is none, or it cannot be made."""
    if folder is None:
        return None
    try:
        return Journal(folder, rank, start.attempt, start.run)
    except OSError as error:
        notices.add(
            f"the spool {str(folder)!r} cannot be made ({error.strerror or error}): windows "
            "that are not reduced yet are lost if this process dies"
        )
        return None


def _contributions(options: Options, rank: int, notices: Notices) -> Contributions | None:
    if not options.record_contributions or options.run_dir is None:
        return None
    return Contributions(options.run_dir / f"contributions-rank{rank}.jsonl", notices.add)


def _check_process_group() -> None:
    if current() is not None or (dist.is_available() and dist.is_initialized()):
        return
    env = LaunchEnv.detect()
    if env.world_size > 1:
        raise NotInitialized(
            f"this is rank {env.rank} of {env.world_size} processes, but torch.distributed is not "
            "initialised; call dm.setup_distributed() before making a Logger"
        )
