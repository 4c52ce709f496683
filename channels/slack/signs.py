"""Signs of life: the status under a thread while the bot works, and the reaction to a message taken up."""

from __future__ import annotations

import logging

from channels.base import ReplyRef
from channels.slack.api import Api, ApiError
from channels.slack.errors import refuse

log = logging.getLogger("causeway.slack")

_TIMEOUT = 10.0


class Signs:
    """Failures are logged, never raised; what Slack refuses in a channel (or at all) is not asked again."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._refused: set[str] = set()  # channels, or "*"

    async def status(self, ref: ReplyRef, words: str) -> bool:
        """Show words under the thread, for two minutes or until the next message; "" takes them away."""
        chat = ref.address.chat
        if self._refused & {"*", chat}:
            return False
        try:
            await self._api.call(
                "assistant.threads.setStatus",
                _TIMEOUT,
                channel_id=chat,
                thread_ts=ref.address.thread,
                status=words,
            )
        except ApiError as error:
            if error.taken == "refused" and error.error != "ratelimited":
                refuse(self._refused, chat, error)
                log.info("no status while working: %s", error)
            return False
        return True

    async def react(self, ref: ReplyRef, emoji: str) -> None:
        if not emoji or "." not in ref.to:
            return
        try:
            await self._api.call(
                "reactions.add", _TIMEOUT, channel=ref.address.chat, timestamp=ref.to, name=emoji
            )
        except ApiError as error:
            if error.error != "already_reacted":
                log.info("the reaction was not added: %s", error)
