"""Reductions of a dict of scalars in one call, for code that has them by hand."""

from distmetrics.functional.reduce import reduce_dict, reduce_scalar_outputs_for_logging

__all__ = ["reduce_dict", "reduce_scalar_outputs_for_logging"]
