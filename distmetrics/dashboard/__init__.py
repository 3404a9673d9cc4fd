"""Dashboards from a registry: one template drives TensorBoard, W&B, Grafana and a page of HTML."""

from distmetrics.dashboard.board import Axis, Board, Key, Panel, Row, arrange
from distmetrics.dashboard.subject import Subject, subject_of
from distmetrics.dashboard.template import Chart, Section, Template, load_template, template_names

__all__ = [
    "Axis",
    "Board",
    "Chart",
    "Key",
    "Panel",
    "Row",
    "Section",
    "Subject",
    "Template",
    "arrange",
    "load_template",
    "subject_of",
    "template_names",
]
