"""What `causeway init` asks for, and what it and `causeway doctor` find out about an app's settings."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

from channels.base import ChannelError, Env, Finding, SetupField
from channels.slack.api import Api, ApiError
from channels.slack.config import SlackConfig, secret

#: The bot's scopes, each with a method or event that needs it; docs/slack-manifest.yaml asks for the same.
SCOPES: dict[str, str] = {
    "app_mentions:read": "app_mention",
    "assistant:write": "assistant.threads.setSuggestedPrompts",
    "channels:history": "message.channels",
    "channels:read": "conversations.list",
    "chat:write": "chat.postMessage",
    "commands": "/causeway",
    "files:read": "files.info",
    "files:write": "files.getUploadURLExternal",
    "groups:history": "message.groups",
    "groups:read": "conversations.list",
    "im:history": "message.im",
    "im:read": "conversations.list",
    "mpim:history": "message.mpim",
    "mpim:read": "conversations.list",
    "reactions:write": "reactions.add",
    "users:read": "users.info",
}
#: Without these nothing works at all; the others switch single abilities off.
_VITAL = frozenset({"chat:write", "app_mentions:read", "im:history"})
_DEADLINE = 20.0
_PAGES = 5

SETUP = (
    SetupField(
        "bot_token",
        {
            "en": "api.slack.com/apps → your app → OAuth & Permissions → Bot User OAuth Token (xoxb-…)",
            "zh": "api.slack.com/apps → 你的应用 → OAuth & Permissions → Bot User OAuth Token（xoxb-…）",
        },
        secret=True,
    ),
    SetupField(
        "app_token",
        {
            "en": "Basic Information → App-Level Tokens, scope connections:write (xapp-…); for socket mode",
            "zh": "Basic Information → App-Level Tokens，权限 connections:write（xapp-…）；Socket 模式需要",
        },
        secret=True,
        required=False,
    ),
    SetupField(
        "signing_secret",
        {
            "en": "Basic Information → App Credentials → Signing Secret; for mode: http only",
            "zh": "Basic Information → App Credentials → Signing Secret；仅 mode: http 需要",
        },
        secret=True,
        required=False,
    ),
)


async def check(name: str, config: SlackConfig, env: Env, language: str = "") -> list[Finding]:
    """Look at an app from outside. Opens no socket: it only asks whether one could be opened."""
    try:
        config.require(name)
        api = await Api.connect(secret(config.bot_token), config.root)
    except ChannelError as error:
        return [Finding("error", str(error))]
    try:
        async with asyncio.timeout(_DEADLINE):
            return [finding async for finding in _findings(api, config, env, language, name)]
    except TimeoutError:
        return [_finding(env, language, "error", "slow")]
    finally:
        await api.close()


async def _findings(
    api: Api, config: SlackConfig, env: Env, language: str, name: str
) -> AsyncIterator[Finding]:
    try:
        me = await api.call("auth.test")
    except ApiError as error:
        key = "unreachable" if error.taken != "refused" or error.error.startswith("http_") else "token"
        yield _finding(env, language, "error", key, error=error.error)
        return
    yield _finding(env, language, "ok", "token_ok", bot=me.get("user"), team=me.get("team"))
    missing = [scope for scope in SCOPES if scope not in api.scopes]
    if missing and api.scopes:  # a server that is not Slack's does not tell
        level: Literal["error", "warning"] = "warning" if api.scopes >= _VITAL else "error"
        yield _finding(env, language, level, "scopes", scopes=", ".join(missing))
    elif api.scopes:
        yield _finding(env, language, "ok", "scopes_ok", count=len(SCOPES))
    if config.mode == "socket":
        yield await _socket(api, config, env, language)
    else:
        yield _public_url(env, language, name)
    yield await _membership(api, env, language, str(me.get("user") or ""))


async def _socket(api: Api, config: SlackConfig, env: Env, language: str) -> Finding:
    try:
        await api.call("apps.connections.open", _token=secret(config.app_token))
    except ApiError as error:
        return _finding(env, language, "error", "socket", error=error.error)
    return _finding(env, language, "ok", "socket_ok")


def _public_url(env: Env, language: str, name: str) -> Finding:
    if not env.public_url:
        return _finding(env, language, "warning", "no_url", path=f"/channels/{name}/events")
    if not env.public_url.startswith("https://"):
        return _finding(env, language, "warning", "no_tls", url=env.public_url)
    return _finding(env, language, "ok", "url_ok", url=f"{env.public_url}/channels/{name}/events")


async def _membership(api: Api, env: Env, language: str, bot: str) -> Finding:
    params = {"types": "public_channel,private_channel", "exclude_archived": True, "limit": 1000}
    count = 0
    try:
        async for channel in api.pages("conversations.list", "channels", _PAGES, **params):
            count += bool(channel.get("is_member"))
    except ApiError as error:
        return _finding(env, language, "warning", "channels_unknown", error=error.error)
    if not count:
        return _finding(env, language, "warning", "no_channel", bot=bot)
    return _finding(env, language, "ok", "channels_ok", count=count)


def _finding(
    env: Env, language: str, level: Literal["ok", "warning", "error"], key: str, **values: object
) -> Finding:
    cure = env.text(f"slack.check.{key}.cure", language, **values) if level != "ok" else ""
    return Finding(level, env.text(f"slack.check.{key}", language, **values), cure)
