"""The architecture: imports run one way, and importing the package stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import distmetrics

PACKAGE = Path(distmetrics.__file__).parent
COMPONENTS = sorted(
    path.stem
    for path in PACKAGE.iterdir()
    if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
)


def is_type_checking(node: ast.AST) -> bool:
    """Whether a statement is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_of(tree: ast.AST) -> set[str]:
    """The dotted names that a module imports at run time, inside functions too."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif is_type_checking(node):
            assert isinstance(node, ast.If)
            for statement in node.orelse:
                found |= imports_of(statement)
        else:
            found |= imports_of(node)
    return found


@cache
def imports(component: str) -> frozenset[str]:
    """The dotted names that a module or folder of the package imports at run time."""
    folder, file = PACKAGE / component, PACKAGE / f"{component}.py"
    paths = folder.rglob("*.py") if folder.is_dir() else [file]
    return frozenset(
        name for path in paths for name in imports_of(ast.parse(path.read_text(encoding="utf-8")))
    )


def ours(component: str) -> set[str]:
    """The other modules and folders of the package that one of them imports."""
    parts = (name.split(".") for name in imports(component))
    return {name[1] for name in parts if name[0] == "distmetrics" and len(name) > 1} - {component}


def reaches(component: str, prefix: str) -> list[str]:
    """What a module or folder imports below a dotted name."""
    return sorted(
        name for name in imports(component) if name == prefix or name.startswith(f"{prefix}.")
    )


def test_imports_between_components_have_no_cycle() -> None:
    """The modules and folders of the package can be put in an order that all imports follow."""
    graph = {component: ours(component) & set(COMPONENTS) for component in COMPONENTS}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as cycle:
        pytest.fail(f"these import each other in a circle: {' <- '.join(cycle.args[1])}")


@pytest.mark.parametrize("component", COMPONENTS)
def test_inner_modules_do_not_import_the_public_face(component: str) -> None:
    """Only the demo imports the package as users do; the rest imports where a name stands."""
    used = [name for name in imports(component) if name == "distmetrics"]
    assert component == "demo" or not used


@pytest.mark.parametrize(
    ("component", "allowed"),
    [
        ("errors", set()),
        ("record", set()),
        ("exact", {"errors"}),
        ("comm", {"errors"}),
        ("reductions", {"exact", "errors"}),
        ("registry", {"reductions", "errors"}),
        ("sinks", {"record", "errors"}),
    ],
)
def test_lower_layers_know_only_what_lies_below(component: str, allowed: set[str]) -> None:
    """Set-up knows no metrics, sinks know only records, the algebra knows only exact sums."""
    assert ours(component) <= allowed


@pytest.mark.parametrize("component", ["exact", "reductions", "registry", "record", "sinks"])
def test_the_algebra_and_the_sinks_know_no_process_group(component: str) -> None:
    """What a key means and where records go does not depend on torch.distributed."""
    assert reaches(component, "torch.distributed") == []


@pytest.mark.parametrize("component", ["exact", "registry", "record"])
def test_declarations_and_exact_sums_know_no_torch(component: str) -> None:
    """Sums, records and declarations are plain Python and NumPy."""
    assert reaches(component, "torch") == []


@pytest.mark.parametrize("component", ["runs", "audit", "dashboard"])
def test_readers_of_runs_know_no_logger(component: str) -> None:
    """Runs are read back from files alone, foreign ones as well as our own."""
    assert ours(component).isdisjoint({"logger", "worker", "exchange", "window", "comm"})


@pytest.mark.parametrize("component", COMPONENTS)
def test_nobody_imports_the_command_line(component: str) -> None:
    """The command line stands above everything else."""
    assert "cli" not in ours(component)


def test_importing_the_package_imports_no_sink_and_no_extra() -> None:
    """``import distmetrics`` leaves sinks' packages and optional packages alone."""
    heavy = {"wandb", "tensorboard", "sklearn", "rich", "psutil", "click"}
    script = f"import sys, distmetrics; print(sorted({heavy!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"


def test_all_lists_every_public_name() -> None:
    """``__all__`` holds each public name that is no module, and nothing that is not there."""
    public = {
        name
        for name, value in vars(distmetrics).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    listed = set(distmetrics.__all__)
    assert len(listed) == len(distmetrics.__all__)
    assert public <= listed
    assert all(hasattr(distmetrics, name) for name in listed)
