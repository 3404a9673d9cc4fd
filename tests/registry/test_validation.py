"""Wrong declarations, and what their errors say."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from distmetrics.errors import InvalidType, InvalidValue
from distmetrics.registry import Registry

BAD = [
    (lambda r: r.count(3), InvalidType, "registry.count(3): a key is a str"),
    (lambda r: r.count(["a", "b"]), InvalidType, "pass several keys as separate arguments"),
    (lambda r: r.count(None), InvalidType, "not NoneType None"),
    (lambda r: r.count(), InvalidType, "registry.count(): at least one key"),
    (lambda r: r.count(""), InvalidValue, "not empty"),
    (lambda r: r.count("a\nb"), InvalidValue, r"registry.count('a\nb'): 'a\nb' holds '\n'"),
    (lambda r: r.count("a\x00"), InvalidValue, "no control character"),
    (lambda r: r.count("a\ud800"), InvalidValue, "lone surrogate"),
    (lambda r: r.count("val/"), InvalidValue, "'val/*' is all keys under it"),
    (lambda r: r.std("loss", 1), InvalidType, "registry.std(1): a key is a str"),
    (lambda r: r.average("loss", weight=0.5), InvalidType, "weight= is the name of another key"),
    (lambda r: r.average("loss", weight="n_*"), InvalidValue, "weight=: 'n_*' is a pattern"),
    (lambda r: r.average("loss", weight=""), InvalidValue, "registry.average('loss'): weight="),
    (lambda r: r.ratio("acc*", "a", "b"), InvalidValue, "key is computed and never logged"),
    (lambda r: r.ratio("acc", "a*", "b"), InvalidValue, "numerator=: 'a*' is a pattern"),
    (lambda r: r.ratio("acc", None, "b"), InvalidType, "numerator= is the name"),
    (lambda r: r.ratio("acc", "acc", "b"), InvalidValue, "'acc' needs 'acc'"),
    (lambda r: r.rate("speed?", "n"), InvalidValue, "an exact name is needed"),
    (lambda r: r.rate("speed", "n", seconds=2.0), InvalidType, "seconds= is the name"),
    (lambda r: r.rate("speed", "n", per_device=1), InvalidType, "per_device= is True or False"),
    (lambda r: r.std("x", ddof="1"), InvalidType, "registry.std('x'): ddof= is a number, not str"),
    (lambda r: r.std("x", ddof=True), InvalidType, "ddof= is a number, not bool"),
    (lambda r: r.std("x", ddof=-1), InvalidValue, "ddof= is finite and not negative"),
    (lambda r: r.std("x", ddof=float("nan")), InvalidValue, "ddof="),
    (lambda r: r.count("x", nonfinite="drop"), InvalidValue, "'propagate', 'skip', not str 'drop'"),
    (lambda r: r.count("x", nonfinite=None), InvalidType, "nonfinite="),
    (
        lambda r: r.count("x", scaling="linear"),
        InvalidValue,
        "'invariant', 'extensive', 'per_rank'",
    ),
    (lambda r: r.count("x", scaling=np.ones(2)), InvalidType, "scaling="),
    (lambda r: r.count("x", unit=1), InvalidType, "unit= is a str, not int 1"),
    (lambda r: r.count("x", help=None), InvalidType, "help="),
    (lambda r: r.count("x", group=[]), InvalidType, "group="),
    (lambda r: r.count("x", replicated_over="tensor"), InvalidType, "write ('tensor',)"),
    (lambda r: r.count("x", replicated_over=(1,)), InvalidType, "names of mesh dimensions"),
    (lambda r: r.count("x", replicated_over=("a", "a")), InvalidValue, "each once"),
    (lambda r: r.count("x", units="pairs"), InvalidType, "did you mean 'unit'?"),
    (lambda r: r.count("x", weight="n"), InvalidType, "count has no option 'weight'"),
    (lambda r: r.average("x", wieght="n"), InvalidType, "did you mean 'weight'?"),
    (lambda r: r.ignore("x", weight="n"), InvalidType, "ignore has no option 'weight'"),
    (lambda r: r.declare("histogram", ["x"], {}), InvalidType, "histogram needs edges="),
    (lambda r: r.declare("mean", ["x"], {}), InvalidValue, "no reduction 'mean'"),
    (lambda r: r.declare("count", ["x"], {"of": "n"}), InvalidType, "registry.count('x')"),
    (lambda r: r.declare("ratio", ["x"], {}), InvalidType, "numerator= and denominator="),
    (lambda r: r[3], InvalidType, "a key is a str, not int 3"),
    (lambda r: Registry(default="mean"), InvalidValue, "'average', 'count'"),
    (lambda r: Registry(default="ratio"), InvalidValue, "default="),
    (lambda r: Registry(default=None), InvalidType, "'ignore', not NoneType"),
    (lambda r: Registry(strict="yes"), InvalidType, "strict="),
]


@pytest.mark.parametrize(("declare", "error", "text"), BAD)
def test_a_wrong_declaration_is_an_error_that_names_what_is_accepted(
    declare: Callable[[Registry], object], error: type[Exception], text: str
) -> None:
    """Method, key, option, received value and rule are in the message; nothing is declared."""
    registry = Registry()
    with pytest.raises(error, match=re.escape(text)):
        declare(registry)
    assert len(registry) == 0


def test_the_text_of_a_str_of_another_type_counts() -> None:
    """A NumPy string declares the same key as a plain one."""
    registry = Registry()
    registry.count(np.str_("n"))
    assert type(next(iter(registry)).pattern) is str
    assert registry["n"].registered


def test_numpy_numbers_are_numbers() -> None:
    """A ddof out of an array is taken."""
    registry = Registry()
    registry.std("x", ddof=np.int64(1))
    assert registry["x"].reduction.params["ddof"] == 1


@pytest.mark.parametrize(
    "kind", ["count", "total", "average", "minimum", "maximum", "std", "l2_norm", "same"]
)
def test_a_method_declares_names_and_patterns_of_its_kind(kind: str) -> None:
    """One method for each reduction, any number of keys in a call."""
    registry = Registry()
    getattr(registry, kind)("a", "b*", unit="s")
    for key in ("a", "bc"):
        assert registry[key].reduction.kind == kind
        assert registry[key].unit == "s"


def test_options_reach_the_metric() -> None:
    """What was declared comes back from a look-up."""
    registry = Registry()
    registry.average(
        "loss",
        weight="n",
        unit="nats",
        help="cross entropy",
        group="quality",
        replicated_over=("tensor",),
        nonfinite="skip",
        scaling="per_rank",
    )
    metric = registry["loss"]
    assert metric.pattern == "loss"
    assert dict(metric.reduction.params) == {"weight": "n"}
    assert (metric.unit, metric.help, metric.group) == ("nats", "cross entropy", "quality")
    assert metric.replicated_over == ("tensor",)
    assert metric.nonfinite == "skip"
    assert metric.scaling == "per_rank"


def test_a_rate_grows_with_the_ranks_and_everything_else_does_not() -> None:
    """The scaling class is the reduction's own unless it is given."""
    registry = Registry()
    registry.rate("a", "n")
    registry.rate("b", "n", "time", True, scaling="invariant")
    registry.count("n")
    assert [registry[key].scaling for key in "abn"] == ["extensive", "invariant", "invariant"]
    assert dict(registry["b"].reduction.params) == {
        "of": "n",
        "seconds": "time",
        "per_device": True,
    }


def test_iteration_length_and_membership() -> None:
    """A registry is a collection of its declarations; membership asks for keys."""
    registry = Registry()
    registry.count("a", "b*")
    registry.average("loss", weight="n")
    assert [metric.pattern for metric in registry] == ["a", "b*", "loss"]
    assert len(registry) == 3
    assert [key in registry for key in ("a", "bc", "n", "x", 3)] == [True, True, True, False, False]
    assert repr(registry) == "Registry(default='average', strict=False, declarations=3)"
