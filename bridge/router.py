"""A message's first steps: may this person talk? is the bot meant? a command? else into the inbox.

`receive` returns when the message is safe; only then does the channel acknowledge it to its platform.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal, cast

from bridge.access import Access, Verdict
from bridge.addressing import Answer, Meant, meant
from bridge.commands import Command, Commands, completed, parse, suggestion
from bridge.delivery import Delivery
from bridge.doorbell import Doorbell
from bridge.ledger import Ledger, Over
from bridge.log import current_message, message_id
from bridge.notes import Notes, place
from bridge.overheard import Overheard
from bridge.pairing import Pairing
from bridge.sessions import Sessions
from bridge.store.base import Store, StoredReply
from bridge.texts import language_of, text
from bridge.turns import speaker
from channels.base import Channel, Inbound, Outbound, ReplyRef

log = logging.getLogger("causeway.router")

_MOST_TOLD = 10_000
#: Messages of bots in a row that a session answers; then a person has to write.
MOST_BOT_TURNS = 5


def notice_id(inbound: Inbound, kind: str = "") -> str:
    """The id of an answer that needs no run: the same message always gives the same id."""
    address = inbound.address
    parts = "\0".join((address.channel, address.chat, address.thread or "", inbound.id, kind))
    return "c" + hashlib.sha256(parts.encode()).hexdigest()[:20]


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A message with what is known about it."""

    inbound: Inbound
    session: str
    language: str
    verdict: Verdict


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
        *,
        notes: Notes,
        pairing: Pairing,
        doorbell: Doorbell,
        overheard: Overheard,
        ledger: Ledger,
    ) -> None:
        self._store = store
        self._access = access
        self._commands = commands
        self._sessions = sessions
        self._delivery = delivery
        self._cap = inbox_cap
        self._notes = notes
        self._pairing = pairing
        self._doorbell = doorbell
        self._overheard = overheard
        self._ledger = ledger
        self._told: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._bots: OrderedDict[str, int] = OrderedDict()

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
            await self._silent(inbound)
            return
        language = inbound.sender.language or language_of("", inbound.text)
        arrived = _Arrived(inbound, self._sessions.key(inbound), language, verdict)
        if inbound.replaces:
            if verdict.kind == "allowed" and await self._store.amend(inbound, arrived.session):
                log.info("a waiting message was corrected")
            return
        if verdict.kind != "allowed":
            await self._stranger(arrived)
            return
        if inbound.address.kind == "direct" and not inbound.addressed:
            await self._silent(inbound)
            return
        if inbound.address.kind != "direct":
            found = await self._meant(arrived)
            if not found.answer:
                await self._overhear(arrived)
                return
            arrived = replace(arrived, inbound=replace(inbound, text=found.text, addressed=True))
        await self._allowed(arrived)

    async def _allowed(self, arrived: _Arrived) -> None:
        inbound, session = arrived.inbound, arrived.session
        channel = self._channel(inbound)
        if arrived.verdict.admin and inbound.address.kind == "direct" and not (channel and channel.local):
            await self._doorbell.seen(inbound)
        if self._bot_loop(session, inbound):
            log.warning("session %s: %d messages of bots in a row; no answer until a person writes", session,
                        MOST_BOT_TURNS)  # fmt: skip
            await self._silent(inbound)
            return
        if not arrived.verdict.admin and await self._invited(arrived):
            return
        command = parse(inbound.text) or completed(inbound.text)
        asked = self._sessions.questions.waits_for(session, inbound)
        if asked and (command is None or (command.name in ("approve", "deny") and not command.argument)):
            await self._answer(arrived)
            return
        if command is not None and not command.queued:
            await self._command(command, arrived)
            return
        if command is None and (near := suggestion(inbound.text)) is not None:
            await self._say(arrived, text("command.near", arrived.language, name=near))
            return
        address = inbound.address
        over = await self._ledger.admit(address.channel, address.chat, inbound.sender.id, inbound.id)
        if over is not None:
            await self._over(arrived, over)
            return
        await self._take(arrived)

    async def _take(self, arrived: _Arrived) -> None:
        inbound, session = arrived.inbound, arrived.session
        busy = self._sessions.busy(session)
        write = asyncio.ensure_future(self._store.accept(inbound, session, self._cap))
        try:
            result = await asyncio.shield(write)
        except asyncio.CancelledError:
            # A channel that waits no longer (the store is locked). The write may be committed all the same,
            # and the repetition is then nothing new: nobody else would wake the session.
            write.add_done_callback(lambda done: self._late(done, session))
            raise
        if result == "accepted":
            log.info("received")
            self._sessions.wake(session)
            if busy:
                await self._acknowledge(arrived)
        elif result == "full":
            log.warning("inbox of %s is full", session)
            reply = self._reply(arrived, text("inbox.full", arrived.language, cap=self._cap))
            await self._store.open_reply(reply)
            self._delivery.deliver(reply)
        elif not self._sessions.busy(session):
            # It was delivered before, perhaps to a process that died half-way (in Redis there are several
            # steps): then it is in the inbox only now, and nobody has been told.
            self._sessions.wake(session)

    def _late(self, write: asyncio.Future[Literal["accepted", "seen", "full"]], session: str) -> None:
        if not write.cancelled() and write.exception() is None and write.result() == "accepted":
            log.info("received late")
            self._sessions.wake(session)

    async def _acknowledge(self, arrived: _Arrived) -> None:
        """Say in a word what happens to a message that gets no answer of its own."""
        channel = self._channel(arrived.inbound)
        if channel is None or channel.limits.idempotent or arrived.inbound.album:
            return
        mode = self._sessions.mode(arrived.session, channel)
        if mode != "queue":
            reply = self._reply(arrived, text(f"busy.{mode}", arrived.language), kind="busy")
            await self._store.open_reply(reply)
            self._delivery.deliver(reply)

    def _channel(self, inbound: Inbound) -> Channel | None:
        return self._delivery.channels.get(inbound.address.channel)

    # -- in a group ------------------------------------------------------------------------------------

    async def _meant(self, arrived: _Arrived) -> Meant:
        inbound = arrived.inbound
        address, rule = inbound.address, self._access.group_rule(inbound.address)
        channel = self._channel(inbound)
        joins = rule.threads if rule.threads is not None else channel is not None and channel.joins_threads
        in_thread = joins and address.thread is not None and await self._sessions.takes_part(arrived.session)
        home = self._notes.home(address)
        activation = self._notes.get("activation", place(address, home)) or self._notes.get(
            "activation", place(replace(address, thread=None), home)
        )
        cue = inbound.cue or ("mention" if inbound.addressed else "")
        return meant(
            inbound.text, cue, rule, in_thread=in_thread, activation=cast("Answer | None", activation)
        )

    async def _overhear(self, arrived: _Arrived) -> None:
        inbound = arrived.inbound
        by = f"[{speaker(inbound.sender.name, inbound.sender.id)}]"
        rule = self._access.group_rule(inbound.address)
        await self._overheard.keep(arrived.session, inbound, by, rule.overhear)

    def _bot_loop(self, session: str, inbound: Inbound) -> bool:
        """Whether bots have had the last words of a session for too long. A person's message ends that."""
        if not inbound.sender.is_bot:
            self._bots.pop(session, None)
            return False
        count = self._bots.pop(session, 0) + 1
        self._bots[session] = count
        if len(self._bots) > _MOST_TOLD:
            self._bots.popitem(last=False)
        return count > MOST_BOT_TURNS

    # -- answers that need no run ----------------------------------------------------------------------

    async def _command(self, command: Command, arrived: _Arrived) -> None:
        inbound, session, language = arrived.inbound, arrived.session, arrived.language
        if command.acts:
            # It changes something, so it must not run twice: marked as seen first, together with what its
            # person is told when the process dies before it is done.
            reply = self._reply(arrived, text("command.cut_off", language, name=command.name))
            if not await self._store.mark_seen(inbound, reply):
                return
            self._delivery.preparing[reply.id] = session
            try:
                answer = await self._commands.run(command, inbound, session, language, arrived.verdict.role)
                reply = self._reply(arrived, answer)
                await self._store.complete_reply(reply)
            except Exception:
                self._delivery.deliver(reply)
                raise
            finally:
                del self._delivery.preparing[reply.id]
        else:
            answer = await self._commands.run(command, inbound, session, language, arrived.verdict.role)
            reply = self._reply(arrived, answer)
            if not await self._store.mark_seen(inbound, reply):
                return
        self._delivery.deliver(reply)

    async def _answer(self, arrived: _Arrived) -> None:
        """A message that answers an open question of a run; a second delivery of it answers nothing."""
        inbound = arrived.inbound
        if not await self._store.mark_seen(inbound):
            return
        if self._sessions.questions.hear(arrived.session, inbound):
            # It gets no reply of its own: the run that asked goes on.
            await self._silent(inbound)
            return
        reply = self._reply(arrived, text("question.late", arrived.language))
        await self._store.open_reply(reply)
        self._delivery.deliver(reply)

    async def _over(self, arrived: _Arrived, over: Over) -> None:
        """A limit is reached: said once for as long as it lasts, and the message is not taken."""
        if over.told:
            await self._store.mark_seen(arrived.inbound)
            await self._silent(arrived.inbound)
            return
        key = f"limit.{over.kind}.{over.whose}"
        wait = over.seconds if over.kind == "messages" else round(over.seconds / 3600) or 1
        log.warning("session %s: the limit %s of %d is reached", arrived.session, key, over.limit)
        await self._say(arrived, text(key, arrived.language, limit=over.limit, wait=wait), private=True)

    async def _silent(self, inbound: Inbound) -> None:
        """Nothing is said to a message: whoever holds a request open for its answer need not wait."""
        person, via = inbound.sender.id, inbound.via
        ref = ReplyRef(notice_id(inbound), inbound.address, inbound.id, person=person, via=via)
        await self._delivery.unanswered(ref)

    async def _say(self, arrived: _Arrived, words: str, *, private: bool = False) -> None:
        """Answer a message at once, without a run."""
        reply = self._reply(arrived, words, private=private)
        if await self._store.mark_seen(arrived.inbound, reply):
            self._delivery.deliver(reply)

    # -- people who are not known ----------------------------------------------------------------------

    async def _invited(self, arrived: _Arrived) -> bool:
        """`/start CODE` with an invitation: its person gets what it gives. Whether it was one."""
        inbound, language = arrived.inbound, arrived.language
        command = parse(inbound.text)
        if (
            inbound.address.kind != "direct"
            or command is None
            or command.name != "start"
            or not command.argument
        ):
            return False
        role = await self._pairing.accept(command.argument, inbound)
        if role is None:
            return False
        log.info("%s was let in by an invitation, as %s", inbound.sender.id, role)
        await self._say(arrived, text("pairing.welcome", language, role=text(f"role.{role}", language)))
        return True

    async def _stranger(self, arrived: _Arrived) -> None:
        inbound = arrived.inbound
        direct = inbound.address.kind == "direct"
        if await self._invited(arrived):
            return
        if arrived.verdict.kind == "pairing":
            await self._pair(arrived)
            return
        if direct or inbound.addressed:
            await self._deny(arrived)

    async def _pair(self, arrived: _Arrived) -> None:
        """The message that asked is not run: it only leads to a code."""
        inbound, language = arrived.inbound, arrived.language
        # An admin may have let them in from another process.
        await self._pairing.look_up(inbound.address.channel, inbound.sender.id)
        verdict = self._access.decide(inbound)
        if verdict.kind == "allowed":
            await self._allowed(replace(arrived, verdict=verdict))
            return
        what, code = await self._pairing.ask(inbound)
        command = parse(inbound.text)
        if what == "quiet" and not (command is not None and command.name == "whoami"):
            await self._store.mark_seen(inbound)
            await self._silent(inbound)
            return
        if what == "full":
            await self._deny(arrived, key="pairing.full")
            return
        channel = inbound.address.channel
        log.warning(
            "%s asks to talk on %s; let them in with: causeway pair approve %s",
            inbound.sender.id,
            channel,
            code,
        )
        if what == "new" and (request := await self._pairing.request(code)) is not None:
            self._doorbell.ring(request)
        words = text("pairing.code", language, code=code, id=inbound.sender.id, channel=channel)
        await self._say(arrived, words, private=True)

    async def _deny(self, arrived: _Arrived, key: str = "access.denied") -> None:
        """Tell an unknown person once what their id is; afterwards be silent."""
        inbound = arrived.inbound
        who = (inbound.address.channel, inbound.sender.id)
        asked = parse(inbound.text)
        wants_id = asked is not None and asked.name == "whoami" and inbound.address.kind == "direct"
        if not wants_id:
            if who not in self._told and await self._store.get_setting("told", "\0".join(who)) is not None:
                self._remember(who)
            if who in self._told:
                await self._silent(inbound)
                return
        answer = text(key, arrived.language, id=inbound.sender.id, channel=inbound.address.channel)
        reply = self._reply(arrived, answer, private=True)
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

    def _reply(self, arrived: _Arrived, answer: str, *, kind: str = "", private: bool = False) -> StoredReply:
        inbound = arrived.inbound
        ref = ReplyRef(
            notice_id(inbound, kind),
            inbound.address,
            inbound.id,
            arrived.language,
            inbound.sender.id,
            private,
            inbound.via,
        )
        return self._delivery.command_reply(ref, arrived.session, Outbound(answer))
