from __future__ import annotations

from pathlib import Path

import pytest

import distmetrics as dm
from distmetrics.dashboard import Board, Chart, Section, Subject, Template, arrange, load_template
from distmetrics.dashboard import subject_of as subject_at
from distmetrics.dashboard.automatic import automatic_template
from distmetrics.errors import InvalidValue
from distmetrics.sinks.described import Description


def board_of(subject: Subject, *charts: Chart) -> Board:
    """The board of one section with some charts."""
    return arrange([Template("T", (Section("S", charts),))], subject)


def subject_of(*keys: str, **descriptions: Description) -> Subject:
    """A subject that has logged these keys."""
    known = {key: descriptions.get(key, Description()) for key in keys}
    return Subject("run", known, logged=frozenset(keys))


def test_a_chart_without_a_key_is_reported_and_stays() -> None:
    """A layout with losses and accuracies of a run that has losses only says so of the latter."""
    board = board_of(
        subject_of("loss/ce", "loss/l2"), Chart("loss", ("loss/*",)), Chart("acc", ("acc/*",))
    )
    loss, acc = board.rows[0].panels
    assert [key.name for key in loss.keys] == ["loss/ce", "loss/l2"]
    assert (acc.title, acc.keys, acc.patterns) == ("acc", (), ("acc/*",))
    assert board.problems == ("T: chart 'acc' is empty: no key matches acc/*",)


def test_children_are_drawn_with_their_logger() -> None:
    """``loss`` takes in ``val/loss``; what is left out is left out there too."""
    board = board_of(
        subject_of("loss", "val/loss", "aux_loss", "val/aux_loss"),
        Chart("loss", ("loss", "*_loss"), without=("aux_loss",)),
    )
    assert [key.name for key in board.rows[0].panels[0].keys] == ["loss", "val/loss"]


def test_a_unit_that_all_keys_share_is_in_the_title() -> None:
    """Panels say what they measure."""
    nats, bits = Description(unit="nats"), Description(unit="bits")
    subject = Subject("run", {"a": nats, "b": nats, "c": bits})
    same = board_of(subject, Chart("t", ("a", "b"))).rows[0].panels[0]
    mixed = board_of(subject, Chart("t", ("a", "c"))).rows[0].panels[0]
    assert (same.title, mixed.title) == ("t [nats]", "t")


def test_each_axis_is_a_panel() -> None:
    """A chart by step and by tokens is two panels, the second by the key that matches."""
    subject = subject_of("loss", "tokens_seen", tokens_seen=Description("axis", "tokens"))
    board = board_of(subject, Chart("loss", ("loss",), x=("step", "*tokens_seen", "time")))
    panels = board.rows[0].panels
    assert [panel.axis.label for panel in panels] == ["step", "tokens_seen [tokens]", "time"]
    assert [panel.title for panel in panels] == ["loss", "loss by tokens_seen", "loss by time"]


def test_an_axis_that_no_key_matches_is_reported() -> None:
    """The panel by step is drawn nevertheless."""
    board = board_of(subject_of("loss"), Chart("loss", ("loss",), x=("*tokens_seen",)))
    assert [panel.axis.kind for panel in board.rows[0].panels] == ["step"]
    assert board.problems == ("T: chart 'loss' is not drawn by *tokens_seen: no key matches it",)


def test_a_chart_for_each_key() -> None:
    """With `each` every key has a panel, titled by its name."""
    board = board_of(subject_of("a", "b"), Chart("all", ("*",), each=True))
    assert [panel.title for panel in board.rows[0].panels] == ["a", "b"]


def test_spreads_pair_the_smallest_with_the_largest() -> None:
    """A band needs both ends; a key with one of them alone is none."""
    subject = subject_of("mem/min", "mem/max", "mem/rank0", "time/min")
    board = board_of(subject, Chart("spread", ("mem", "time"), draw="spread"))
    (panel,) = board.rows[0].panels
    assert [(low.name, high.name) for low, high in panel.spreads] == [("mem/min", "mem/max")]


