"""Ready sets of declarations."""

import pytest

from distmetrics import presets
from distmetrics.registry import Registry


@pytest.mark.parametrize("suffix", presets.MATCHING_COUNT_SUFFIXES)
def test_every_key_that_ends_in_a_matching_suffix_is_a_count(suffix: str) -> None:
    """Bare, prefixed by a head or a child, and in a child's call; described for charts."""
    registry = Registry()
    presets.matching_counts(registry)
    metrics = [registry[key] for key in (suffix, f"val/{suffix}", f"head0_{suffix}")]
    metrics.append(registry.resolve(f"aux_{suffix}", "val/"))
    for metric in metrics:
        assert metric.reduction.kind == "count"
        assert metric.group == "matching"
        assert metric.unit
        assert metric.help
    assert not registry[f"{suffix}_mean"].registered


def test_the_suffixes_are_those_of_matching_models() -> None:
    """The five names are a contract."""
    assert presets.MATCHING_COUNT_SUFFIXES == (
        "num_pairs",
        "queries_total",
        "gt_instances_total",
        "unmatched_queries",
        "unmatched_gt",
    )


def test_names_of_ones_own_win_over_a_preset() -> None:
    """A preset holds patterns only."""
    registry = Registry()
    presets.matching_counts(registry)
    registry.average("num_pairs")
    assert registry["num_pairs"].reduction.kind == "average"
    assert registry["val/num_pairs"].reduction.kind == "count"
