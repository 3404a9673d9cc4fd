"""Where records go: the contract of a sink and those that come with the package.

No back end's package (TensorBoard, W&B) is imported before a sink of its kind is opened.
"""

from distmetrics.sinks.console import ConsoleSink
from distmetrics.sinks.contract import RecordFunction, Run, Sink
from distmetrics.sinks.isolated import IsolatedSink, SinkStats
from distmetrics.sinks.jsonl import JsonlSink
from distmetrics.sinks.memory import MemorySink
from distmetrics.sinks.mlflow import MlflowSink
from distmetrics.sinks.prometheus import PrometheusSink
from distmetrics.sinks.resolve import FunctionSink, NamedSink, SinkSpec, make_sinks
from distmetrics.sinks.tensorboard import TensorBoardSink
from distmetrics.sinks.wandb import WandbSink

__all__ = [
    "ConsoleSink",
    "FunctionSink",
    "IsolatedSink",
    "JsonlSink",
    "MemorySink",
    "MlflowSink",
    "NamedSink",
    "PrometheusSink",
    "RecordFunction",
    "Run",
    "Sink",
    "SinkSpec",
    "SinkStats",
    "TensorBoardSink",
    "WandbSink",
    "make_sinks",
]
