"""Running a script under torchrun at several world sizes, one after another."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distmetrics.audit.processes import Outcome, open_files, run_command
from distmetrics.errors import DistmetricsError, InvalidValue
from distmetrics.runs import RunData, open_run
from distmetrics.runs.jsonl import RUN
from distmetrics.runs.locate import is_run_file

OUTPUT = "output.log"
"""The file in a world size's folder that has all that its script printed."""

TAIL_LINES = 25
"""How much of the output of a failed script a report shows."""

_LOOK_EVERY = 2.0
_TORCHRUN = re.compile(
    r"elastic[/.]multiprocessing[/.].*(failed|Sending process)|ChildFailedError"
    r"|elastic[/.]agent[/.].*death signal"
)


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes:
        script: the script, a Python file.
        arguments: its arguments; ``{run_dir}``, ``{world_size}`` and ``{steps}`` are filled in.
        world_sizes: how many processes, run by run.
        folder: where everything that the runs write goes, a folder ``w<N>`` for each.
        timeout: seconds after which a run is ended.
        steps: a run is ended once it has logged this many steps; None: it runs to its end.
        working_folder: where the scripts run; None: each in its own folder, so that what they
            write to relative paths stays apart.
    """

    script: Path
    arguments: Sequence[str]
    world_sizes: Sequence[int]
    folder: Path
    timeout: float = 1800.0
    steps: int | None = None
    working_folder: Path | None = None


@dataclass
class Launched:
    """What came of a plan.

    Attributes:
        runs: the runs that could be read, in the order of the world sizes.
        failures: world size to why there is no run, with the end of the script's output.
    """

    runs: list[RunData] = field(default_factory=list)
    failures: dict[int, str] = field(default_factory=dict)


Progress = Callable[[int, str], None]
"""Told the world size and what happens with it, a few times a second."""


def launch(plan: Plan, progress: Progress = lambda size, text: None) -> Launched:
    """Runs a script at each world size and reads back what it logged.

    A script that fails, or logs nothing, at one world size is a failure of that world size; the
    others are run all the same. The environment of the scripts has ``WANDB_MODE=offline`` and
    ``WANDB_DIR``, ``DISTMETRICS_AUDIT_DIR`` (the world size's own folder) and
    ``DISTMETRICS_AUDIT_STEPS``.

    Raises:
        InvalidValue: there is no such script, or the folder holds something already.
    """
    _check(plan)
    found = Launched()
    for size in plan.world_sizes:
        folder = plan.folder / f"w{size}"
        folder.mkdir(parents=True)
        progress(size, "starts")
        places = [_files(place) for place in _places_named(plan)]
        before = {file: file.stat().st_mtime_ns for files in places for file in files}
        outside: set[Path] = set()
        outcome = _run(plan, size, folder, progress, outside)
        if not outcome.good:
            found.failures[size] = _failure(plan, outcome, folder)
            progress(size, "failed")
            continue
        try:
            run = open_run(_where(plan, folder, before, outside), size)
            _note_world_size(folder, size)
        except DistmetricsError as error:
            found.failures[size] = f"{error}\n{_tail(folder / OUTPUT)}"
            progress(size, "logged nothing that can be read")
            continue
        found.runs.append(run)
        progress(size, f"done in {outcome.seconds:.0f} s, {len(run.series)} keys")
    return found


def _check(plan: Plan) -> None:
    if not plan.script.is_file():
        raise InvalidValue(f"{plan.script}: there is no such script")
    if plan.folder.exists() and any(plan.folder.iterdir()):
        raise InvalidValue(f"{plan.folder} is not empty; name another folder with --out")
    if plan.working_folder is not None and not plan.working_folder.is_dir():
        raise InvalidValue(f"{plan.working_folder}: there is no such folder")


def _run(plan: Plan, size: int, folder: Path, progress: Progress, outside: set[Path]) -> Outcome:
    """Runs the script once; files of a run that it has open elsewhere are added to `outside`."""
    begin = looked = time.monotonic()
    watch = _Watch(folder, size, plan.steps)

    def tick(mark: str) -> None:
        nonlocal looked
        if time.monotonic() - looked > _LOOK_EVERY / 2:
            outside.update(file for file in open_files(mark) if is_run_file(file))
            looked = time.monotonic()
        at = "" if watch.step is None else f", step {watch.step}"
        progress(size, f"{time.monotonic() - begin:.0f} s{at}")

    return run_command(
        command(plan, size, folder),
        output=folder / OUTPUT,
        folder=plan.working_folder or folder,
        environment=_environment(plan, folder),
        timeout=plan.timeout,
        until=watch.enough if plan.steps is not None else None,
        tick=tick,
    )


def command(plan: Plan, size: int, folder: Path) -> list[str]:
    """The command line that runs the script at one world size."""
    filled = {
        "{run_dir}": str(folder.resolve()),
        "{world_size}": str(size),
        "{steps}": "" if plan.steps is None else str(plan.steps),
    }
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={size}",
        "--nnodes=1",
        # Port 0 is chosen as it is bound: one looked up before could be taken by then.
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        str(plan.script.resolve()),
        *(_fill(argument, filled) for argument in plan.arguments),
    ]


def _fill(argument: str, filled: Mapping[str, str]) -> str:
    for name, value in filled.items():
        argument = argument.replace(name, value)
    return argument


def _environment(plan: Plan, folder: Path) -> dict[str, str]:
    """The environment of a run: ours, without what another launcher left in it."""
    left_over = (
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in left_over and not name.startswith(("TORCHELASTIC_", "WANDB_RUN_"))
    }
    path = [str(Path.cwd()), environment.get("PYTHONPATH", "")]
    environment |= {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "PYTHONUNBUFFERED": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder.resolve()),
        "DISTMETRICS_AUDIT_DIR": str(folder.resolve()),
        "DISTMETRICS_AUDIT_STEPS": "" if plan.steps is None else str(plan.steps),
    }
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


class _Watch:
    """Looks from time to time how many steps a run has logged."""

    def __init__(self, folder: Path, size: int, steps: int | None) -> None:
        self.step: int | None = None
        self._folder, self._size, self._steps = folder, size, steps
        self._next = 0.0

    def enough(self) -> bool:
        """Whether the run has logged the wanted steps; looks every few seconds."""
        now = time.monotonic()
        if now < self._next:
            return False
        try:
            self.step = open_run(self._folder, self._size).last_step
        except (DistmetricsError, OSError):
            self.step = None  # nothing written yet
        # Reading a long file again and again should cost little of the time.
        self._next = time.monotonic() + max(_LOOK_EVERY, 20 * (time.monotonic() - now))
        # The row of a step may be written key by key, so one step more is waited for.
        return self._steps is not None and self.step is not None and self.step >= self._steps


def _where(plan: Plan, folder: Path, before: Mapping[Path, int], outside: set[Path]) -> Path:
    """The folder with what a run logged.

    Where it wrote to a path outside its own folder, the files are copied in, so that the next
    world size does not touch them: those that it had open, else those that are new or changed in
    the places where it may have written.
    """
    if any(map(is_run_file, folder.rglob("*"))):
        return folder
    new = {file for file in outside if file.is_file()}
    for place in _places_named(plan):
        changed = (file for file in _files(place) if before.get(file) != file.stat().st_mtime_ns)
        new.update(file for file in changed if plan.folder.resolve() not in file.parents)
    if not new:
        return folder
    found = folder / "found"
    root = Path(os.path.commonpath([file.parent for file in new]))
    for file in new:
        target = found / file.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)
    return found


def _note_world_size(folder: Path, size: int) -> None:
    """Writes the world size down, so that the runs can be compared again later."""
    facts = folder / RUN
    if not facts.exists():
        facts.write_text(json.dumps({"world_size": size}) + "\n", encoding="utf-8")


def _places_named(plan: Plan) -> Iterator[Path]:
    """Folders that the script may write to: those in its arguments, where it runs, and its own."""
    for argument in plan.arguments:
        path = Path(argument.rpartition("=")[2]).resolve()
        if argument and path.is_dir():
            yield path
    yield from dict.fromkeys([plan.working_folder or Path.cwd(), plan.script.resolve().parent])


def _files(place: Path) -> Iterator[Path]:
    """The files of runs in a folder and in those not far below it."""
    depths = ("*", "*/*", "*/*/*", "*/*/*/*")
    every = (file.resolve() for depth in depths for file in place.glob(depth))
    return (file for file in every if is_run_file(file) or file.name == RUN)


def _failure(plan: Plan, outcome: Outcome, folder: Path) -> str:
    if outcome.timed_out:
        what = f"ended after {plan.timeout:g} s, its time limit (--timeout)"
    elif outcome.returncode < 0:
        what = f"ended by signal {-outcome.returncode}"
    else:
        what = f"exit code {outcome.returncode}"
    hint = ""
    tail = _tail(folder / OUTPUT)
    if "FileNotFoundError" in tail and plan.working_folder is None:
        hint = f"\n(it ran in {folder}; to run it elsewhere use --working-folder)"
    return f"{what}; the end of {folder / OUTPUT}:\n{tail}{hint}"


def _tail(output: Path) -> str:
    """The last lines that the script printed, without what torchrun says after them."""
    try:
        lines = output.read_bytes().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return str(error)
    ends = (place for place, line in enumerate(lines) if _TORCHRUN.search(line))
    own = lines[: next(ends, len(lines))] or lines
    return "\n".join(own[-TAIL_LINES:])
