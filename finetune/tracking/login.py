"""Find the login that Weights & Biases would use, without a prompt."""

from __future__ import annotations

import configparser
import logging
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

_PUBLIC_HOSTS = ["api.wandb.ai", "api.forge.coreweave.com"]  # its old and its new host


def wandb_mode() -> str:
    """The requested mode; offline where an online mode would prompt for a login."""
    mode = os.environ.get("WANDB_MODE") or ("online" if logged_in() else "offline")
    if mode not in ("offline", "dryrun", "disabled") and not logged_in():
        log.warning("Weights & Biases stays offline: WANDB_MODE is %s, but there is no login", mode)
        return "offline"
    return "offline" if mode == "dryrun" else mode


def logged_in() -> bool:
    """Whether Weights & Biases finds a key for its server without a prompt."""
    stored = _stored_settings()
    if os.environ.get("WANDB_API_KEY") or stored.get("api_key"):
        return True
    server = os.environ.get("WANDB_BASE_URL") or stored.get("base_url")
    hosts = [urlsplit(server).netloc] if server else _PUBLIC_HOSTS
    try:
        keys = netrc.netrc(os.environ.get("NETRC"))
    except (OSError, netrc.NetrcParseError):
        return False
    return any(keys.authenticators(host) for host in hosts)


def _stored_settings() -> Mapping[str, str]:
    """The settings that `wandb login` stores besides .netrc."""
    folder = Path(os.path.expanduser(os.environ.get("WANDB_CONFIG_DIR", "~/.config/wandb")))
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read(folder / "settings")
    except (configparser.Error, UnicodeDecodeError):
        return {}
    return parser["default"] if parser.has_section("default") else {}
