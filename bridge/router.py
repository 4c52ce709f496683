"""A message's first steps: seen before? may this person talk? a command? else into the inbox.

`receive` returns when the message is safe; only then does the channel acknowledge it to its platform.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict

from bridge.access import Access
from bridge.commands import Command, Commands, parse
from bridge.delivery import Delivery
from bridge.keys import session_key
from bridge.log import current_message, message_id
from bridge.sessions import Sessions
from bridge.store.base import Store, StoredReply
from bridge.texts import language_of, text
from channels.base import Inbound, Outbound, ReplyRef

log = logging.getLogger("causeway.router")

_MOST_TOLD = 10_000


def notice_id(inbound: Inbound) -> str:
    """The id of an answer that needs no run: the same message always gives the same id."""
    address = inbound.address
    parts = "\0".join((address.channel, address.chat, address.thread or "", inbound.id))
    return "c" + hashlib.sha256(parts.encode()).hexdigest()[:20]


class Router:
    """Where every channel delivers its messages."""

    def __init__(
        self,
        store: Store,
        access: Access,
        commands: Commands,
        sessions: Sessions,
        delivery: Delivery,
        inbox_cap: int,
    ) -> None:
        self._store = store
        self._access = access
        self._commands = commands
        self._sessions = sessions
        self._delivery = delivery
        self._cap = inbox_cap
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def receive(self, inbound: Inbound) -> None:
        """Take a message in. Raises StoreError when it could not be kept: do not acknowledge it then."""
        token = current_message.set(message_id(inbound))
        try:
            await self._receive(inbound)
        finally:
            current_message.reset(token)

    async def _receive(self, inbound: Inbound) -> None:
        verdict = self._access.decide(inbound)
        if verdict.kind == "ignored":
            return
        session = session_key(inbound.address)
        language = inbound.sender.language or language_of("", inbound.text)
        if verdict.kind == "denied":
            await self._deny(inbound, session, language)
            return
        command = parse(inbound.text)
        if command is not None and not command.queued:
            await self._command(command, inbound, session, language, verdict.admin)
            return
        if command is None and self._sessions.questions.waits_for(session, inbound):
            await self._answer(inbound, session, language)
            return
        result = await self._store.accept(inbound, session, self._cap)
        if result == "accepted":
            log.info("received")
            self._sessions.wake(session)
        elif result == "full":
            log.warning("inbox of %s is full", session)
            reply = self._reply(inbound, session, language, text("inbox.full", language, cap=self._cap))
            await self._store.open_reply(reply)
            self._delivery.deliver(reply)

    async def _command(
        self, command: Command, inbound: Inbound, session: str, language: str, admin: bool
    ) -> None:
        if command.acts:
            # It changes something, so it must not run twice: marked as seen first.
            if not await self._store.mark_seen(inbound):
                return
            answer = await self._commands.run(command, inbound, session, language, admin)
            reply = self._reply(inbound, session, language, answer)
            await self._store.open_reply(reply)
        else:
            answer = await self._commands.run(command, inbound, session, language, admin)
            reply = self._reply(inbound, session, language, answer)
            if not await self._store.mark_seen(inbound, reply):
                return
        self._delivery.deliver(reply)

    async def _answer(self, inbound: Inbound, session: str, language: str) -> None:
        """A message that answers an open question of a run; a second delivery of it answers nothing."""
        if not await self._store.mark_seen(inbound):
            return
        if self._sessions.questions.hear(session, inbound):
            # It gets no reply of its own: the run that asked goes on.
            await self._delivery.unanswered(ReplyRef(notice_id(inbound), inbound.address, inbound.id))
            return
        reply = self._reply(inbound, session, language, text("question.late", language))
        await self._store.open_reply(reply)
        self._delivery.deliver(reply)

    async def _deny(self, inbound: Inbound, session: str, language: str) -> None:
        """Tell an unknown person once what their id is; afterwards be silent."""
        who = (inbound.address.channel, inbound.sender.id)
        asked = parse(inbound.text)
        wants_id = asked is not None and asked.name == "whoami" and inbound.address.kind == "direct"
        if not wants_id:
            if who in self._told:
                return
            if await self._store.get_setting("told", "\0".join(who)) is not None:
                self._remember(who)
                return
        answer = text("access.denied", language, id=inbound.sender.id, channel=inbound.address.channel)
        reply = self._reply(inbound, session, language, answer)
        if not await self._store.mark_seen(inbound, reply):
            return
        await self._store.put_setting("told", "\0".join(who), True)
        self._remember(who)
        log.info("unknown person %s told their id", inbound.sender.id)
        self._delivery.deliver(reply)

    def _remember(self, who: tuple[str, str]) -> None:
        self._told[who] = None
        if len(self._told) > _MOST_TOLD:
            self._told.popitem(last=False)

    def _reply(self, inbound: Inbound, session: str, language: str, answer: str) -> StoredReply:
        ref = ReplyRef(notice_id(inbound), inbound.address, inbound.id, language)
        return self._delivery.command_reply(ref, session, Outbound(answer))
