"""Whether a W&B account is configured, found out without a prompt, a network or an import."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit


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
    for file in _netrc_files():
        try:
            found = netrc.netrc(str(file)).hosts.get(host)
        except (OSError, netrc.NetrcParseError):
            continue  # no file, or one that W&B cannot read either
        if found is not None and found[2]:
            return True
    return False


def _netrc_files() -> list[Path]:
    given = os.environ.get("NETRC")
    if given:
        return [Path(given).expanduser()]
    return [Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()]
