"""Names of Prometheus metrics for keys, one to one."""

from __future__ import annotations

import re

NAMESPACE = "distmetrics_"
"""What every key's metric begins with. Those of the run itself have one ``_`` more."""

_PLAIN = re.compile(r"(?!_)[A-Za-z0-9_]+")
_MARKS = re.compile(r"__|_x[0-9a-f]+_|_total$")


def metric_name(key: str) -> str:
    """The name of a key's metric, without the ``_total`` that a counter gets.

    A name holds letters, digits and ``_`` only. A key of these is its own name, after the
    namespace. In any other key each ``_`` is doubled and each further character becomes ``_x``, its
    code point in hexadecimal, and ``_``; so it is with keys that could be mistaken for such a name,
    or for a counter's, as well: no two keys share a name.

    >>> metric_name("num_pairs"), metric_name("val/loss"), metric_name("queries_total")
    ('distmetrics_num_pairs', 'distmetrics_val_x2f_loss', 'distmetrics_queries__total')
    """
    if _PLAIN.fullmatch(key) and not _MARKS.search(key):
        return NAMESPACE + key
    return NAMESPACE + "".join(map(_written, key))


def _written(char: str) -> str:
    if char == "_":
        return "__"
    return char if char.isascii() and char.isalnum() else f"_x{ord(char):x}_"
