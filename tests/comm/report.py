"""What a rank of a real launcher runs: sets up, tries every group, prints one line of JSON."""

from __future__ import annotations

import json
import sys
import warnings

import torch
import torch.distributed as dist

from distmetrics import comm


def report() -> dict[str, object]:
    """This rank's place, and sums over its groups."""
    warnings.simplefilter("ignore")
    env = comm.setup_distributed(timeout=60)
    total, local = torch.tensor([float(env.rank)]), torch.tensor([float(env.rank)])
    peers = [env.rank]
    if env.world_size > 1:
        dist.all_reduce(total)
        dist.all_reduce(local, group=comm.get_local_group())
        peers = comm.all_gather(env.rank, comm.get_local_group())
    tokens = comm.all_gather_token_ids([[env.rank] * env.rank, []], timeout=60)
    found = {
        "rank": env.rank,
        "world_size": env.world_size,
        "launcher": env.launcher,
        "local": [comm.get_local_rank(), comm.get_local_size()],
        "node": env.node_rank,
        "per_node": list(env.ranks_per_node),
        "total": total.item(),
        "local_total": local.item(),
        "peers": peers,
        "tokens": tokens,
        "notes": list(env.notes),
    }
    comm.synchronize()
    comm.cleanup_distributed()
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")
    sys.stdout.flush()
