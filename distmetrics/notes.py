"""Where notes go that no application has asked for: to stderr, once each.

Notes are records of level INFO of the logger ``distmetrics``. An application that configures
`logging` gets them as any other; for one that does not, they are written to stderr.
"""

from __future__ import annotations

import logging
import sys


class StderrNotes(logging.Handler):
    """Writes records to stderr while nobody else would: no other handler is in the way to the root.

    Stands by for the logger ``distmetrics`` as `logging.lastResort` does for all of them, from
    INFO on. Where `tqdm` is in use, a progress bar is drawn again below the line.
    """

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record, unless the application's own handlers do."""
        if self._others(record.name):
            return
        try:
            text = f"distmetrics: {self.format(record)}"
            tqdm = sys.modules.get("tqdm")
            if tqdm is not None and hasattr(tqdm, "tqdm"):
                tqdm.tqdm.write(text, file=sys.stderr)
            else:
                sys.stderr.write(f"{text}\n")
        except Exception:  # noqa: BLE001 - as any handler: a closed stderr is not the training's affair
            self.handleError(record)

    def _others(self, name: str) -> bool:
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            for handler in logger.handlers:
                if not isinstance(handler, StderrNotes | logging.NullHandler):
                    return True
            logger = logger.parent if logger.propagate else None
        return False


def stand_by(name: str = "distmetrics") -> None:
    """Attach `StderrNotes` to a logger, once; its level becomes INFO unless it has one."""
    logger = logging.getLogger(name)
    if not any(isinstance(handler, StderrNotes) for handler in logger.handlers):
        logger.addHandler(StderrNotes())
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
