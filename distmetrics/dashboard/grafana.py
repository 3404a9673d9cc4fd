"""A board as a Grafana dashboard of what the Prometheus sink exposes."""

from __future__ import annotations

import hashlib
from itertools import count
from typing import TYPE_CHECKING, Any

from distmetrics.dashboard.board import Board, Key, Panel
from distmetrics.dashboard.patterns import anywhere
from distmetrics.errors import MissingPackage
from distmetrics.sinks.prometheus_names import NAMESPACE, metric_name

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders import dashboard as builders
    from grafana_foundation_sdk.builders import prometheus, timeseries, trend
    from grafana_foundation_sdk.models.dashboard import DataTransformerConfig

_HEIGHT, _WIDTH = 8, 12
_RUN = "$run"


def to_json(board: Board) -> str:
    """The dashboard as JSON, to be imported into Grafana: a row of panels for each section.

    It asks for a Prometheus data source and a run. Panels by the step are drawn over time, which
    is what Prometheus knows; those by a key, one for each run, over that key.

    Raises:
        MissingPackage: grafana-foundation-sdk is not installed.
        InvalidValue: what its builders made is no dashboard by `grafana_schema`.
    """
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
    except ImportError as error:
        raise MissingPackage(
            f"a Grafana dashboard needs grafana-foundation-sdk ({error}); install it, on Python "
            "3.11 or later, with: python -m pip install grafana-foundation-sdk"
        ) from error
    from distmetrics.dashboard.grafana_schema import check

    text = str(JSONEncoder(sort_keys=True, indent=2).encode(_dashboard(board).build()))
    check(text)
    return text + "\n"


def query(key: Key) -> str:
    r"""The PromQL expression for a key, of the runs that are chosen.

    >>> print(query(Key("val/loss")))
    distmetrics_val_x2f_loss{run=~"$run"}
    >>> print(query(Key("*num_pairs", pattern=True)))
    {__name__=~"distmetrics_.+",key=~"(?:.*\\/)?.*num_pairs",run=~"$run"}
    """
    if key.pattern:
        return _pattern_query(key.name)
    name = metric_name(key.name) + ("_total" if key.description.cumulative else "")
    return f'{name}{{run=~"{_RUN}"}}'


def queries(panel: Panel) -> list[str]:
    """The expressions of a panel's curves; of one without keys those that may still come."""
    if not panel.keys:
        return [_pattern_query(pattern) for pattern in panel.patterns]
    return [query(key) for key in panel.keys]


def _pattern_query(pattern: str) -> str:
    wanted = anywhere(pattern).replace("\\", "\\\\").replace('"', '\\"')
    return f'{{__name__=~"{NAMESPACE}.+",key=~"{wanted}",run=~"{_RUN}"}}'


def _dashboard(board: Board) -> builders.Dashboard:
    from grafana_foundation_sdk.builders import dashboard as builders

    mark = hashlib.blake2b(board.title.encode(), digest_size=8).hexdigest()
    made = (
        builders.Dashboard(board.title)
        .uid(f"distmetrics-{mark}")
        .description("\n\n".join(filter(None, (board.text, *board.problems))))
        .tags(["distmetrics"])
        .time("now-3h", "now")
        .refresh("10s")
        .with_variable(_datasource())
        .with_variable(_runs())
    )
    numbers = count(1)
    for row in board.rows:
        made = made.with_row(builders.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            made = made.with_panel(_panel(panel).id(next(numbers)))
    return made


def _datasource() -> builders.DatasourceVariable:
    from grafana_foundation_sdk.builders import dashboard as builders

    return builders.DatasourceVariable("datasource").label("data source").type("prometheus")


def _runs() -> builders.QueryVariable:
    from grafana_foundation_sdk.builders import dashboard as builders
    from grafana_foundation_sdk.models import dashboard as models

    return (
        builders.QueryVariable("run")
        .label("run")
        .query(f"label_values({NAMESPACE}_step, run)")
        .datasource(_source())
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".*")
    )


def _source() -> Any:
    from grafana_foundation_sdk.models import dashboard as models

    return models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def _panel(panel: Panel) -> timeseries.Panel | trend.Panel:
    made = _over_time(panel) if panel.axis.key is None else _over_key(panel, panel.axis.key)
    made = made.title(panel.title).description(panel.text).datasource(_source())
    made = made.height(_HEIGHT).span(_WIDTH)
    return made.unit(f"suffix: {panel.unit}") if panel.unit else made


def _over_time(panel: Panel) -> timeseries.Panel:
    from grafana_foundation_sdk.builders import timeseries

    made: timeseries.Panel = _styled(timeseries.Panel(), panel)
    spread = panel.draw == "spread"
    # Bands are found by the names of their curves, so that there each run has a panel of its own.
    legend = "{{key}}" if spread else "{{key}} {{run}}"
    for number, expression in enumerate(queries(panel)):
        made = made.with_target(_target(expression, number, legend))
    if spread and panel.keys:
        for low, high in panel.spreads:
            made = made.override_by_name(high.name, [_property("custom.fillBelowTo", low.name)])
        made = made.repeat("run").repeat_direction("v")
    return made


def _over_key(panel: Panel, axis: Key) -> trend.Panel:
    from grafana_foundation_sdk.builders import trend

    made: trend.Panel = _styled(trend.Panel(), panel).x_field(axis.name)
    made = made.with_target(_target(query(axis), 0, axis.name))
    for number, expression in enumerate(queries(panel), start=1):
        made = made.with_target(_target(expression, number, "{{key}}"))
    for transformation in _joined():
        made = made.with_transformation(transformation)
    return made.repeat("run").repeat_direction("v")


def _styled(made: Any, panel: Panel) -> Any:
    from grafana_foundation_sdk.builders import common
    from grafana_foundation_sdk.models import common as models

    points = panel.draw == "points"
    made = made.draw_style(models.GraphDrawStyle.POINTS if points else models.GraphDrawStyle.LINE)
    legend = common.VizLegendOptions().show_legend(True).placement(models.LegendPlacement.BOTTOM)
    made = made.legend(legend.display_mode(models.LegendDisplayMode.LIST).calcs(["lastNotNull"]))
    if panel.scale == "log":
        scale = common.ScaleDistributionConfig().type(models.ScaleDistribution.LOG).log(10)
        made = made.scale_distribution(scale)
    return made


def _target(expression: str, number: int, legend: str) -> prometheus.Dataquery:
    from grafana_foundation_sdk.builders import prometheus

    return (
        prometheus.Dataquery()
        .expr(expression)
        .range()
        .legend_format(legend)
        .ref_id(_letters(number))
        .datasource(_source())
    )


def _joined() -> list[DataTransformerConfig]:
    """One table of all curves, of which the time is no column: the axis is its key's values."""
    from grafana_foundation_sdk.models.dashboard import DataTransformerConfig

    return [
        DataTransformerConfig(id_val="joinByField", options={"byField": "Time", "mode": "outer"}),
        DataTransformerConfig(id_val="organize", options={"excludeByName": {"Time": True}}),
    ]


def _property(name: str, value: str) -> Any:
    from grafana_foundation_sdk.models.dashboard import DynamicConfigValue

    return DynamicConfigValue(id_val=name, value=value)


def _letters(number: int) -> str:
    """Names of queries: A, B, ... Z, AA, AB, ...

    >>> [_letters(number) for number in (0, 25, 26)]
    ['A', 'Z', 'AA']
    """
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("A") + rest) + text
    return text
