"""From what a user names to sinks."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable

import pytest

from distmetrics.record import Record
from distmetrics.sinks import (
    IsolatedSink,
    JsonlSink,
    MemorySink,
    Run,
    Sink,
    TensorBoardSink,
    WandbSink,
    make_sinks,
)
from tests.sinks.records import record, run

WITH_FOLDER = "runs/exp1"


def test_names_become_sinks_in_order() -> None:
    """Each name gives its sink, in the order given; jsonl is accepted and adds nothing."""
    found = make_sinks(["wandb", "jsonl", "tensorboard", "memory"], WITH_FOLDER)
    assert [(name, type(sink)) for name, sink in found] == [
        ("wandb", WandbSink),
        ("tensorboard", TensorBoardSink),
        ("memory", MemorySink),
    ]


def test_a_bare_name_is_one_sink() -> None:
    """A string alone is a name, not a list of letters."""
    assert [name for name, _ in make_sinks("memory", None)] == ["memory"]


def test_objects_are_taken_as_they_are() -> None:
    """An object of the contract is used itself, whatever else it can do."""

    class Mine:
        def __init__(self) -> None:
            self.rows: list[Record] = []

        def open(self, run: Run) -> None:
            pass

        def write(self, record: Record) -> None:
            self.rows.append(record)

        def close(self) -> None:
            pass

        def __call__(self, row: Record) -> None:
            raise AssertionError("it is a sink, no function")

    mine = Mine()
    ((name, sink),) = make_sinks([mine], None)
    assert (name, sink) == ("Mine", mine)


def test_a_function_gets_each_record() -> None:
    """A plain function is a sink under its own name."""
    rows: list[Record] = []

    def keep(row: Record) -> None:
        rows.append(row)

    ((name, sink),) = make_sinks([keep], None)
    sink.open(run())
    sink.write(record(1))
    sink.close()
    assert name == "keep"
    assert rows == [record(1)]


def test_equal_names_are_numbered() -> None:
    """Two sinks of one name can be told apart."""
    found = make_sinks([MemorySink(), MemorySink(), lambda row: None, lambda row: 1], None)
    assert [name for name, _ in found] == ["memory", "memory-2", "<lambda>", "<lambda>-2"]


@pytest.mark.parametrize(
    ("specs", "folder", "error", "says"),
    [
        (["tensorbord"], WITH_FOLDER, ValueError, "did you mean 'tensorboard'"),
        (
            ["xyz"],
            WITH_FOLDER,
            ValueError,
            "'jsonl', 'memory', 'mlflow', 'prometheus', 'tensorboard', 'wandb'",
        ),
        (["wandb", "wandb"], WITH_FOLDER, ValueError, "'wandb' is given twice"),
        (["tensorboard"], None, ValueError, "run_dir"),
        ([WandbSink()], None, ValueError, "run_dir"),
        (["jsonl"], None, ValueError, "run_dir"),
        ([JsonlSink()], None, ValueError, "run_dir"),
        ([MemorySink], None, TypeError, "an object of it: MemorySink()"),
        ([3], None, TypeError, "of type int is no sink"),
        ([sys.stdout], None, TypeError, "lacks open"),
    ],
)
def test_mistakes_are_named(
    specs: list[object], folder: str | None, error: type[Exception], says: str
) -> None:
    """A wrong spec is an error that says what was given and what is accepted."""
    with pytest.raises(error) as caught:
        make_sinks(specs, folder)  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_sinks_with_a_place_of_their_own_need_no_run_directory() -> None:
    """A sink that was told where its files go works without a run directory."""
    found = make_sinks(
        [JsonlSink("a.jsonl"), TensorBoardSink("tb"), WandbSink(dir="w"), "memory"], None
    )
    assert len(found) == 4


def test_one_object_cannot_be_two_sinks() -> None:
    """The same object twice is an error."""
    sink = MemorySink()
    with pytest.raises(ValueError, match="twice"):
        make_sinks([sink, sink], None)


def test_resolving_imports_no_back_end() -> None:
    """Neither importing the sinks nor making them imports TensorBoard or W&B."""
    script = inspect.cleandoc(
        """
        import sys
        from distmetrics.sinks import make_sinks
        make_sinks(["tensorboard", "wandb", "memory"], "runs/exp1")
        print(sorted({name.split(".")[0] for name in sys.modules} & {"tensorboard", "wandb"}))
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    "make",
    [JsonlSink, MemorySink, TensorBoardSink, WandbSink, lambda: IsolatedSink(MemorySink(), print)],
)
def test_own_sinks_keep_the_contract(make: Callable[[], Sink]) -> None:
    """Every sink of the package has the contract's methods with the contract's arguments."""
    sink = make()
    assert isinstance(sink, Sink)
    for method in ("open", "write"):
        ours = list(inspect.signature(getattr(sink, method)).parameters)
        assert ours == list(inspect.signature(getattr(Sink, method)).parameters)[1:]


@pytest.mark.parametrize(
    ("sink", "package", "command"),
    [
        (TensorBoardSink(), "tensorboard", "python -m pip install tensorboard"),
        (WandbSink(), "wandb", "python -m pip install wandb"),
    ],
)
def test_missing_package_prints_its_install_command(
    sink: Sink, package: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    """Without the back end's package, opening says how to install it."""
    monkeypatch.delitem(sys.modules, "distmetrics.sinks.eventfile", raising=False)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=command):
        sink.open(run())
