"""What stood in a thread before the bot was called: asked of Slack once, within its limits."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from channels.base import ContextMessage, Inbound
from channels.slack.api import Api, ApiError
from channels.slack.inbound import SPOKEN, Identity, attachments
from channels.slack.mrkdwn_in import channels_in, full_text, readable, users_in
from channels.slack.people import People

log = logging.getLogger("causeway.slack")

#: Apps that are sold outside Slack's marketplace get 15 messages a call and one call a minute (changelog of
#: 2025-05-29), others what they ask for. A long thread is read so far and no further.
_PAGE, _PAGES = 200, 5
_PATIENCE = 10.0


async def earlier(
    api: Api, people: People, me: Identity, inbound: Inbound, limit: int
) -> tuple[ContextMessage, ...]:
    """Up to `limit` messages of the thread before `inbound`, oldest first, its first one always among them.

    Empty where there is no thread yet, or Slack does not tell.
    """
    thread = inbound.address.thread
    before = inbound.replaces or inbound.id.partition(":")[0]
    if not thread or thread == before or limit <= 0:
        return ()
    messages = await _read(api, inbound.address.chat, thread, before)
    spoken = [
        message
        for message in messages
        if (message.get("subtype") or "") in SPOKEN and float(message.get("ts") or 0) < float(before)
    ]
    if len(spoken) > limit:
        spoken = [*spoken[:1], *spoken[len(spoken) - limit + 1 :]] if limit > 1 else spoken[-1:]
    return await _described(people, me, spoken)


async def _read(api: Api, chat: str, thread: str, before: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params = {"channel": chat, "ts": thread, "latest": before, "limit": _PAGE}
    try:
        async with asyncio.timeout(_PATIENCE):
            async for message in api.pages("conversations.replies", "messages", _PAGES, **params):
                found.append(message)
    except (ApiError, TimeoutError) as error:
        log.info("the earlier messages of a thread are not known, or not all: %s", error)
    return found


async def _described(
    people: People, me: Identity, messages: list[dict[str, Any]]
) -> tuple[ContextMessage, ...]:
    texts = [full_text(message) for message in messages]
    authors = {str(m.get("user") or "") for m in messages} - {""}
    users = authors.union(*map(users_in, texts))
    names = await people.names(users, set[str]().union(*map(channels_in, texts)))
    described = []
    for message, text in zip(messages, texts, strict=True):
        own = message.get("user") == me.user or message.get("bot_id") == me.bot
        words = readable(text, names, "" if own else me.user)
        words += "".join(f"\n[{file.name}]" for file in attachments(message))
        if words := words.strip():
            name = names.users.get(str(message.get("user") or "")) or str(message.get("username") or "")
            described.append(ContextMessage("assistant" if own else "user", words, "" if own else name))
    return tuple(described)
