"""Ranks of which the last one fails."""

from __future__ import annotations

import os

if __name__ == "__main__" and os.environ["RANK"] == "1":
    raise RuntimeError("planted fault in rank 1")
