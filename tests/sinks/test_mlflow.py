from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric_name

import distmetrics as dm
from distmetrics.errors import InvalidValue
from distmetrics.registry import Registry
from distmetrics.sinks import MlflowSink, Run
from distmetrics.sinks.mlflow_names import LONGEST, metric_name
from tests.dashboard.runs import ODD_KEYS
from tests.sinks.records import record

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """MLflow tells of every table that it makes."""
    logging.disable(logging.INFO)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that the tests share, since making one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def written(store: str, identity: str) -> tuple[Any, MlflowClient]:
    """An MLflow run as the store has it."""
    client = MlflowClient(store)
    return client.get_run(identity), client


def opened(store: str, **fields: Any) -> MlflowSink:
    """A sink on the store, open."""
    registry = Registry()
    registry.average("loss", unit="nats", help="cross entropy")
    sink = MlflowSink(store, experiment="tests")
    sink.open(Run(directory=None, name="run", registry=registry, **fields))
    return sink


def test_records_are_read_back(store: str) -> None:
    """Steps, times, values, parameters, texts and the end of the run are in the store."""
    sink = opened(store, config={"model": {"width": 32}, "lr": 0.1}, world_size=4)
    for step in range(3):
        sink.write(record(step, {"loss": step / 2, "n": 2**53 + 1}))
    identity = sink.state()["id"]
    sink.close()
    run, client = written(store, identity)
    history = client.get_metric_history(identity, "loss")
    assert [(one.step, one.value, one.timestamp) for one in history] == [
        (step, step / 2, 1000 * (1000 + step)) for step in range(3)
    ]
    assert run.data.metrics["n"] == 2.0**53
    assert run.data.params == {"model.width": "32", "lr": "0.1"}
    assert run.data.tags["about.loss"] == "cross entropy [nats]"
    assert run.data.tags["world_size"] == "4"
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")


def test_a_resumed_run_goes_on(store: str) -> None:
    """The second attempt writes into the run that the first began."""
    first = opened(store)
    first.write(record(0))
    first.close()
    second = opened(store, state=first.state(), attempt=1)
    second.write(record(1))
    second.close()
    assert second.state() == first.state()
    _, client = written(store, first.state()["id"])
    assert [one.step for one in client.get_metric_history(first.state()["id"], "loss")] == [0, 1]


def test_nan_is_kept(store: str) -> None:
    """A broken run shows as such; SQL has no infinities."""
    sink = opened(store)
    sink.write(record(0, {"loss": math.nan, "inf": math.inf}))
    sink.close()
    run, _ = written(store, sink.state()["id"])
    assert math.isnan(run.data.metrics["loss"])
    assert run.data.metrics["inf"] > 1e308


def test_odd_and_many_keys_are_written(store: str) -> None:
    """More keys than one request takes, and names that MLflow refuses as they are."""
    values = {key: place for place, key in enumerate(ODD_KEYS)}
    sink = opened(store)
    sink.write(record(0, values | {f"key{number}": number for number in range(1100)}))
    sink.close()
    run, _ = written(store, sink.state()["id"])
    assert len(run.data.metrics) == 1100 + len(ODD_KEYS)
    assert {key: run.data.metrics[metric_name(key)] for key in ODD_KEYS} == values


def test_the_store_is_in_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an address nothing leaves the run directory."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with dm.Logger(run_dir=tmp_path / "run", sinks=["mlflow"]) as logger:
        logger.log({"loss": 0.5}, step=0)
    client = MlflowClient(f"sqlite:///{tmp_path / 'run' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("distmetrics")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.metrics == {"loss": 0.5}


def test_no_place_for_the_store_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to give."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(InvalidValue, match="give the logger a run_dir"):
        MlflowSink().open(Run(directory=None, name="run", registry=Registry()))


def original(name: str) -> str:
    """The key that a name was made of."""
    return re.sub(":([0-9a-f]+):", lambda one: chr(int(one[1], 16)), name)


@given(st.text(min_size=1, max_size=30) | st.from_regex(r"[ab./:2e]{1,12}", fullmatch=True))
def test_a_name_is_valid_and_tells_its_key(key: str) -> None:
    """MLflow takes every name, and no two keys share one."""
    name = metric_name(key)
    _validate_metric_name(name)
    assert len(name) <= LONGEST
    if "::" not in name.removesuffix("::") or len(name) < LONGEST - 40:
        assert original(name) == key


def test_long_keys_that_differ_at_the_end_have_different_names() -> None:
    """What is cut off is in the hash."""
    names = {metric_name("x" * 300 + end) for end in "abc"}
    assert len(names) == 3
    assert all(len(name) <= LONGEST for name in names)
