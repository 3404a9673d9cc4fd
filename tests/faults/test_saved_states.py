"""What `load_state_dict` takes: whole states as `state_dict` returns them, and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.testing import MemorySink
from distmetrics.window.labels import NEVER
from distmetrics.worker.saved import check

_Path = tuple[Any, ...]
_FREE = {"version", "params", "nonfinite", "replicated_over"}
"""Fields that are checked as a whole, or say nothing when a state is loaded."""
_FIELDS = {
    *("streams", "every", "watermark", "latest", "unnamed", "steps", "seconds", "totals", "open"),
    *("late", "keys", "declaration", "state", "reduction", "params"),
    *("units", "lo", "counters", "maxes", "tallies"),
}


def _registry() -> dm.Registry:
    registry = dm.Registry()
    registry.total("seen")
    registry.axis("samples")
    registry.average("loss", weight="tokens")
    registry.std("spread")
    registry.maximum("worst")
    registry.same("lr")
    registry.histogram("lengths", edges=[0, 1, 2])
    registry.quantiles("latency", qs=[0.5])
    registry.per_rank("memory")
    registry.rate("speed", of="tokens")
    registry.ratio("acc", "right", "seen")
    return registry


def _outputs(step: int) -> dict[str, Any]:
    return {
        "seen": 3,
        "samples": 1 << 70,
        "loss": [1e-300, -2.5e200],
        "tokens": [1, 2],
        "spread": [0.1, float("nan")],
        "worst": -1e9,
        "lr": 0.1,
        "lengths": [0.5, 7.0, -1.0],
        "latency": [0.001, 20.0, 0.0],
        "memory": step,
        "right": 2,
    }


@pytest.fixture
def state(taken: dict[str, Any]) -> dict[str, Any]:
    """A state that a test may change."""
    return copy.deepcopy(taken)


@pytest.fixture(scope="module")
def taken() -> dict[str, Any]:
    """A state with totals, an open window with a late step, and a child with both."""
    with dm.Logger(_registry(), every=4, on_step_regress="accept") as logger:
        for step in (*range(6), 2):
            logger.log(_outputs(step), step=step)
        val = logger.child("val")
        val.log(_outputs(0))
        val.flush()
        val.log(_outputs(0))
        return logger.state_dict()


def _fields(value: Any, path: _Path = ()) -> Iterator[_Path]:
    """Every place in a state; of long lists the first elements."""
    if path:
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, part in inner:
        if isinstance(part, dict | list):
            yield from _fields(part, (*path, key))
        else:
            yield (*path, key)


def _holder(state: Any, path: _Path) -> Any:
    for key in path[:-1]:
        state = state[key]
    return state


def test_states_are_taken_as_they_are_returned(state: dict[str, Any]) -> None:
    """With every reduction, also after a way through JSON."""
    check(state)
    check(json.loads(json.dumps(state)))


def test_a_field_that_is_missing_is_named(state: dict[str, Any]) -> None:
    """Of the state, its streams, their totals and what they had open."""
    fields = [path for path in _fields(state) if path[-1] in _FIELDS]
    assert {path[-1] for path in fields} == _FIELDS
    for path in fields:
        holder, name = _holder(state, path), path[-1]
        was = holder.pop(name)
        with pytest.raises(InvalidValue, match=f" has no '{name}', so that it is no whole"):
            check(state)
        holder[name] = was


@pytest.mark.parametrize("value", ["no value", -(1 << 80), [[None]]])
def test_a_field_that_holds_anything_else_is_named(state: dict[str, Any], value: object) -> None:
    """Whatever it is: nothing but an error that says which field it is."""
    fields = [path for path in _fields(state) if not _FREE & set(path)]
    assert len(fields) > 200
    for path in fields:
        holder = _holder(state, path)
        was, holder[path[-1]] = holder[path[-1]], value
        with pytest.raises(InvalidValue, match="load_state_dict") as caught:
            check(state)
        holder[path[-1]] = was
        names = [key for key in path if isinstance(key, str)]
        assert names[-1] in str(caught.value), path


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("watermark", NEVER, "a rank had closed when this state was taken"),
        ("watermark", -1, "is -1, where a state has the label that comes next"),
        ("latest", 1 << 70, "where a state has a step, or -1"),
        ("steps", [[4, 6], [5, 9]], r"rising runs \[first, last\] of steps"),
        ("seconds", float("nan"), "is nan, where a state has seconds"),
        ("every", 0, "is 0, where a state has None or steps from 1 on"),
    ],
)
def test_impossible_fields_are_refused(
    state: dict[str, Any], field: str, value: Any, text: str
) -> None:
    """With the field and the rule; the logger begins anew as if nothing had been loaded."""
    state["streams"][""][field] = value
    memory = MemorySink()
    with dm.Logger(_registry(), sinks=[memory], every=4) as logger:
        with pytest.raises(InvalidValue, match=text) as caught:
            logger.load_state_dict(state)
        assert f"streams[''][{field!r}] is " in str(caught.value)
        logger.log({"seen": 3})
    assert [(record.step, record.values) for record in memory.records] == [(0, {"seen": 3})]
