"""The settings of one Telegram bot, and what they say about the way to its server."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, SecretStr

from channels.base import ChannelConfig, ChannelError

_TOKEN = re.compile(r"\d+:\S+")
_SECRET = re.compile(r"[A-Za-z0-9_-]{1,256}")  # Bot API, setWebhook
_PROXIES = ("http", "https", "socks5", "socks5h")


class TelegramConfig(ChannelConfig):
    """`base_url` is the server's root. `local_server`: it is a Bot API server of one's own, started with
    `--local`, whose files lie on this machine's disk. `proxy` may hold a user and a password.

    `edits`: what an edited message does to one that still waits. `channel_posts`, `business`: whether posts
    of channels, and chats of people who connected the bot to their business account, are taken.

    `drafts`: growing text in private chats is shown as drafts where the server knows them, else by edits.
    `reaction`: an emoji put on a message that was taken up, one that Telegram offers; empty: none. `rate`:
    calls a second over all chats; empty: 30 at Telegram's own server, elsewhere whatever the server takes.
    """

    token: SecretStr
    base_url: str = "https://api.telegram.org"
    local_server: bool = False
    proxy: SecretStr | None = None
    mode: Literal["polling", "webhook"] = "polling"
    webhook_secret: SecretStr | None = None
    edits: Literal["ignore", "correct"] = "ignore"
    channel_posts: bool = False
    business: bool = False
    drafts: Literal["auto", "off"] = "auto"
    reaction: str = ""
    rate: float | None = Field(default=None, gt=0)


@dataclass(frozen=True, slots=True)
class Account:
    """A bot and the way to it. `root` has no slash at its end; `proxy` is empty for none."""

    token: str = field(repr=False)
    root: str
    proxy: str = field(default="", repr=False)


def account(name: str, config: TelegramConfig) -> Account:
    """What the settings of the instance `name` say. Raises ChannelError that names the wrong one."""
    where = f"channels.{name}"
    token = config.token.get_secret_value().strip()
    if not _TOKEN.fullmatch(token):
        raise ChannelError(f"{where}.token is no bot token (digits, colon, letters); take it from @BotFather")
    root = config.base_url.strip().rstrip("/").removesuffix("/bot").rstrip("/")
    if not root.startswith(("http://", "https://")):
        raise ChannelError(f"{where}.base_url must begin with http:// or https://")
    proxy = config.proxy.get_secret_value().strip() if config.proxy else ""
    if proxy and not _is_proxy(proxy):
        raise ChannelError(f"{where}.proxy must be like http://host:port or socks5://user:password@host:port")
    return Account(token, root, proxy)


def _is_proxy(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in _PROXIES and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False


def webhook_secret(name: str, config: TelegramConfig) -> str:
    """The secret that Telegram repeats with each delivery. Raises ChannelError without a usable one."""
    secret = config.webhook_secret.get_secret_value() if config.webhook_secret else ""
    if not _SECRET.fullmatch(secret):
        raise ChannelError(
            f"channels.{name}.webhook_secret is needed in mode: webhook, 1 to 256 letters, digits, _ or -; "
            "make one with: python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
    return secret
