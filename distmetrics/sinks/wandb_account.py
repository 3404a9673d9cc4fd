"""Whether a W&B account is configured, found out without a prompt, a network or an import."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

_UPSTREAM = {"api.forge.coreweave.com": "api.wandb.ai", "forge.coreweave.com": "api.wandb.ai"}
"""W&B's cloud has moved; a key for its old address serves the new one too."""


class Account(Protocol):
    """What is read of `wandb.Settings`."""

    base_url: str
    api_key: str | None
    identity_token_file: str | None


def has_credentials(settings: Account) -> bool:
    """Whether W&B would find an API key or a token for its server without asking.

    It looks where W&B does: the settings (with the variables ``WANDB_API_KEY`` and
    ``WANDB_IDENTITY_TOKEN_FILE`` and the files of W&B in them) and the netrc file that
    ``wandb login`` writes.

    Example:
        >>> from types import SimpleNamespace
        >>> has_credentials(SimpleNamespace(api_key="local-0123", identity_token_file=None))
        True
    """
    if settings.api_key or settings.identity_token_file:
        return True
    host = urlsplit(settings.base_url).netloc
    hosts = {host, _UPSTREAM.get(host, host)}
    for file in _netrc_files():
        try:
            entries = netrc.netrc(str(file)).hosts
        except (OSError, netrc.NetrcParseError):
            continue  # no file, or one that W&B cannot read either
        if any(entries[name][2] for name in hosts & entries.keys()):
            return True
    return False


def _netrc_files() -> list[Path]:
    given = os.environ.get("NETRC")
    if given:
        return [Path(given).expanduser()]
    return [Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()]
