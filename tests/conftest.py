"""What every test stands on: one thread a process, loopback only, no account."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Time on a busy machine says nothing about an example; each test has a time-out of its own.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

_LOOPBACK = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")

# Set before torch is imported, and inherited by every rank that a test starts.
os.environ.update(
    OMP_NUM_THREADS="1",
    GLOO_SOCKET_IFNAME=_LOOPBACK,
    TP_SOCKET_IFNAME=_LOOPBACK,
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    WANDB_ERROR_REPORTING="false",
    TF_CPP_MIN_LOG_LEVEL="2",
)

# A launcher's or a user's own settings would change what the tests see.
for _name in (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "DISTMETRICS_DISABLED",
    "WANDB_API_KEY",
    "WANDB_BASE_URL",
):
    os.environ.pop(_name, None)
for _name in [name for name in os.environ if name.startswith(("SLURM_", "TORCHELASTIC_"))]:
    del os.environ[_name]


def pytest_configure() -> None:
    """One torch thread: the ranks of a test share few cores, and sums keep their order."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def wandb_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps its files in the test's temporary folder and finds no account."""
    for variable, folder in (
        ("WANDB_DIR", "wandb-dir"),
        ("WANDB_CACHE_DIR", "wandb-cache"),
        ("WANDB_CONFIG_DIR", "wandb-config"),
        ("WANDB_DATA_DIR", "wandb-data"),
        ("NETRC", "no-netrc"),
    ):
        monkeypatch.setenv(variable, str(tmp_path / folder))
