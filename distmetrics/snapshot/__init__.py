"""The values of one `log` call, checked and copied: all that happens in the training thread."""

from distmetrics.snapshot.plan import Plan, Route, Snapshot
from distmetrics.snapshot.take import Snapshotter

__all__ = ["Plan", "Route", "Snapshot", "Snapshotter"]
