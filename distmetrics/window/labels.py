"""Labels, which tell the windows of a stream apart and put them in order.

A window's label is the last step it covers. Several windows may end at the same step (an
evaluation that is run twice), so that a label is the step and an ordinal below it, in one integer:
``step << ORDINAL_BITS | ordinal``. A window has the middle ordinal; before and after it there is
room for windows that hold nothing but late steps. The *watermark* is the first label that a rank
may still close: what the others may rely on.
"""

from __future__ import annotations

ORDINAL_BITS = 12
MAX_STEP = 1 << (62 - ORDINAL_BITS)
NEVER = (1 << 63) - 1
"""The watermark of a stream that is closed: no label reaches it."""
_MIDDLE = 1 << (ORDINAL_BITS - 1)


def label_of(step: int) -> int:
    """The label of the window that ends at `step`."""
    return step << ORDINAL_BITS | _MIDDLE


def mark_of(step: int) -> int:
    """The watermark of a rank that adds nothing below `step` any more."""
    return step << ORDINAL_BITS


def step_of(label: int) -> int:
    """The last step that the window of this label covers."""
    return label >> ORDINAL_BITS


def first_step(watermark: int) -> int:
    """The first step that a rank of this watermark may still add to."""
    return (watermark + _MIDDLE - 1) >> ORDINAL_BITS


def ordinal_of(label: int) -> int:
    """What tells windows that end at the same step apart: ``label - label_of(step_of(label))``.

    0 for the regular window, 1 for the next one, and so on.
    """
    return label - label_of(step_of(label))
