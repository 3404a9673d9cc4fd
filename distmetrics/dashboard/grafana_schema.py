"""What a Grafana dashboard of ours may hold, since its typed builders check nothing."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from distmetrics.errors import InvalidValue

_COLUMNS = 24
Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    """A part whose fields are all known, and of the types that JSON has."""

    model_config = ConfigDict(strict=True, extra="forbid")


class _Source(_Strict):
    type: Literal["prometheus"]
    uid: Literal["${datasource}"]


class _Target(_Strict):
    expr: Text
    refId: Annotated[str, Field(pattern="^[A-Z]+$")]  # noqa: N815 - Grafana's name
    legendFormat: Text  # noqa: N815
    range: Literal[True]
    instant: bool = False
    datasource: _Source


class _Place(_Strict):
    h: Annotated[int, Field(ge=1)]
    w: Annotated[int, Field(ge=1, le=_COLUMNS)]
    x: Annotated[int, Field(ge=0, lt=_COLUMNS)]
    y: Annotated[int, Field(ge=0)]


class _Transformation(_Strict):
    id: Literal["joinByField", "organize"]
    options: dict[str, Any]


class _Distribution(_Strict):
    type: Literal["linear", "log"]
    log: Literal[2, 10] | None = None


class _Custom(_Strict):
    drawStyle: Literal["line", "points"]  # noqa: N815
    scaleDistribution: _Distribution | None = None  # noqa: N815


class _Defaults(_Strict):
    unit: Text | None = None
    custom: _Custom


class _Property(_Strict):
    id: Literal["custom.fillBelowTo"]
    value: Text


class _Matcher(_Strict):
    id: Literal["byName"]
    options: Text


class _Override(_Strict):
    matcher: _Matcher
    properties: list[_Property]


class _FieldConfig(_Strict):
    defaults: _Defaults
    overrides: list[_Override] | None = None


class _TrendOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    xField: Text | None = None  # noqa: N815


class _Panel(_Strict):
    type: Literal["timeseries", "trend"]
    title: Text
    description: str
    datasource: _Source
    targets: Annotated[list[_Target], Field(min_length=1)]
    gridPos: _Place  # noqa: N815
    fieldConfig: _FieldConfig  # noqa: N815
    options: _TrendOptions | None = None
    transformations: list[_Transformation] | None = None
    repeat: Literal["run"] | None = None
    repeatDirection: Literal["h", "v"] | None = None  # noqa: N815
    transparent: bool | None = None
    id: int


class _Row(_Strict):
    type: Literal["row"]
    title: Text
    collapsed: Literal[False]
    panels: Annotated[list[Any], Field(max_length=0)]
    gridPos: _Place  # noqa: N815
    id: int


class _Templating(BaseModel):
    model_config = ConfigDict(strict=True)

    list: list[dict[str, Any]]


class _Dashboard(BaseModel):
    """The whole; what is not named here is Grafana's own and left as its builders set it."""

    model_config = ConfigDict(strict=True)

    title: Text
    uid: Annotated[str, Field(max_length=40, pattern="^[A-Za-z0-9_-]+$")]
    schemaVersion: int  # noqa: N815
    templating: _Templating
    panels: list[Annotated[_Panel | _Row, Field(discriminator="type")]]


def check(text: str) -> None:
    """Raise unless `text` is a dashboard that Grafana takes.

    Types and names of fields, queries with names of their own, places within the grid that do not
    overlap, and the variables that the queries use.

    Raises:
        InvalidValue: with the place and the rule that it breaks.
    """
    try:
        dashboard = _Dashboard.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidValue(
            f"the Grafana dashboard is malformed at {place}: {first['msg']}"
        ) from error
    for problem in _problems(dashboard):
        raise InvalidValue(f"the Grafana dashboard is malformed: {problem}")


def _problems(dashboard: _Dashboard) -> Iterator[str]:
    variables = {variable.get("name") for variable in dashboard.templating.list}
    if variables != {"datasource", "run"}:
        yield f"its variables are {sorted(map(str, variables))}"
    if len({panel.id for panel in dashboard.panels}) < len(dashboard.panels):
        yield "two panels have one id"
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard.panels:
        place = panel.gridPos
        if place.x + place.w > _COLUMNS:
            yield f"panel {panel.title!r} ends right of the grid"
        columns, lines = range(place.x, place.x + place.w), range(place.y, place.y + place.h)
        for cell in product(columns, lines):
            if cell in taken:
                yield f"panels {taken[cell]!r} and {panel.title!r} overlap"
            taken[cell] = panel.title
        if isinstance(panel, _Panel):
            names = [target.refId for target in panel.targets]
            if len(set(names)) < len(names):
                yield f"panel {panel.title!r} has two queries of one name"
