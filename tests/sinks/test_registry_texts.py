"""What TensorBoard and W&B are told of the keys by the registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_SCALAR

from distmetrics.registry import Registry
from distmetrics.sinks import Run, Sink, TensorBoardSink, WandbSink
from tests.sinks.records import record
from tests.sinks.wandb_log import read_wandb, wandb_files


def write(sink: Sink, directory: Path) -> None:
    """Two records of a logger and one of a child, through `sink`."""
    registry = Registry()
    registry.average("loss", unit="nats", help="cross entropy")
    registry.minimum("best*")
    registry.maximum("max_len", unit="tokens")
    registry.count("num_pairs", unit="pairs")
    config = {"model": {"width": 32}, "lr": 0.1, "none": None}
    sink.open(Run(directory, "run", registry, config))
    values = {"loss": 0.5, "best.loss": 0.25, "max_len": 7, "num_pairs": 3, "other": 1.0}
    sink.write(record(0, values))
    sink.write(record(1, values))
    sink.write(record(1, {"val/loss": 0.75}, logger="val"))
    sink.close()


def test_tensorboard_has_help_and_unit_as_descriptions(tmp_path: Path) -> None:
    """Once a tag, with its first value, in the form that both of its loaders take."""
    write(TensorBoardSink(), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    texts = {tag: one.summary_description for tag, one in events.summary_metadata.items()}
    assert texts["loss"] == texts["val/loss"] == "cross entropy [nats]"
    assert texts["num_pairs"] == "[pairs]"
    assert "other" not in texts
    assert events.summary_metadata["loss"].data_class == DATA_CLASS_SCALAR
    assert [one.value for one in events.Scalars("loss")] == [0.5, 0.5]
    served = plugin_event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    assert served.Reload().SummaryMetadata("loss").summary_description == "cross entropy [nats]"


def test_tensorboard_has_the_configuration_as_hyperparameters(tmp_path: Path) -> None:
    """Flat names, in the run's own file."""
    write(TensorBoardSink(), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    session = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"model.width" in session
    assert b"none" not in session


@pytest.mark.timeout(90)
def test_wandb_has_the_summary_rules_of_the_reductions(tmp_path: Path) -> None:
    """Counts keep their last value as a number, curves their ends as well."""
    write(WandbSink("offline"), tmp_path)
    (file,) = wandb_files(tmp_path)
    log = read_wandb(file)
    found = {key: log.rules[key] for key in log.rules if not key.endswith("step")}
    assert found == {
        "loss": {"min", "max", "last"},
        "best\\.loss": {"min", "last"},
        "max_len": {"max", "last"},
        "num_pairs": set(),
        "other": set(),
        "val/loss": {"min", "max", "last"},
    }


@pytest.mark.timeout(90)
def test_wandb_has_help_and_unit_in_the_configuration(tmp_path: Path) -> None:
    """Beside the user's own entries."""
    write(WandbSink("offline"), tmp_path)
    (file,) = wandb_files(tmp_path)
    config = read_wandb(file).config
    assert config["lr"] == 0.1
    about = config["about_metrics"]
    assert about["loss"] == about["val/loss"] == "cross entropy [nats]"
    assert about["max_len"] == "[tokens]"
