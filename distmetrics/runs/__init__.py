"""Reading runs back: those of distmetrics, and those that never heard of it."""

from distmetrics.runs.declared import Declarations, Declared
from distmetrics.runs.locate import open_run, split_spec
from distmetrics.runs.series import RunData, Series

__all__ = ["Declarations", "Declared", "RunData", "Series", "open_run", "split_spec"]
