"""What each key means: the registry, its metrics, and the names and patterns of keys."""

from distmetrics.registry.metric import Described, Metric
from distmetrics.registry.registry import Registry

__all__ = ["Described", "Metric", "Registry"]
