"""Registries as files: what is written reads back as it was, and errors give line and key."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import distmetrics as dm
from distmetrics.cli import main

_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Zl", "Zp")), max_size=12)
_KEYS = _TEXT.filter(lambda text: text and not text.endswith("/"))
_NAMES = _KEYS.filter(lambda text: "*" not in text and "?" not in text)
_DESCRIBED = st.fixed_dictionaries(
    {},
    optional={
        "unit": _TEXT,
        "help": _TEXT,
        "group": _TEXT,
        "replicated_over": st.lists(_TEXT.filter(bool), max_size=2, unique=True).map(tuple),
        "nonfinite": st.sampled_from(["propagate", "skip"]),
        "scaling": st.sampled_from(["invariant", "extensive", "per_rank"]),
    },
)
_KINDS = st.one_of(
    st.tuples(
        st.sampled_from(
            ["count", "total", "axis", "minimum", "l2_norm", "same", "per_rank", "ignore"]
        ),
        st.just({}),
    ),
    st.tuples(st.just("average"), st.fixed_dictionaries({}, optional={"weight": _NAMES})),
    st.tuples(
        st.just("std"),
        st.fixed_dictionaries(
            {"ddof": st.one_of(st.integers(0, 9), st.floats(0, 1e300))}, optional={"weight": _NAMES}
        ),
    ),
    st.tuples(
        st.just("ratio"), st.fixed_dictionaries({"numerator": _NAMES, "denominator": _NAMES})
    ),
    st.tuples(
        st.just("rate"),
        st.fixed_dictionaries(
            {"of": _NAMES}, optional={"seconds": _NAMES, "per_device": st.booleans()}
        ),
    ),
    st.tuples(
        st.just("histogram"),
        st.fixed_dictionaries({"edges": st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=5)}),
    ),
    st.tuples(
        st.just("quantiles"),
        st.fixed_dictionaries({"qs": st.lists(st.floats(0, 1), min_size=1, max_size=4)}),
    ),
    st.tuples(
        st.just("derived"),
        st.fixed_dictionaries({"expression": st.sampled_from(["exp(a)", '"x y" / b', "1e-05*c"])}),
    ),
)


@given(
    st.sampled_from(["average", "count", "ignore"]),
    st.booleans(),
    st.lists(st.tuples(_KEYS, _KINDS, _DESCRIBED), max_size=6),
)
def test_every_registry_reads_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory,
    default: str,
    strict: bool,
    declared: list[tuple[str, tuple[str, dict[str, Any]], dict[str, Any]]],
) -> None:
    """Any keys, kinds, options and descriptions, in the same order."""
    registry = dm.Registry(default, strict)
    for key, (kind, params), described in declared:
        try:
            registry.declare(kind, [key], params, **described)
        except dm.DistmetricsError:
            continue  # it contradicts an earlier one
    file = tmp_path_factory.getbasetemp() / "registry.toml"
    file.write_text(registry.to_toml(), encoding="utf-8")
    again = dm.Registry.from_toml(file)
    assert again.declarations() == registry.declarations()
    assert (again.default, again.strict) == (default, strict)
    assert again.fingerprint() == registry.fingerprint()


_FILE = """\
# what the loop logs
default = "count"
strict = false

[metrics]
loss = {reduction = "average", weight = "num_tokens", unit = "nats"}
"*num_pairs" = {reduction = "count", group = "matching"}
perplexity = {reduction = "derived", expression = "exp(loss)"}

