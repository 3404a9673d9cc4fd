"""The handle that a training loop holds: `Logger`, its children, `log`, `flush`, `close`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.exchange.topology import Mesh
from distmetrics.logger.arguments import (
    check_choice,
    check_flag,
    check_mesh,
    check_name,
    check_seconds,
    checked_every,
    checked_path,
    spool_folder,
)
from distmetrics.logger.core import Core
from distmetrics.logger.parts import Options
from distmetrics.logger.scope import Scope
from distmetrics.logger.sigterm import check_main_thread
from distmetrics.record import Value
from distmetrics.registry import Registry
from distmetrics.registry.keys import shown
from distmetrics.sinks import SinkSpec

if TYPE_CHECKING:
    from typing_extensions import Self


class Logger(Scope):
    """Logs the values of a training on all its ranks, as if it were one process.

    Every rank makes a logger and logs what it has; rank 0 writes the values reduced over all
    ranks. `log` copies what it is given and returns; a worker thread does the rest.

    Args:
        registry: what each key means; by default every scalar is an average.
        run_dir: where rank 0 writes ``metrics.jsonl``, ``run.json`` and what the sinks keep; None:
            no files. The same path on every rank.
        sinks: names (``"tensorboard"``, ``"wandb"``), sink objects, or functions that take each
            record. Opened on rank 0 only, at the first record.
        every: how many steps one record covers; None: all up to a `flush`.
        mesh: a `DeviceMesh` (or what has its `mesh` and `mesh_dim_names`), needed where a key is
            ``replicated_over`` one of its dimensions.
        config: the run's configuration, for ``run.json`` and the sinks.
        resume: go on with the run that `run_dir` holds: True needs one, "auto" begins one where
            there is none. Running totals and steps go on after its last row, or where
            `load_state_dict` says. Rows of this attempt supersede those of earlier ones from its
            first step on.
        errors: "raise": a value that is not accepted is an error at the call, of which nothing is
            logged then; "warn": it is reported once for each key, and the rest of the call logged.
        on_step_regress: what a step lower than an earlier one is: "warn" (once), "error" or
            "accept". It is logged all the same, under its own step.
        peer_timeout: seconds after which a rank whose worker does not answer counts as lost, and
            which calls that need all ranks wait for the others.
        start_timeout: seconds to wait for all ranks to make this logger.
        notice_after: seconds after which a rank that is waited for is named.
        on_peer_lost: what a lost rank is, at the next call: "warn", or "error" to raise
            `PeerLostError` once. Either way logging goes on, into the spool.
        spool: keep closed windows on disk until rank 0 has written them, so that
            ``distmetrics merge`` can complete the record of a run that died. Needs `run_dir`.
        spool_dir: where this rank keeps them, e.g. on a disk of its node; by default
            ``run_dir/spool``.
        handle_sigterm: at SIGTERM spool and write what this rank has logged, within seconds and
            waiting for nobody; then let the handler of before act, or the process end. The logger
            has to be made in the main thread.
        record_contributions: for debugging, write what every call says into
            ``run_dir/contributions-rank<k>.jsonl``, from which ``distmetrics audit explain`` tells
            how a value came about. Needs `run_dir`.

    Ranks: all, collectively, in the same order as other loggers.
    Collective: connects a Gloo group of the workers' own; 2 or 4 small all-gathers on it.

    Raises:
        NotInitialized: several processes were launched, but there is no process group.
        PeerTimeoutError: some ranks did not make this logger within `start_timeout`.
        InvalidValue: run_dir, every or registry differ between ranks (on every rank).
        RunDirError: `run_dir` holds a run already or cannot be used (on every rank).

    Example:
        >>> import distmetrics as dm
        >>> memory = dm.sinks.MemorySink()
        >>> with dm.Logger(sinks=[memory], every=2) as logger:
        ...     for step in range(4):
        ...         logger.log({"loss": dm.Average(1.0 + step)}, step=step)
        >>> [(record.step, record.values["loss"]) for record in memory.records]
        [(1, 1.5), (3, 3.5)]
    """

    def __init__(
        self,
        registry: Registry | None = None,
        run_dir: str | os.PathLike[str] | None = None,
        sinks: SinkSpec | Sequence[SinkSpec] = (),
        every: int | None = 1,
        *,
        mesh: Mesh | None = None,
        config: Mapping[str, Any] | None = None,
        resume: Literal[True, False, "auto"] = False,
        errors: Literal["raise", "warn"] = "raise",
        on_step_regress: Literal["warn", "error", "accept"] = "warn",
        on_peer_lost: Literal["warn", "error"] = "warn",
        peer_timeout: float = 60.0,
        start_timeout: float = 600.0,
        notice_after: float = 30.0,
        spool: bool = True,
        spool_dir: str | os.PathLike[str] | None = None,
        handle_sigterm: bool = False,
        record_contributions: bool = False,
    ) -> None:
        if registry is not None and not isinstance(registry, Registry):
            raise InvalidType(f"registry= is a Registry or None, not {shown(registry)}")
        folder = checked_path("run_dir", run_dir)
        check_mesh(mesh)
        if config is not None and not isinstance(config, Mapping):
            raise InvalidType(f"config= is a dict or None, not {shown(config)}")
        check_choice("errors", errors, ("raise", "warn"))
        check_choice("resume", resume, (True, False, "auto"))
        if resume is not False and folder is None:
            raise InvalidValue("resume= needs run_dir=; pass the directory of the run to resume")
        check_choice("on_step_regress", on_step_regress, ("warn", "error", "accept"))
        check_choice("on_peer_lost", on_peer_lost, ("warn", "error"))
        for name, flag in (
            ("spool", spool),
            ("handle_sigterm", handle_sigterm),
            ("record_contributions", record_contributions),
        ):
            check_flag(name, flag)
        if handle_sigterm:
            check_main_thread()
        if record_contributions and folder is None:
            raise InvalidValue("record_contributions=True needs run_dir=, where the files go")
        for name, seconds in (
            ("peer_timeout", peer_timeout),
            ("start_timeout", start_timeout),
            ("notice_after", notice_after),
        ):
            check_seconds(name, seconds)
        options = Options(
            folder,
            sinks,
            checked_every(every),
            mesh,
            {} if config is None else dict(config),
            resume,
            peer_timeout,
            start_timeout,
            notice_after,
            on_peer_lost == "error",
            spool_folder(spool, folder, checked_path("spool_dir", spool_dir)),
            handle_sigterm,
            record_contributions,
        )
        known = Registry() if registry is None else registry
        core = Core(known, options, errors == "warn", on_step_regress)
        super().__init__(core, "", checked_every(every))
        self._children: dict[str, Child] = {}
        core.follow(lambda: self._high)

    def child(self, name: str, every: int | None = None) -> Child:
        """A logger with its own windows whose keys come back as ``name/key``, e.g. a validation.

        The same name gives the same child. Its steps may be those of its parent, or its own
        (epochs). Where they are the parent's, ranks that have gone beyond them need not take part:
        an evaluation on rank 0 alone is written at once. A record of steps of its own waits until
        every rank has come to it, has promised it by ``log({}, step=...)``, or has closed.

        Args:
            name: the prefix, without the slash.
            every: how many steps one record covers; None: all up to `Child.flush`.

        Ranks: any; may be made on some ranks only.
        Collective: none.

        Raises:
            InvalidValue: the name is empty or begins or ends with a slash, or the child was made
                with another `every`.
        """
        check_name(name)
        with self._core.lock:  # threads that ask for the same child get the same one
            known = self._children.get(name)
            if known is None:
                known = self._children[name] = Child(self._core, name, checked_every(every), self)
        if known.every != every:
            raise InvalidValue(
                f"child {name!r} was made with every={known.every}, now with every={every}; "
                "a child has one: give another name"
            )
        return known

    def reduce(self, outputs: Mapping[str, Any], *, weight: Any = None) -> dict[str, Value]:
        """The values of `outputs` reduced over all ranks now; nothing is written.

        Args:
            outputs: as for `log`; ranks may give different keys.
            weight: as for `log`.

        Ranks: all; every rank gets the same dict. A rank that has closed has no part in it, which
            is warned of once.
        Collective: up to two rounds of the workers.

        Raises:
            PeerTimeoutError: some ranks did not call this within `peer_timeout`; it names them.
            PeerLostError: a rank is gone.
            InvalidType, InvalidValue: as for `log`.
        """
        return self._core.reduce(outputs, weight)

    def state_dict(self) -> dict[str, Any]:
        """The state to go on from: running totals, steps, and what the open windows hold.

        Call it at the same step on every rank, where the checkpoint is taken. It waits until all
        closed windows are written, and closes none. The dict is made of plain Python values, so
        that ``torch.load(weights_only=True)`` reads it back.

        Ranks: all; every rank gets the same dict, any may save it.
        Collective: up to three rounds of the workers.

        Raises:
            PeerTimeoutError: some ranks did not call this within `peer_timeout`; it names them.
            PeerLostError: a rank is gone, or has closed.
        """
        return self._core.state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called, at any world size.

        Args:
            state: what `state_dict` returned.

        Ranks: all, with the same state, before anything is logged.
        Collective: none.

        Raises:
            InvalidValue: it is no state, or something was logged already.
            DeclarationConflict: the registry declares a key otherwise than the state has it.
        """
        self._core.load(state)

    def stats(self) -> dict[str, Any]:
        """Counters of this rank's logger.

        ``rounds``: meetings of the workers; ``queued``: closed windows of this rank that wait to
        be reduced; ``spooled_step``: the step through which all that was logged here is on disk,
        whatever happens now (-1: none, or no spool); ``written_step``: the highest step that was
        written (rank 0, else -1);
        ``written, dropped, sink_errors``: summed over the sinks; ``sinks``: the same for each, with
        its queue; ``bad_values``: values left out with ``errors="warn"``; ``waited_s``: seconds
        that calls of the training thread have waited for other ranks.
        """
        return self._core.stats()

    def sink(self, name: str) -> Any:
        """The sink's own handle (the W&B run, the TensorBoard writer), for images and artifacts.

        Ranks: rank 0; None on the others, and where there is no such sink.
        """
        return self._core.handle(name)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time spent in here counts neither for the logger's rates by wall time nor its timers.

        It does for children that are used in here: an evaluation has a rate of its own.
        """
        with self._core.clock.paused():
            yield

    def close(self, timeout: float | None = None) -> None:
        """Close all windows, wait until every rank has closed and all is written.

        Idempotent; called at exit where it was not before. Until the others close too, this rank
        takes part in the reduction of what they log.

        Args:
            timeout: seconds to wait for the other ranks, and then for the sinks. Then this rank
                leaves and says what is left: the others go on without it if all it has logged is
                written; else its windows are in its spool, and the others in theirs, until
                ``distmetrics merge`` completes the record. None: as long as the others' workers
                answer, and 10 s or what they ask for for the sinks.

        Ranks: all, at any time.
        Collective: none in the calling thread.

        Raises:
            DeclarationConflict: a key had been declared in two ways (all else is written).
        """
        self._core.close(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._core.leave()


class Child(Scope):
    """A part of a logger with its own windows; made by `Logger.child`."""

    def __init__(self, core: Core, name: str, every: int | None, parent: Logger) -> None:
        super().__init__(core, name, every)
        self._parent = parent

    def child(self, name: str, every: int | None = None) -> Child:
        """A child of this child: its name is ``parent/name``."""
        return self._parent.child(f"{self.name}/{name}", every)
