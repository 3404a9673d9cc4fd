"""``python -m distmetrics.cli``: the command line where its script is not on PATH."""

from distmetrics.cli import main

main(prog_name="distmetrics")
