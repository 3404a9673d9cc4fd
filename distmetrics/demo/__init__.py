"""A real training run on a data set that scikit-learn ships, logged through one registry.

`train` and `evaluate` are scripts for torchrun, written to be copied; `launch` and `report` are
what the command ``distmetrics demo`` puts around them.
"""
