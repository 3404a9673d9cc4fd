"""The handle that a training loop holds."""

from distmetrics.logger.logger import Child, Logger

__all__ = ["Child", "Logger"]
