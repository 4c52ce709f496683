"""What goes out to Telegram: messages, drafts, edits, files, questions, signs of life.

Every call that changes what a chat shows goes through `_call`: one at a time in each chat, in order, at the
pace of `pacing`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from channels.base import (
    Address,
    Choice,
    Chunk,
    Env,
    Flooded,
    Gone,
    Lost,
    MenuEntry,
    NotSent,
    Outbound,
    Rejected,
    ReplyRef,
    SendError,
)
from channels.telegram.api import CALL_TIMEOUT, UPLOAD_TIMEOUT, Api, ApiError
from channels.telegram.cards import commands, keyboard
from channels.telegram.chats import split_chat
from channels.telegram.chunks import split
from channels.telegram.drafts import Drafts, draft_id
from channels.telegram.errors import bad_entities, not_modified, send_error
from channels.telegram.format import markdown
from channels.telegram.lanes import Busy, Lanes
from channels.telegram.media import MAX_UPLOAD, MAX_UPLOAD_LOCAL, Files, file_chunks
from channels.telegram.pacing import GROUP, LONGEST_WAIT, PRIVATE, RATE, Pacer, Urgency
from channels.telegram.recent import Recent
from channels.telegram.styled import PLAIN, clean

if TYPE_CHECKING:
    from channels.telegram.config import TelegramConfig

log = logging.getLogger("causeway.telegram")

Data: TypeAlias = dict[str, Any]

#: Where Telegram itself serves the Bot API.
OFFICIAL = "api.telegram.org"
#: What the bridge puts in place of a streamed chunk that the final text does not have.
TAKEN_BACK = Chunk("…")
#: The message to edit cannot be edited (any more); its text is posted anew.
_LOST = (
    "message to edit not found",
    "message can't be edited",
    "message_id_invalid",
    "there is no text in the message to edit",
)
_SIGN_TIMEOUT = 10.0
#: Seconds to wait for one's turn in a chat, and the most that wait in all chats together.
_TURN = 5.0
_MOST_WAITING = 5000
_REMEMBERED = 2000
_MOVED, _FORUM = "moved:", "forum:"


class Sending:
    """The sending half of one bot. `api` is None while the channel does not run."""

    def __init__(self, name: str, config: TelegramConfig, env: Env) -> None:
        self.name = name
        self.config = config
        self.env = env
        self.api: Api | None = None
        rate = config.rate or (RATE if OFFICIAL in config.base_url else None)
        self.pacer = Pacer(env.clock, rate)
        self._lanes = Lanes(_MOST_WAITING)
        self._drafts = Drafts(config.drafts == "auto", env.clock)
        self._files = Files(env.text, MAX_UPLOAD_LOCAL if config.local_server else MAX_UPLOAD)
        self._forums: Recent[bool] = Recent(_REMEMBERED)
        self._moved: Recent[str] = Recent(_REMEMBERED)  # group -> the supergroup it became
        self._moving = asyncio.Lock()

    async def note_forum(self, chat: str) -> None:
        """The chat has topics: its General topic wants to be named in a typing sign. Other gateways, which
        may show it, are not told by Telegram. Raises what the store raises."""
        if not self._forums.get(chat):
            await self.env.state.put(_FORUM + chat, True)
            self._forums.put(chat, True)

    async def _is_forum(self, address: Address) -> bool:
        if address.kind == "direct":
            return False
        known = self._forums.get(address.chat)
        if known is None:
            known = bool(await self.env.state.get(_FORUM + address.chat))
            self._forums.put(address.chat, known)
        return known

    async def note_moved(self, old: str, new: str) -> None:
        """A group became a supergroup with a new id. Both chats and refused calls tell it; the bridge hears
        it once. Raises what the bridge raises."""
        self._moved.put(old, new)
        async with self._moving:
            if await self.env.state.get(_MOVED + old) == new:
                return
            log.warning("group %s became supergroup %s; replies follow it", old, new)
            await self.env.moved(old, new)
            await self.env.state.put(_MOVED + old, new)

    # -- messages ------------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        # What Markdown shows nothing of (an empty fence) is still what was said.
        pieces = split(markdown(outbound.text)) or split([(clean(outbound.text), PLAIN)])
        chunks = [Chunk(text, {"entities": entities} if entities else {}) for text, entities in pieces]
        chunks = [chunk if chunk != TAKEN_BACK else Chunk("…", {"entities": []}) for chunk in chunks]
        return chunks + file_chunks(outbound.files)

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        place = _place(ref.address)
        if n == 0 and ref.to.isdigit() and ref.address.kind != "direct":
            place["reply_parameters"] = {"message_id": int(ref.to), "allow_sending_without_reply": True}
        if chunk.file is not None:

            async def write(method: str, params: Data) -> Any:
                return await self._write(ref.address, method, params, "final")

            return await self._files.post(write, ref, n, chunk, place)
        if not final and self._drafts.usable(ref.address) and await self._draft(ref, n, chunk):
            return ""
        message = await self._write(
            ref.address, "sendMessage", place | _text_of(chunk), "final" if final else "new"
        )
        self._drafts.ended(ref.id)
        return str(message["message_id"])

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if chunk.file is not None:
            return  # a file is posted when it is final and does not change
        place = _place(ref.address, topic=False) | {"message_id": int(message_id)}
        if final and chunk == TAKEN_BACK and await self._delete(ref.address, place):
            return
        urgency: Urgency = "final" if final else "growing"
        try:
            await self._write(ref.address, "editMessageText", place | _text_of(chunk), urgency)
        except _NotModified:
            return

    async def end(self, ref: ReplyRef) -> None:
        self._drafts.ended(ref.id)

    async def _draft(self, ref: ReplyRef, n: int, chunk: Chunk) -> bool:
        """Show growing text as a draft. False: this chat has none. Raises SendError."""
        number = draft_id(ref.id, n)
        params = _place(ref.address) | {"draft_id": number, "text": chunk.text}
        params["entities"] = chunk.data.get("entities") or None
        again = self._drafts.shown(ref.id) == number
        try:
            await self._call(ref.address, "sendMessageDraft", params, "growing" if again else "new")
        except ApiError as error:
            failure = send_error(error)
            if error.code in (400, 404) and not isinstance(failure, Gone):
                self._drafts.refused(ref.address, error)
                return False
            # A draft passes away: whether it was seen does not matter.
            raise NotSent(str(error)) if error.taken == "maybe" else failure from None
        self._drafts.showed(ref.id, params)
        return True

    async def _delete(self, address: Address, place: Data) -> bool:
        if "business_connection_id" in place:
            return False
        try:
            await self._call(address, "deleteMessage", place, "final")
        except ApiError as error:
            log.info("a message that was taken back could not be deleted: %s", error)
            return error.code == 400 and "not found" in error.reason.lower()
        return True

    # -- questions, signs ----------------------------------------------------------------------------------

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        *before, last = self.render(Outbound(question)) or [Chunk("?")]
        for n, chunk in enumerate(before):
            await self.post(ref, n, chunk, final=True)
        try:
            params = _place(ref.address) | _text_of(last) | {"reply_markup": keyboard(choices)}
        except ValueError as error:
            raise Rejected(f"the question cannot be asked with buttons: {error}") from None
        if ref.to.isdigit() and ref.address.kind != "direct":
            params["reply_parameters"] = {"message_id": int(ref.to), "allow_sending_without_reply": True}
        message = await self._write(ref.address, "sendMessage", params, "final")
        return str(message["message_id"])

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        first, *more = self.render(Outbound(outcome)) or [Chunk("✓")]
        place = _place(ref.address, topic=False) | {"message_id": int(message_id)}
        try:
            # Without reply_markup an edit takes the buttons away.
            await self._write(ref.address, "editMessageText", place | _text_of(first), "final")
        except _NotModified:
            return
        except Lost as error:
            log.info("the question is gone, so its outcome is not shown: %s", error)
            return
        for n, chunk in enumerate(more, 1):
            await self.post(ref, n, chunk, final=True)

    async def typing(self, ref: ReplyRef) -> None:
        address = ref.address
        chat = await self._current(address.chat)
        if address.kind == "channel" or self.api is None or self.pacer.paused(chat):
            return
        place = _place(address) | {"chat_id": split_chat(chat)[0]}
        if address.thread in (None, "1") and await self._is_forum(address):
            place["message_thread_id"] = 1  # here General does want its id
        try:
            await self.api.call("sendChatAction", _SIGN_TIMEOUT, action="typing", **place)
            draft = self._drafts.stale(ref.id)
            if draft is not None:
                await self._call(address, "sendMessageDraft", draft, "growing", while_draft=ref.id)
        except (ApiError, SendError) as error:
            log.debug("the typing sign was not shown: %s", error)

    async def acknowledge(self, ref: ReplyRef) -> None:
        business = split_chat(ref.address.chat)[1]  # there bots cannot react
        if not self.config.reaction or not ref.to.isdigit() or business or self.api is None:
            return
        chat = await self._current(ref.address.chat)
        if self.pacer.paused(chat):
            return
        try:
            await self.api.call(
                "setMessageReaction",
                _SIGN_TIMEOUT,
                chat_id=chat,
                message_id=int(ref.to),
                reaction=[{"type": "emoji", "emoji": self.config.reaction}],
            )
        except ApiError as error:
            level = logging.WARNING if "REACTION" in error.reason else logging.DEBUG
            log.log(level, "channels.%s.reaction could not be shown: %s", self.name, error)

    async def menu(self, entries: Sequence[MenuEntry]) -> None:
        token = self.config.token.get_secret_value()
        for key, language, code in (("menu:en", "en", None), ("menu:zh", "zh", "zh")):
            shown = commands(entries, language)
            stamp = token.partition(":")[0] + hashlib.sha256(json.dumps(shown).encode()).hexdigest()
            if await self.env.state.get(key) == stamp:
                continue
            while True:
                try:
                    await self._client().call("setMyCommands", commands=shown, language_code=code)
                except ApiError as error:
                    if "BOT_COMMANDS_TOO_MUCH" not in error.reason or len(shown) < 2:
                        raise send_error(error) from None
                    shown = shown[: len(shown) * 3 // 4]
                else:
                    break
            await self.env.state.put(key, stamp)

    # -- calls ---------------------------------------------------------------------------------------------

    def _client(self) -> Api:
        if self.api is None:
            raise NotSent(f"channel {self.name} is not running")
        return self.api

    async def _write(self, address: Address, method: str, params: Data, urgency: Urgency) -> Any:
        """One call that changes what a chat shows; refused formatting is dropped. Raises SendError."""
        for _ in range(2):
            try:
                return await self._call(address, method, params, urgency)
            except ApiError as error:
                entities = next((key for key in ("entities", "caption_entities") if params.get(key)), "")
                if not_modified(error):
                    raise _NotModified(str(error)) from None
                if entities and bad_entities(error):
                    log.warning("%s: the formatting was refused (%s); sent plain", method, error.reason)
                    params = params | {entities: None}
                    continue
                if method == "editMessageText" and any(words in error.reason.lower() for words in _LOST):
                    raise Lost(str(error)) from None
                raise send_error(error) from None
        raise Rejected(f"Telegram {method}: refused again and again")

    async def _call(
        self, address: Address, method: str, params: Data, urgency: Urgency, while_draft: str = ""
    ) -> Any:
        """One call in its chat's turn and at its pace; follows a group that moved. Raises ApiError, Flooded.

        `while_draft`: only when the draft of this reply is still to be seen."""
        chat = await self._current(address.chat)
        pace = PRIVATE if address.kind == "direct" else GROUP
        uploads = any(type(value).__name__ == "InputFile" for value in params.values())
        timeout = UPLOAD_TIMEOUT if uploads else CALL_TIMEOUT
        async with self._turn(chat):
            if while_draft and self._drafts.stale(while_draft) is None:
                return None
            for attempt in range(2):
                wait = self.pacer.hold(chat, pace, urgency)
                if wait > 0:
                    raise Flooded(f"the pace of chat {chat}", wait)
                wait = self.pacer.take(chat)
                if wait > LONGEST_WAIT:
                    raise Flooded("the pace of all chats together", wait)
                if wait > 0:
                    await asyncio.sleep(wait)
                try:
                    return await self._client().call(
                        method, timeout, **params | {"chat_id": split_chat(chat)[0]}
                    )
                except ApiError as error:
                    if error.code == 429:
                        self.pacer.flooded(chat, max(error.retry_after, 1.0))
                    if not error.migrate_to or attempt:
                        raise
                    await self._follow(address.chat, chat := str(error.migrate_to))
        raise AssertionError("the second attempt returns or raises")

    async def _follow(self, old: str, new: str) -> None:
        try:
            await self.note_moved(old, new)
        except Exception:
            # Whatever the store says: the reply goes to the new id, and Telegram's own message about the
            # move brings it up once more.
            log.exception("the move of group %s to %s could not be written down", old, new)

    @asynccontextmanager
    async def _turn(self, chat: str) -> AsyncIterator[None]:
        """Raises Flooded when the chat is busy for long: an upload, say."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(_TURN):
                    await stack.enter_async_context(self._lanes.turn(chat))
            except (TimeoutError, Busy):
                raise Flooded(f"chat {chat} is busy with an earlier call", 1.0) from None
            yield

    async def _current(self, chat: str) -> str:
        """The id that a chat has now: a group that became a supergroup got a new one."""
        moved = self._moved.get(chat)
        if moved is None:
            stored = await self.env.state.get(_MOVED + chat) if chat.startswith("-") else None
            moved = stored if isinstance(stored, str) else chat
            self._moved.put(chat, moved)
        return moved


class _NotModified(Rejected):
    """The message already shows this text."""


def _place(address: Address, *, topic: bool = True) -> Data:
    """Where a call goes. A topic is named in all but edits; General must not be named when sending."""
    chat, business = split_chat(address.chat)
    place: Data = {"chat_id": chat}
    if business:
        place["business_connection_id"] = business
    if topic and address.thread not in (None, "1"):
        place["message_thread_id"] = int(address.thread or 0)
    return place


def _text_of(chunk: Chunk) -> Data:
    return {
        "text": chunk.text,
        "entities": chunk.data.get("entities") or None,
        "link_preview_options": {"is_disabled": True},
    }
