"""Which channel types there are: one line each. A type's module is imported only when it is configured."""

from __future__ import annotations

import difflib
from importlib import import_module

from channels.base import Channel, ChannelError

TYPES = {
    "telegram": "channels.telegram.channel:TelegramChannel",
    "web": "channels.web.channel:WebChannel",
    "api": "channels.api.channel:ApiChannel",
    "slack": "channels.slack.channel:SlackChannel",
    "wechat": "channels.wechat.channel:WechatChannel",
    "wecom": "channels.wecom.channel:WecomChannel",
    "wecom_bot": "channels.wecom_bot.channel:WecomBotChannel",
    "terminal": "channels.terminal.channel:TerminalChannel",
}
#: Where the extra of the package is not named for the type.
EXTRAS = {"wecom": "wechat", "wecom_bot": "wechat"}


def load(kind: str) -> type[Channel]:
    """The class of a channel type. Raises ChannelError for one that is unknown or cannot be imported."""
    place = TYPES.get(kind)
    if place is None:
        raise ChannelError(unknown_type(kind))
    module, name = place.split(":")
    try:
        found = getattr(import_module(module), name)
    except ImportError as error:
        raise ChannelError(
            f"The channel type {kind!r} cannot be loaded ({error}). "
            f"Install what it needs: pip install 'causeway[{EXTRAS.get(kind, kind)}]'."
        ) from error
    if not (isinstance(found, type) and issubclass(found, Channel)):
        raise ChannelError(f"The channel type {kind!r} is broken: {place} is no channel.")
    return found


def unknown_type(kind: str) -> str:
    """Why a type cannot be had, and what to write instead."""
    known = ", ".join(TYPES)
    near = difflib.get_close_matches(kind.lower(), TYPES, n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    return f"There is no channel type {kind!r}. {hint}There are: {known}. Name one with type."
