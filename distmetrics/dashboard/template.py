"""A dashboard template: which charts belong together, in terms of patterns of keys.

A template is a TOML file::

    title = "Training"
    text = "Loss and learning rate."

    [[section]]
    title = "Loss"

    [[section.chart]]
    title = "loss"
    keys = ["loss", "*_loss"]       # what is drawn; patterns as in a registry
    except = ["aux_loss"]           # what is not, although it matches
    x = ["step", "*tokens_seen"]    # one panel for each axis
    scale = "log"

A pattern matches a key as a whole or from behind one of its slashes, so that ``loss`` draws
``val/loss`` as well; ``/loss`` is the whole key alone. Counts of non-finite values
(``loss/nonfinite``) match only patterns that name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import tomlkit

from distmetrics.errors import InvalidType, InvalidValue

Scale = Literal["linear", "log"]
Draw = Literal["line", "points", "spread"]

STEP, TIME = "step", "time"
"""The axes that every run has; any other axis is a pattern of keys."""


@dataclass(frozen=True)
class Chart:
    """One chart of a template.

    Attributes:
        title: its heading.
        keys: patterns of the keys that it draws.
        without: patterns of keys that it leaves out (``except`` in the file).
        x: its axes, "step", "time" or patterns of keys; one panel for each.
        scale: "linear" or "log", of the values.
        draw: "line"; "points", for values that jump; "spread": for each key ``k`` the band between
            ``k/min`` and ``k/max``.
        each: whether every key gets a panel of its own.
        text: a sentence shown with it.
    """

    title: str
    keys: tuple[str, ...]
    without: tuple[str, ...] = ()
    x: tuple[str, ...] = (STEP,)
    scale: Scale = "linear"
    draw: Draw = "line"
    each: bool = False
    text: str = ""


@dataclass(frozen=True)
class Section:
    """Charts under one heading."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True)
class Template:
    """A whole dashboard, before it meets a run's keys."""

    title: str
    sections: tuple[Section, ...]
    text: str = ""
    name: str = field(default="", compare=False)


def template_names() -> list[str]:
    """The names of the templates that come with the package."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_template(name: str) -> Template:
    """The template of this name, or in this file.

    Raises:
        InvalidValue: there is none, or it breaks a rule; the message names the place.
        InvalidType: something in it has a wrong type.

    Example:
        >>> load_template("training").title
        'Training'
    """
    path = Path(name)
    if path.suffix != ".toml" and "/" not in name:
        path = _folder() / f"{name}.toml"
        if not path.is_file():
            known = ", ".join(map(repr, template_names()))
            raise InvalidValue(
                f"template {name!r} is not known; there are {known}, and a file is named by its "
                "path, such as my/dashboard.toml"
            )
    try:
        written = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
    except OSError as error:
        raise InvalidValue(f"template {str(path)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:  # not TOML, or not UTF-8
        raise InvalidValue(f"template {str(path)!r} is no TOML: {error}") from error
    return parse_template(written, str(path))


def parse_template(written: Mapping[str, Any], where: str) -> Template:
    """The template in a parsed TOML file; `where` names it in messages.

    Raises:
        InvalidValue, InvalidType: as `load_template`.
    """
    table = _Table(written, where)
    title = table.text("title")
    sections = tuple(
        _section(_Table(one, f"{where}: section {number}"))
        for number, one in enumerate(table.tables("section"), start=1)
    )
    template = Template(title, sections, table.text("text", ""), Path(where).stem)
    table.refuse_others()
    return template


def _section(table: _Table) -> Section:
    title = table.text("title")
    charts = tuple(
        _chart(_Table(one, f"{table.where} ({title}), chart {number}"))
        for number, one in enumerate(table.tables("chart"), start=1)
    )
    table.refuse_others()
    return Section(title, charts)


def _chart(table: _Table) -> Chart:
    chart = Chart(
        title=table.text("title"),
        keys=table.texts("keys"),
        without=table.texts("except", ()),
        x=table.texts("x", (STEP,)),
        scale=cast("Scale", table.choice("scale", Scale)),
        draw=cast("Draw", table.choice("draw", Draw)),
        each=table.flag("each"),
        text=table.text("text", ""),
    )
    table.refuse_others()
    return chart


class _Table:
    """A TOML table whose entries are taken out one by one, each checked."""

    def __init__(self, entries: Any, where: str) -> None:
        if not isinstance(entries, Mapping):
            raise InvalidType(f"{where}: a table is needed, not {entries!r}")
        self._left = dict(entries)
        self.where = where

    def text(self, name: str, default: str | None = None) -> str:
        value = self._left.pop(name, default)
        if value is None:
            raise InvalidValue(f'{self.where}: it lacks {name} = "..."')
        if not isinstance(value, str):
            raise InvalidType(f"{self.where}: {name} is a text, not {value!r}")
        if not value and default is None:
            raise InvalidValue(f"{self.where}: {name} is empty")
        return value

    def texts(self, name: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._left.pop(name, default)
        if isinstance(value, str):
            value = [value]
        if value is None or value == []:
            raise InvalidValue(f'{self.where}: it lacks {name} = ["..."]')
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise InvalidType(f"{self.where}: {name} is a list of texts, not {value!r}")
        if "" in value:
            raise InvalidValue(f"{self.where}: {name} holds an empty text: {value!r}")
        return tuple(value)

    def choice(self, name: str, choices: object) -> str:
        accepted = get_args(choices)
        value = self._left.pop(name, accepted[0])
        if value not in accepted:
            raise InvalidValue(
                f"{self.where}: {name} is one of {', '.join(map(repr, accepted))}, not {value!r}"
            )
        return str(value)

    def flag(self, name: str) -> bool:
        value = self._left.pop(name, False)
        if not isinstance(value, bool):
            raise InvalidType(f"{self.where}: {name} is true or false, not {value!r}")
        return value

    def tables(self, name: str) -> list[Any]:
        value = self._left.pop(name, None)
        if not value or not isinstance(value, list):
            raise InvalidValue(f"{self.where}: it lacks [[{name}]] tables")
        return value

    def refuse_others(self) -> None:
        if self._left:
            names = ", ".join(map(repr, self._left))
            raise InvalidValue(f"{self.where}: {names} is not known here; remove it")


def _folder() -> Path:
    """Where the templates are: beside this file in an installed package, else in the checkout."""
    installed = Path(__file__).parent / "templates"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "dashboards"
