"""A template laid out over the keys that there are: what every target then draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from distmetrics.dashboard.patterns import matcher
from distmetrics.dashboard.subject import Subject
from distmetrics.dashboard.template import STEP, TIME, Chart, Draw, Scale, Template
from distmetrics.errors import InvalidValue
from distmetrics.sinks.described import Description

_LOW, _HIGH = "/min", "/max"


@dataclass(frozen=True)
class Key:
    """A key on a panel.

    Attributes:
        name: the key; a pattern where only that is known.
        description: what the registry says of it.
        pattern: whether `name` is a pattern.
        logged: whether there are values.
    """

    name: str
    description: Description = field(default_factory=Description)
    pattern: bool = False
    logged: bool = False


@dataclass(frozen=True)
class Axis:
    """The x-axis of a panel: "step", "time", or a key, which then runs on."""

    kind: str = STEP
    key: Key | None = None

    @property
    def label(self) -> str:
        """What stands at the axis."""
        if self.key is None:
            return self.kind
        unit = self.key.description.unit
        return f"{self.key.name} [{unit}]" if unit else self.key.name


@dataclass(frozen=True)
class Panel:
    """One chart as it is drawn.

    Attributes:
        title: its heading, with the unit where all keys share one.
        keys: what it draws; empty where nothing matched. With ``draw="spread"`` the keys come in
            pairs of a lower and an upper one.
        patterns: the template's patterns, which keys may still come to match.
        axis: its x-axis.
        scale: "linear" or "log".
        draw: "line", "points" or "spread".
        text: sentences about the chart and its keys.
    """

    title: str
    keys: tuple[Key, ...]
    patterns: tuple[str, ...]
    axis: Axis = Axis()
    scale: Scale = "linear"
    draw: Draw = "line"
    text: str = ""

    @property
    def spreads(self) -> list[tuple[Key, Key]]:
        """The pairs of a lower and an upper key, of a panel that draws spreads."""
        return list(zip(self.keys[::2], self.keys[1::2], strict=True))

    @property
    def unit(self) -> str:
        """The unit that all its keys have; empty where they differ or have none."""
        units = {key.description.unit for key in self.keys}
        return units.pop() if len(units) == 1 else ""


@dataclass(frozen=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Board:
    """A whole dashboard.

    Attributes:
        title: its heading.
        text: a sentence below it.
        rows: its panels.
        problems: what the templates ask for and the keys do not have, as sentences.
    """

    title: str
    text: str
    rows: tuple[Row, ...]
    problems: tuple[str, ...] = ()

    @property
    def keys(self) -> list[Key]:
        """All keys on its panels and axes, each once."""
        found: dict[str, Key] = {}
        for panel in (panel for row in self.rows for panel in row.panels):
            for key in panel.keys:
                found.setdefault(key.name, key)
            if panel.axis.key is not None:
                found.setdefault(panel.axis.key.name, panel.axis.key)
        return list(found.values())


def arrange(templates: Sequence[Template], subject: Subject) -> Board:
    """The board that some templates make of a subject's keys.

    A chart that no key matches stays, empty, and is among the `problems`.

    Raises:
        InvalidValue: there is neither a key nor a pattern at all.

    Example:
        >>> from distmetrics.dashboard.template import parse_template
        >>> chart = {"title": "loss", "keys": ["loss"]}
        >>> template = parse_template(
        ...     {"title": "T", "section": [{"title": "S", "chart": [chart]}]}, "example")
        >>> board = arrange([template], Subject("run", {"val/loss": Description(unit="nats")}))
        >>> board.rows[0].panels[0].title, board.problems
        ('loss [nats]', ())
    """
    if not subject.keys and not subject.patterns:
        raise InvalidValue(
            f"{subject.title!r} has no keys yet, so there is nothing to arrange; log a step first, "
            "or declare keys in a registry"
        )
    arranger = _Arranger(subject)
    several = len(templates) > 1
    rows = [
        Row(
            f"{template.title}: {section.title}" if several else section.title,
            tuple(arranger.panels(section.charts, template.title)),
        )
        for template in templates
        for section in template.sections
    ]
    titles = " and ".join(dict.fromkeys(template.title for template in templates))
    title = f"{titles}: {subject.title}" if subject.title else titles
    text = " ".join(filter(None, (template.text for template in templates)))
    return Board(title, text, tuple(rows), tuple(dict.fromkeys(arranger.problems)))


class _Arranger:
    def __init__(self, subject: Subject) -> None:
        self.problems: list[str] = []
        logged = subject.logged
        self._keys = [Key(name, one, False, name in logged) for name, one in subject.keys.items()]
        self._patterns = [Key(name, one, True) for name, one in subject.patterns.items()]
        self._stems = _stems(subject)

    def panels(self, charts: Iterable[Chart], template: str) -> Iterable[Panel]:
        for chart in charts:
            keys = self._spread(chart) if chart.draw == "spread" else self._matched(chart)
            if not keys:
                self.problems.append(
                    f"{template}: chart {chart.title!r} is empty: no key matches "
                    f"{', '.join(chart.keys)}"
                )
            for axis in self._axes(chart, template):
                yield from _drawn(chart, keys, axis)

    def _matched(self, chart: Chart) -> list[Key]:
        found = [
            key
            for key in self._keys
            if any(matcher(one)(key.name) for one in chart.keys)
            and not any(matcher(one)(key.name) for one in chart.without)
        ]
        for key in self._patterns:
            if key.name in chart.without:
                continue
            if any(matcher(one)(key.name) for one in chart.keys):
                found.append(key)
            else:  # what the template names is one of the keys that the registry's pattern means
                within = [one for one in chart.keys if matcher(key.name)(one)]
                found += [
                    replace(key, name=one.removeprefix("/"), pattern=_is_pattern(one))
                    for one in within
                ]
        return found

    def _spread(self, chart: Chart) -> list[Key]:
        found: list[Key] = []
        for stem, (low, high) in self._stems.items():
            if any(matcher(one)(stem) for one in chart.keys) and not any(
                matcher(one)(stem) for one in chart.without
            ):
                found += (low, high)
        return found

    def _axes(self, chart: Chart, template: str) -> list[Axis]:
        axes = []
        for x in chart.x:
            if x in (STEP, TIME):
                axes.append(Axis(x))
                continue
            matches = matcher(x)
            found = [key for key in (*self._keys, *self._patterns) if matches(key.name)]
            if found:
                axes += [Axis("key", found[0])]
            else:
                self.problems.append(
                    f"{template}: chart {chart.title!r} is not drawn by {x}: no key matches it"
                )
        return axes or [Axis(STEP)]


def _stems(subject: Subject) -> dict[str, tuple[Key, Key]]:
    """What has a smallest and a largest value over the ranks, with the keys of these."""
    names = {**subject.keys, **subject.patterns}
    return {
        stem: (
            Key(low, names[low], low in subject.patterns, low in subject.logged),
            Key(high, names[high], high in subject.patterns, high in subject.logged),
        )
        for low in names
        if low.endswith(_LOW)
        for stem in [low.removesuffix(_LOW)]
        for high in [stem + _HIGH]
        if high in names
    }


def _drawn(chart: Chart, keys: Sequence[Key], axis: Axis) -> Iterable[Panel]:
    parts = [(key,) for key in keys] if chart.each and keys else [tuple(keys)]
    for part in parts:
        title = part[0].name if chart.each and part else chart.title
        panel = Panel(title, part, chart.keys, axis, chart.scale, chart.draw)
        if panel.unit:
            title += f" [{panel.unit}]"
        if axis.kind != STEP:
            title += f" by {axis.key.name if axis.key else axis.kind}"
        yield replace(panel, title=title, text=_text(chart, part))


def _text(chart: Chart, keys: Sequence[Key]) -> str:
    """The chart's sentence, and one for each key that has a help text."""
    lines = [chart.text] if chart.text else []
    lines += [f"{key.name}: {key.description.text}" for key in keys if key.description.help]
    return "\n".join(lines)


def _is_pattern(text: str) -> bool:
    return any(char in text for char in "*?[")