[metrics."val/acc"]
reduction = "ratio"
numerator = "hits"
denominator = "n"
"""


def read(tmp_path: Path, text: str) -> dm.Registry:
    """The registry that a file with this text holds."""
    file = tmp_path / "registry.toml"
    file.write_text(text, encoding="utf-8")
    return dm.Registry.from_toml(file)


def test_a_file_may_be_written_by_hand(tmp_path: Path) -> None:
    """Comments, inline tables and tables are all the same to it."""
    registry = read(tmp_path, _FILE)
    assert [str(metric) for metric in registry] == [
        "average(weight='num_tokens')",
        "count()",
        "derived(expression='exp(loss)')",
        "ratio(numerator='hits', denominator='n')",
    ]
    assert str(registry["anything"]) == "count()"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'loss = {reduction = "average"',
            'loss = {reduction = "averag"',
            "line 6: key 'loss'.*'averag'",
        ),
        ('unit = "nats"', "unit = 3", "line 6: key 'loss'.*unit="),
        ('unit = "nats"', 'units = "nats"', "line 6: key 'loss'.*units"),
        ('"exp(loss)"', '"os.system(loss)"', "line 8: key 'perplexity'.*'os.system"),
        ('numerator = "hits"\n', "", "line 10: key 'val/acc'.*numerator="),
        ('reduction = "ratio"\n', "", "line 10: key 'val/acc' is a table with a reduction"),
        ('"*num_pairs" = {', '"a=b" = 3\n"*num_pairs" = {', "line 7: key 'a=b'"),
        ("loss = {", "val.loss = {", "line 6: key 'val'.*\"val.loss\""),
        ('default = "count"', 'default = "sum"', "default="),
        ("strict = false", "strict = false\nlax = true", "line 4: 'lax'"),
        ("[metrics]", "[metric]", "line 5: 'metric'"),
        ("strict = false", "strict = = false", "line 3: "),
        ("perplexity = {reduction", "loss = {reduction", "line 8: .*loss.*already"),
        (
            'expression = "exp(loss)"',
            'function = "os.system"',
            "line 8: key 'perplexity' has the option function=str 'os.system', which a file cannot",
        ),
        ("weight = ", "wieght = ", "line 6: key 'loss'.*'wieght'; did you mean 'weight'"),
        ('unit = "nats"', 'untis = "nats"', "line 6: key 'loss'.*'untis'; did you mean 'unit'"),
        ('"count", group', '"ignore", weight', "line 7: .*ignore has no option 'weight'"),
        ('numerator = "hits"', 'numertor = "hits"', "line 10.*did you mean 'numerator'"),
        ('"average", weight = "num_tokens"', '"rate"', "line 6: key 'loss'.*rate needs of="),
        ('denominator = "n"\n', "x = {y = 1", "line 13: the text ends within a declaration"),
        ('denominator = "n"\n', 'x = "n', "line 13: the text ends within a declaration"),
    ],
)
def test_an_error_gives_file_line_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    """What is wrong is found in the file without reading all of it."""
    assert old in _FILE
    with pytest.raises(dm.DistmetricsError, match=rf"registry\.toml.*{said}"):
        read(tmp_path, _FILE.replace(old, new))


def test_a_text_of_another_encoding_gives_file_and_line(tmp_path: Path) -> None:
    """Latin-1, say, which an old editor has written."""
    file = tmp_path / "registry.toml"
    file.write_bytes('[metrics]\n"größe" = {reduction = "average"}'.encode("latin-1"))
    with pytest.raises(dm.errors.InvalidValue, match=r"registry\.toml, line 2: .*UTF-8.*xf6"):
        dm.Registry.from_toml(file)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """The error is that of opening a file."""
    with pytest.raises(FileNotFoundError):
        dm.Registry.from_toml(tmp_path / "nowhere.toml")


def test_a_function_cannot_be_written() -> None:
    """The message names the key and says what can be."""
    registry = dm.Registry()
    registry.derived("ppl", lambda values: math.exp(values["loss"]))
    with pytest.raises(dm.DistmetricsError, match=r"'ppl'.*expression"):
        registry.to_toml()


def test_show_lists_every_key(tmp_path: Path) -> None:
    """Key, reduction, unit, group, scaling class; keys that others need; the rule for the rest."""
    (tmp_path / "registry.toml").write_text(_FILE, encoding="utf-8")
    shown = CliRunner().invoke(main, ["show", "--registry", str(tmp_path / "registry.toml")])
    assert shown.exit_code == 0
    for text in (
        *("loss", "average(weight='num_tokens')", "nats", "matching", "invariant"),
        *("*num_pairs", "perplexity", "num_tokens", "needed by loss", "any other key: count"),
    ):
        assert text in shown.output


def test_show_reads_the_registry_of_a_run(tmp_path: Path) -> None:
    """A ``run.json`` says what its run declared."""
    registry = dm.Registry(strict=True)
    registry.rate("tokens_s", of="tokens")
    with dm.Logger(registry, tmp_path) as logger:
        logger.log({"tokens": 3}, step=0)
    shown = CliRunner().invoke(main, ["show", "--registry", str(tmp_path / "run.json")])
    assert "rate(of='tokens')" in shown.output
    assert "extensive" in shown.output
    assert "any other key is an error" in shown.output


@pytest.mark.parametrize("text", ["{}", "[", '{"registry": []}'])
def test_show_says_what_is_no_registry(tmp_path: Path, text: str) -> None:
    """Another JSON file is an error that names it, no traceback."""
    (tmp_path / "other.json").write_text(text)
    shown = CliRunner().invoke(main, ["show", "--registry", str(tmp_path / "other.json")])
    assert shown.exit_code == 1
    assert "other.json is no run.json" in shown.output