def test_a_registrys_pattern_meets_a_templates() -> None:
    """Without a run only patterns are known: a wider one is drawn, of a narrower one the name."""
    subject = Subject("registry", {}, patterns={"*num_pairs": Description(unit="pairs")})
    wide = board_of(subject, Chart("t", ("*pairs*",))).rows[0].panels[0]
    narrow = board_of(subject, Chart("t", ("head0_num_pairs",))).rows[0].panels[0]
    assert [(key.name, key.pattern) for key in wide.keys] == [("*num_pairs", True)]
    assert [(key.name, key.pattern) for key in narrow.keys] == [("head0_num_pairs", False)]


def test_nothing_to_arrange_is_an_error() -> None:
    """An empty subject makes no empty dashboard."""
    with pytest.raises(InvalidValue, match="has no keys yet"):
        board_of(Subject("run", {}), Chart("t", ("a",)))


def test_several_templates_are_told_apart() -> None:
    """Sections of one name from two templates bear their templates' titles."""
    templates = [load_template("training"), load_template("language-model")]
    titles = [row.title for row in arrange(templates, subject_of("loss")).rows]
    assert "Training: Optimizer" in titles
    assert "Language model: Optimizer" in titles


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("training", "loss val/loss accuracy lr grad_norm"),
        ("language-model", "loss ppl tokens_seen tokens_per_second grad_norm lr"),
        (
            "detection",
            (
                "num_pairs queries_total gt_instances_total unmatched_queries unmatched_gt"
                " unmatched_queries_ratio unmatched_gt_ratio matched_gt_ratio"
            ),
        ),
        (
            "health",
            (
                "memory/min memory/max memory/argmax memory/rank0 step_time/min step_time/max"
                " step_time/argmax step_time/rank0 loss/nonfinite stats/queued stats/dropped"
                " stats/written stats/waited_s"
            ),
        ),
        ("scaling-audit", "loss"),
    ],
)
def test_a_ready_template_has_no_empty_chart_for_the_keys_it_is_made_for(
    name: str, keys: str
) -> None:
    """Every chart of the five templates draws something of such a model."""
    board = arrange([load_template(name)], subject_of(*keys.split()))
    assert board.problems == ()
    drawn = {key.name for key in board.keys}
    assert drawn == set(keys.split())


def test_the_automatic_template_draws_every_key_once() -> None:
    """Each group is a section, each name a chart, and no key is on two."""
    group = Description("average", group="quality")
    ranks = Description("per_rank", group="memory")
    keys = {
        "loss": group,
        "val/loss": group,
        "a/b/loss": Description(),
        "mem/rank0": ranks,
        "mem/rank1": ranks,
        "acc[0]": Description(),
        "loss/nonfinite": Description("count"),
    }
    subject = Subject("run", keys, logged=frozenset(keys))
    board = arrange([automatic_template(subject)], subject)
    panels = {
        panel.title: [key.name for key in panel.keys] for row in board.rows for panel in row.panels
    }
    assert panels == {
        "loss": ["loss", "val/loss"],
        "mem": ["mem/rank0", "mem/rank1"],
        "a/b/loss": ["a/b/loss"],
        "acc[0]": ["acc[0]"],
        "non-finite values": ["loss/nonfinite"],
    }
    assert [row.title for row in board.rows] == ["quality", "memory", "other", "non-finite"]


def test_the_loggers_own_statistics_are_drawn(tmp_path: Path) -> None:
    """What `stats` returns can be logged as it is, and the health template finds it."""
    registry = dm.Registry()
    registry.same("stats/*")
    with dm.Logger(registry, run_dir=tmp_path / "run") as logger:
        for step in range(3):
            logger.log({"loss": 1.0, "stats": logger.stats()}, step=step)
    board = arrange([load_template("health")], subject_at(tmp_path / "run"))
    (row,) = [row for row in board.rows if row.title == "Logger"]
    assert all(panel.keys for panel in row.panels)
