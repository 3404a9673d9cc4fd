"""The dashboard a registry makes by itself: a section for each group, a chart for each name."""

from __future__ import annotations

from distmetrics.dashboard.patterns import matcher
from distmetrics.dashboard.subject import Subject
from distmetrics.dashboard.template import Chart, Section, Template
from distmetrics.sinks.described import Description

NAME = "registry"
"""What the automatic template is called among the templates."""

_REST = "other"
_RANK = "/argmax"
_NONFINITE = "*/nonfinite"


def automatic_template(subject: Subject) -> Template:
    """A template for a subject: its groups in order, and every name with those of its children.

    A name whose curves begin with a child's name (``val/loss``) is drawn with the name itself.
    What one declaration makes for each rank, as quantiles or as the bins of a histogram, is one
    chart.

    Example:
        >>> from distmetrics.sinks.described import Description
        >>> quality = Description("average", group="quality")
        >>> subject = Subject("run", {"loss": quality, "val/loss": quality, "n": Description()})
        >>> for section in automatic_template(subject).sections:
        ...     print(section.title, [chart.title for chart in section.charts])
        quality ['loss']
        other ['n']
    """
    groups: dict[str, dict[str, list[str]]] = {}
    nonfinite = False
    names = {**subject.keys, **subject.patterns}
    for key, description in names.items():
        if matcher(_NONFINITE)(key):
            nonfinite = True
            continue
        group = groups.setdefault(description.group or _REST, {})
        pattern = key if key in subject.patterns else _literal(key)
        group.setdefault(_title(key, names), []).append(pattern)
    ordered = sorted(groups, key=lambda group: group == _REST)
    sections = [
        Section(
            group,
            tuple(_chart(title, keys) for title, keys in groups[group].items()),
        )
        for group in ordered
    ]
    if nonfinite:
        chart = Chart("non-finite values", (_NONFINITE,), draw="points")
        sections.append(Section("non-finite", (chart,)))
    return Template("Metrics", tuple(sections), name=NAME)


def _chart(title: str, keys: list[str]) -> Chart:
    return Chart(title, tuple(keys), draw="points" if title.endswith(_RANK) else "line")


def _title(key: str, names: dict[str, Description]) -> str:
    """The name that a key is drawn under: without the child's prefix, or the part of a rank."""
    if names[key].kind == "histogram":
        return _title_of_base(key.rpartition("[")[0], names)
    head, slash, _ = key.rpartition("/")
    if slash and names[key].kind in ("per_rank", "quantiles") and not key.endswith(_RANK):
        return _title_of_base(head, names)
    _, slash, bare = key.partition("/")
    return bare if slash and bare in names else key


def _title_of_base(base: str, names: dict[str, Description]) -> str:
    """The title of what several keys are made of, which is no key of a record itself."""
    return _title(base, names) if base in names else base


def _literal(key: str) -> str:
    """The key as a pattern that matches it alone."""
    return "/" + "".join(f"[{char}]" if char in "*?[" else char for char in key)
