"""Names that existing training code uses for the functions of this package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch.distributed as dist

from distmetrics.comm.objects import gather_objects
from distmetrics.comm.ragged import all_gather_token_ids

T = TypeVar("T")


def all_gather_all_prompt_token_ids(
    all_prompt_token_ids: Sequence[Sequence[int]], group: dist.ProcessGroup | None = None
) -> list[list[int]]:
    """`all_gather_token_ids` under the name and with the arguments of existing code.

    Ranks: all of the group.
    Collective: as `all_gather_token_ids`.

    Example:
        >>> all_gather_all_prompt_token_ids([[5, 7], [9]])
        [[5, 7], [9]]
    """
    return all_gather_token_ids(all_prompt_token_ids, group)


def gather_inputs_object_for_inference(
    input_data: Sequence[T], group: dist.ProcessGroup | None = None
) -> list[T]:
    """`gather_objects` under the name and with the arguments of existing code.

    Ranks: all of the group.
    Collective: as `gather_objects`.

    Example:
        >>> gather_inputs_object_for_inference([{"prompt": "Hello"}])
        [{'prompt': 'Hello'}]
    """
    return gather_objects(input_data, group)
