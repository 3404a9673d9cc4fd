"""Runs to make dashboards of, written by a real logger."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import distmetrics as dm

ODD_KEYS = (
    "loss.ce",
    "a/b/c.d",
    "with space",
    "acc[0]",
    "(50%) of ^all$ +1|2?",
    "grad*norm",
    "größe/日本",
    "back\\slash",
    'quote"d',
    "it's {braced} & <b>bold</b>",
    "</script><script>document.title='broken'</script>",
    "under_score",
    "under__score",
    "a_x2f_b",
    "a/b",
    "queries_total",
    "x" * 300,
)
"""Names that some tool reads as something else."""


def registry() -> dm.Registry:
    """What the keys of `write_run` mean."""
    made = dm.Registry()
    made.average("loss", unit="nats", group="quality", help="cross entropy of a sample")
    made.maximum("max_len", unit="tokens", group="data")
    made.count("*num_pairs", unit="pairs", group="matching", help="pairs in the batch")
    made.count("num_correct", "n", unit="samples", group="data")
    made.ratio("accuracy", "num_correct", "n", group="quality", help="share of right answers")
    made.same("lr", group="optimizer", help="learning rate")
    made.total("tokens_seen", unit="tokens", group="data", help="tokens so far")
    return made


def write_run(folder: Path, steps: int = 40, shift: float = 0.0, **options: Any) -> Path:
    """A finished run of `steps` steps in `folder`, with a child ``val``; returns the folder."""
    config = {"lr": 0.1, "model": {"width": 32, "name": "cnn"}}
    with dm.Logger(registry(), run_dir=folder, every=2, config=config, **options) as logger:
        val = logger.child("val")
        for step in range(steps):
            loss = math.exp(-step / steps) + shift
            logger.log(
                {
                    "loss": loss,
                    "head0_num_pairs": 3 + step % 4,
                    "num_correct": step,
                    "n": steps,
                    "lr": 0.1,
                    "max_len": 100 + step,
                    "tokens_seen": 2048,
                },
                step=step,
            )
            if step % 10 == 9:
                val.log({"loss": loss + 0.1, "num_correct": step, "n": steps})
                val.flush(step=step)
    return folder


def write_odd_run(folder: Path, steps: int = 6, **options: Any) -> Path:
    """A run whose keys are `ODD_KEYS`, each with the values 0, 1, 2, ... plus its position."""
    made = dm.Registry()
    for key in ODD_KEYS:
        text = "<img src=x onerror=\"document.title='broken'\"> & so on"
        made.declare("same", [key], {}, unit="a<b", help=text, group="</h2>odd")
    with dm.Logger(made, run_dir=folder, **options) as logger:
        for step in range(steps):
            logger.log({key: step + place for place, key in enumerate(ODD_KEYS)}, step=step)
    return folder
