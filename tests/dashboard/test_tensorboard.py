from __future__ import annotations

import re
from itertools import chain
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from distmetrics.dashboard import Subject, arrange, load_template, subject_of
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.dashboard.tensorboard import FOLDER, left_out, write_layout
from distmetrics.errors import RunDirError
from distmetrics.runs import open_run
from distmetrics.sinks.described import Description
from tests.dashboard.runs import ODD_KEYS, write_odd_run, write_run


def layout_in(folder: Path) -> layout_pb2.Layout:
    """The layout that TensorBoard finds in a folder."""
    events = EventAccumulator(str(folder)).Reload()
    (tensor,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout()
    layout.ParseFromString(tensor.tensor_proto.string_val[0])
    return layout


def write(run: Path, *templates: str) -> layout_pb2.Layout:
    """The layout of a run by some templates, written and read back."""
    subject = subject_of(run)
    chosen = [load_template(name) for name in templates] or [automatic_template(subject)]
    write_layout(arrange(chosen, subject), run / FOLDER, subject.config)
    return layout_in(run / FOLDER)


def test_the_layout_has_the_templates_charts(tmp_path: Path) -> None:
    """Categories, titles with units, and one expression for each key."""
    layout = write(write_run(tmp_path / "run", steps=10), "training")
    assert [category.title for category in layout.category] == ["Learning", "Optimizer"]
    chart = layout.category[0].chart[0]
    assert chart.title == "loss [nats]"
    assert list(chart.multiline.tag) == [r"^loss$", r"^val\/loss$"]


def test_the_layout_is_a_run_of_its_own(tmp_path: Path) -> None:
    """The run's own folder keeps one event file, which a live TensorBoard follows."""
    run = write_run(tmp_path / "run", steps=10, sinks=["tensorboard"])
    write(run)
    write(run)
    assert len(list((run / "tensorboard").glob("events*"))) == 1
    assert len(list((run / FOLDER).iterdir())) == 1
    assert open_run(run / "tensorboard").warnings == []


def test_an_expression_finds_its_key_alone(tmp_path: Path) -> None:
    """TensorBoard takes an expression for the beginning of a tag; odd keys mean themselves."""
    layout = write(write_odd_run(tmp_path / "run"))
    expressions = [
        tag
        for category in layout.category
        for chart in category.chart
        for tag in chart.multiline.tag
    ]
    assert len(expressions) == len(ODD_KEYS)
    found = {one: [key for key in ODD_KEYS if re.match(one, key)] for one in expressions}
    assert sorted(chain.from_iterable(found.values())) == sorted(ODD_KEYS)


def test_a_chart_without_keys_waits_for_them(tmp_path: Path) -> None:
    """A live run may log its first accuracy later: the chart is there, by the patterns."""
    subject = Subject("run", {"loss": Description()})
    write_layout(arrange([load_template("training")], subject), tmp_path, {})
    chart = layout_in(tmp_path).category[0].chart[1]
    assert any(re.match(tag, "val/top5_accuracy") for tag in chart.multiline.tag)
    assert not any(re.match(tag, "accuracy/nonfinite") for tag in chart.multiline.tag)


def test_a_spread_is_a_band(tmp_path: Path) -> None:
    """Memory from the smallest to the largest rank is drawn between both."""
    keys = {"memory/min": Description(), "memory/max": Description()}
    write_layout(arrange([load_template("health")], Subject("run", keys)), tmp_path, {})
    chart = layout_in(tmp_path).category[1].chart[0]
    (band,) = chart.margin.series
    assert (band.value, band.lower, band.upper) == ("memory/max", "memory/min", "memory/max")


def test_units_and_help_are_on_the_page_of_texts(tmp_path: Path) -> None:
    """What the keys mean stands beside the charts, with the charts that are empty."""
    run = write_run(tmp_path / "run", steps=10)
    write(run, "language-model")
    (text,) = EventAccumulator(str(run / FOLDER)).Reload().Tensors("metrics/text_summary")
    content = text.tensor_proto.string_val[0].decode()
    assert "| loss | nats | cross entropy of a sample | quality |" in content
    assert "perplexity" in content


def test_panels_by_another_axis_are_reported(tmp_path: Path) -> None:
    """TensorBoard draws by step only: what it cannot draw is said."""
    subject = subject_of(write_run(tmp_path / "run", steps=10))
    board = arrange([load_template("language-model")], subject)
    write_layout(board, tmp_path, {})
    said = left_out(board)
    assert any("'loss [nats] by tokens_seen' is left out" in one for one in said)
    titles = [chart.title for category in layout_in(tmp_path).category for chart in category.chart]
    assert "loss [nats] by tokens_seen" not in titles


def test_hyperparameters_come_from_the_configuration(tmp_path: Path) -> None:
    """The run's file holds their values, the layout which there are."""
    run = write_run(tmp_path / "run", steps=10, sinks=["tensorboard"])
    write(run)
    run_metadata = EventAccumulator(str(run / "tensorboard")).Reload().summary_metadata
    layout_metadata = EventAccumulator(str(run / FOLDER)).Reload().summary_metadata
    session = run_metadata["_hparams_/session_start_info"].plugin_data.content
    experiment = layout_metadata["_hparams_/experiment"].plugin_data.content
    assert all(name in session for name in (b"model.width", b"cnn", b"lr"))
    assert all(name in experiment for name in (b"model.width", b"val/loss", b"cross entropy"))


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The message names the folder."""
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    board = arrange([load_template("training")], Subject("run", {"loss": Description()}))
    with pytest.raises(RunDirError, match="cannot be written"):
        write_layout(board, blocked / "layout", {})
