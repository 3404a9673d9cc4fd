from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomlkit

from distmetrics.dashboard import load_template, template_names
from distmetrics.dashboard.template import parse_template
from distmetrics.errors import InvalidType, InvalidValue

CHART: dict[str, Any] = {"title": "loss", "keys": ["loss"]}


def template(**chart: Any) -> dict[str, Any]:
    """A template with one chart."""
    return {"title": "T", "section": [{"title": "S", "chart": [CHART | chart]}]}


def test_the_ready_templates_are_those_that_are_documented() -> None:
    """Each of the five can be loaded by its name."""
    names = ["detection", "health", "language-model", "scaling-audit", "training"]
    assert template_names() == names
    assert all(load_template(name).sections for name in names)


def test_the_wheel_holds_every_template() -> None:
    """In an installed package they are beside the code."""
    checkout = Path(__file__).parents[2]
    project = tomlkit.parse((checkout / "pyproject.toml").read_text(encoding="utf-8")).unwrap()
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {
        f"dashboards/{name}.toml": f"distmetrics/dashboard/templates/{name}.toml"
        for name in template_names()
    }


def test_a_template_of_ones_own_is_named_by_its_file(tmp_path: Path) -> None:
    """Any TOML file can be a template."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "Mine"\n[[section]]\ntitle = "S"\n[[section.chart]]\ntitle = "c"\n'
        'keys = "loss*"\nexcept = ["loss_scale"]\nx = ["step", "*tokens"]\nscale = "log"\n'
        'draw = "points"\neach = true\ntext = "why"\n',
        encoding="utf-8",
    )
    loaded = load_template(str(path))
    chart = loaded.sections[0].charts[0]
    assert (loaded.title, loaded.name) == ("Mine", "mine")
    assert chart.keys == ("loss*",)
    assert chart.without == ("loss_scale",)
    assert chart.x == ("step", "*tokens")
    assert (chart.scale, chart.draw, chart.each, chart.text) == ("log", "points", True, "why")


@pytest.mark.parametrize(
    ("written", "error", "says"),
    [
        ({"section": []}, InvalidValue, "title"),
        ({"title": "T"}, InvalidValue, "[[section]]"),
        ({"title": "T", "section": [{"title": "S"}]}, InvalidValue, "section 1|[[chart]]"),
        (template(keys=[]), InvalidValue, "chart 1|keys"),
        (template(keys=["a", 3]), InvalidType, "keys is a list of texts|3"),
        (template(keys=["a", ""]), InvalidValue, "empty text"),
        (template(scale="cubic"), InvalidValue, "scale is one of 'linear', 'log'|'cubic'"),
        (template(draw="pie"), InvalidValue, "'line', 'points', 'spread'"),
        (template(each="yes"), InvalidType, "each is true or false"),
        (template(colour="red"), InvalidValue, "'colour' is not known here"),
        (template(title=""), InvalidValue, "title is empty"),
        ({**template(), "tilte": "x"}, InvalidValue, "'tilte'"),
        ({"title": "T", "section": [3]}, InvalidType, "a table is needed"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    written: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The message has the file, the chart, the entry and the rule."""
    with pytest.raises(error) as caught:
        parse_template(written, "mine.toml")
    assert all(part in str(caught.value) for part in ("mine.toml", *says.split("|")))


def test_an_unknown_name_lists_those_there_are() -> None:
    """A typo is answered by the names."""
    with pytest.raises(InvalidValue, match=r"'trainig' is not known.*'training'"):
        load_template("trainig")


@pytest.mark.parametrize(("content", "says"), [(b"a = ", "no TOML"), (b"\xff", "no TOML")])
def test_a_file_that_is_no_toml_is_an_error(tmp_path: Path, content: bytes, says: str) -> None:
    """Whatever the file holds, the message names it."""
    path = tmp_path / "torn.toml"
    path.write_bytes(content)
    with pytest.raises(InvalidValue, match=says) as caught:
        load_template(str(path))
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    """A path that leads nowhere is named."""
    with pytest.raises(InvalidValue, match="cannot be read: No such file"):
        load_template(str(tmp_path / "none.toml"))
