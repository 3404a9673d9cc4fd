"""From merged lanes to logged values: a row's values, running totals, the latest of each key."""

from distmetrics.reduced.results import Results
from distmetrics.reduced.row import Reduced, row_states

__all__ = ["Reduced", "Results", "row_states"]
