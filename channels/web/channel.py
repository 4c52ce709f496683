"""The chat page: text streams in, and neither a reload nor a lost connection loses or doubles any of it.

A visitor is a random id in a cookie; their messages and the replies are a log in the channel's notes. A
message carries an id made by the page, so the page may send it again until it hears that it was taken.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from channels.base import (
    Activity,
    Address,
    Channel,
    ChannelConfig,
    Choice,
    Chunk,
    Env,
    Inbound,
    Limits,
    NotSent,
    Outbound,
    Press,
    Receive,
    ReplyRef,
    Sender,
    SendError,
)
from channels.web.cards import card, find, settled
from channels.web.conversation import Conversation, Entry
from channels.web.files import Files
from channels.web.page import HEADERS, Assets, language_of
from channels.web.requests import COOKIE, Refused, answer, chat_of, is_cookie, message, pressed, visitor
from channels.web.stream import HISTORY, stream
from channels.web.texts import TEXTS

log = logging.getLogger("causeway.web")

_COOKIE_SECONDS = 365 * 86_400
_RECEIVE_TIMEOUT = 30.0
_PRESS_TIMEOUT = 10.0
#: Conversations in memory beyond which idle ones are dropped; open pages in all, and of one visitor.
_CONVERSATIONS = 100
_PAGES = 1000
_PAGES_OF_ONE = 20
_TOOLS_TO_LOG = 1000
#: No log of a channel has more entries.
_WHOLE_LOG = 100_000
#: Seconds between two looks at what other gateways wrote for open pages.
_LOOK = 1.0


class WebConfig(ChannelConfig):
    pass


class WebChannel(Channel):
    type = "web"
    Config = WebConfig
    #: Idempotent: an entry of the log is replaced by one with the same id.
    limits = Limits(streams=True, update_interval=0.05, typing_interval=4.0, idempotent=True)
    local = True
    buttons = True
    texts = TEXTS

    def __init__(self, name: str, config: Any, env: Env) -> None:
        super().__init__(name, config, env)
        self._receive: Receive | None = None
        self._stopped = False
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._files = Files(env.folder / "files", env.state)
        self._assets: Assets | None = None
        self._tools: asyncio.Queue[tuple[Conversation, Entry]] = asyncio.Queue(_TOOLS_TO_LOG)
        self._tool_logger: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None

    # -- lifecycle -------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        await self._load_assets()
        self._tool_logger = asyncio.create_task(self._log_tools(), name="web tool log")
        if self.env.shared:
            self._watcher = asyncio.create_task(self._watch(), name="web watch")
        self._receive = receive

    async def pause(self) -> None:
        self._receive = None

    async def stop(self) -> None:
        await self.pause()
        self._stopped = True
        for conversation in self._conversations.values():
            for page in conversation.pages:
                page.close()
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
            self._watcher = None
        if self._tool_logger is not None:
            try:
                async with asyncio.timeout(5):
                    await self._tools.join()
            except TimeoutError:
                log.warning("%d finished tools were not written down", self._tools.qsize())
            self._tool_logger.cancel()
            await asyncio.wait({self._tool_logger})
            self._tool_logger = None

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._page),
            web.post("/web/session", self._session),
            web.post("/web/send", self._send),
            web.post("/web/press", self._press),
            web.get("/web/events", self._events),
            web.get("/web/file/{id}", self._file),
            web.get("/web/{name}", self._asset),
        ]

    # -- requests --------------------------------------------------------------------------------------

    async def _load_assets(self) -> Assets:
        if self._assets is None:
            self._assets = await asyncio.to_thread(Assets.load)
        return self._assets

    async def _page(self, request: web.Request) -> web.Response:
        return (await self._load_assets()).page_response(self.env.text, language_of(request))

    async def _asset(self, request: web.Request) -> web.Response:
        return (await self._load_assets()).file_response(request, request.match_info["name"])

    async def _session(self, request: web.Request) -> web.Response:
        """Makes sure that the visitor has a cookie, and that it does not grow old.

        Not done with the page itself: when someone follows a link to it, the browser leaves a strict cookie
        out, and setting a new one would cost them their conversation.
        """
        known = request.cookies.get(COOKIE, "")
        response = answer({"ok": True})
        response.set_cookie(
            COOKIE,
            known if is_cookie(known) else secrets.token_hex(16),
            max_age=_COOKIE_SECONDS,
            path="/",
            httponly=True,
            secure=request.secure,
            samesite="Strict",
        )
        return response

    async def _send(self, request: web.Request) -> web.Response:
        try:
            chat = visitor(request)
            id, text = await message(request)
            await self._take(self._conversation(chat), id, text, language_of(request))
        except Refused as refused:
            return answer({"error": str(refused), "again": refused.again}, refused.status)
        return answer({"ok": True})

    async def _take(self, conversation: Conversation, id: str, text: str, language: str) -> None:
        """Hand a message over, then write it into the log; only then is the page told that it was taken."""
        async with conversation.sending:
            await self._load(conversation)
            if id in conversation.sent:
                return
            if self._receive is None:
                raise Refused(503, "The bridge is starting or stopping.", again=True)
            now = self.env.clock()
            entry = f"u:{id}"
            value = {"role": "user", "text": text, "at": now}
            value |= {"group": entry, "pos": conversation.place(entry, now)}
            inbound = Inbound(
                id=id,
                address=Address(self.name, conversation.chat),
                sender=Sender("local", language=language),
                text=text,
                sent_at=now,
            )
            try:
                async with asyncio.timeout(_RECEIVE_TIMEOUT):
                    await self._receive(inbound)
                await self._append(conversation, entry, value)
            except Exception as error:  # whatever failed, the page keeps the message and sends it again
                log.error("a message could not be taken: %s: %s", type(error).__name__, error)
                raise Refused(503, "The bridge could not store the message.", again=True) from error
            conversation.note_sent(id)

    async def _press(self, request: web.Request) -> web.Response:
        """A button of a card. What it led to is told to this page alone; the card changes by `settle`."""
        try:
            chat = visitor(request)
            id, choice = await pressed(request)
            value = await find(self.env.state, chat, id)
            if value is None or choice not in [one["id"] for one in value.get("choices", ())]:
                raise Refused(404, "There is no such button. Reload the page.")
            if self._receive is None:
                raise Refused(503, "The bridge is starting or stopping.", again=True)
            sender = Sender("local", language=language_of(request))
            try:
                async with asyncio.timeout(_PRESS_TIMEOUT):
                    said = await self.env.press(Press(Address(self.name, chat), sender, choice, id))
            except Exception as error:  # whatever failed, the card stays and can be pressed again
                log.error("a pressed button was not taken: %s: %s", type(error).__name__, error)
                raise Refused(503, "The bridge could not take the answer.", again=True) from error
        except Refused as refused:
            return answer({"error": str(refused), "again": refused.again}, refused.status)
        return answer({"said": said})

    async def _load(self, conversation: Conversation) -> None:
        """Learn from the log what earlier processes wrote, and other gateways if there are any."""
        if not conversation.loaded or self.env.shared:
            async with conversation.writing:
                await self._read_on(conversation)

    async def _read_on(self, conversation: Conversation) -> None:
        """Take up what is new in the log, and show it where a page has the older part. Hold `writing`."""
        log_name = f"chat:{conversation.chat}"
        for entry in await self.env.state.read(log_name, conversation.seq, HISTORY):
            conversation.note(entry)
            if conversation.loaded:
                conversation.logged(Entry(entry.id, entry.value, entry.seq))
        conversation.loaded = True

    async def _watch(self) -> None:
        """Open pages see what other gateways write."""
        while True:
            await asyncio.sleep(_LOOK)
            for conversation in [c for c in self._conversations.values() if c.pages]:
                try:
                    await self._load(conversation)
                except Exception as error:  # noqa: BLE001 - the store's; the next look sees it all
                    log.warning("what other gateways wrote cannot be seen: %s", error)
                    break

    async def _events(self, request: web.Request) -> web.StreamResponse:
        try:
            conversation = self._conversation(visitor(request))
            if self._stopped:
                raise Refused(503, "The bridge is stopping.", again=True)
            pages = sum(len(other.pages) for other in self._conversations.values())
            if pages >= _PAGES or len(conversation.pages) >= _PAGES_OF_ONE:
                raise Refused(429, "Too many pages are open. Close some.", again=True)
            if self.env.shared:  # what comes into the log from now on is shown as it is found
                await self._load(conversation)
        except Refused as refused:
            return answer({"error": str(refused), "again": refused.again}, refused.status)
        last = request.headers.get("Last-Event-ID") or request.query.get("after", "")
        after = int(last) if last.isascii() and last.isdigit() and len(last) < 19 else 0
        return await stream(request, conversation, self.env.state, after, asyncio.get_running_loop().time)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        chat = chat_of(request)
        response = await self._files.response(request.match_info["id"], chat) if chat else None
        return response or web.Response(status=404, text="There is no such file.\n", headers=HEADERS)

    def _conversation(self, chat: str) -> Conversation:
        conversation = self._conversations.get(chat)
        if conversation is None:
            if len(self._conversations) >= _CONVERSATIONS:
                idle = [key for key, other in self._conversations.items() if other.idle]
                for key in idle[: max(1, len(idle) // 10)]:
                    del self._conversations[key]
            conversation = self._conversations[chat] = Conversation(chat)
        self._conversations.move_to_end(chat)
        return conversation

    # -- replies ---------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        texts = [Chunk(outbound.text)] if outbound.text.strip() else []
        return texts + [Chunk(file.caption, file=file) for file in outbound.files]

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        id = f"{ref.id}/{n}"
        conversation = self._conversation(ref.address.chat)
        try:
            if self.env.shared and not conversation.knows(ref.id):
                await self._load(conversation)  # another gateway may have begun it
            place = self._place(conversation, ref)
            if chunk.file is None and not final:
                conversation.grow(id, place, chunk.text)
                return id
            value = {**place, "text": chunk.text, "at": self.env.clock()}
            if chunk.file is not None:
                value["file"] = await self._files.keep(conversation.chat, id, chunk.file)
            await self._append(conversation, id, value)
        except SendError:
            raise
        except Exception as error:  # the store's and the disk's errors are not known to a channel
            raise NotSent(f"the page's log could not be written: {error}") from error
        return id

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        await self.post(ref, n, chunk, final=final)

    async def end(self, ref: ReplyRef) -> None:
        """What still grows was given up: it stays as far as it was shown, also after a reload."""
        conversation = self._conversation(ref.address.chat)
        if self.env.shared:
            await self._load(conversation)  # what another gateway finished stays as it is
        for draft in [d for d in conversation.drafts.values() if d.place["group"] == ref.id]:
            value = {**draft.place, "text": draft.text, "at": self.env.clock()}
            await self._append(conversation, draft.id, value)
        for entry in [e for e in conversation.tools.values() if e.value["group"] == ref.id]:
            value = entry.value
            state = "failed" if value["state"] == "running" else value["state"]
            await self._append(conversation, entry.id, {**value, "state": state})
        conversation.ended(ref.id, asyncio.get_running_loop().time())

    async def forget(self, address: Address) -> None:
        """The log that pages show, and the files of replies. An open page shows it until it reloads."""
        conversation, log_of = self._conversation(address.chat), f"chat:{address.chat}"
        async with conversation.writing:
            try:
                entries = await self.env.state.read(log_of, 0, _WHOLE_LOG)
                for entry in entries:
                    if file := entry.value.get("file"):
                        await self._files.remove(file["id"])
                if entries:
                    await self.env.state.trim(log_of, entries[-1].seq)
            except Exception as error:  # errors of store and disk are not known to a channel
                raise NotSent(f"the page's log could not be deleted: {error}") from error

    async def typing(self, ref: ReplyRef) -> None:
        conversation = self._conversation(ref.address.chat)
        conversation.working(ref.id, asyncio.get_running_loop().time())

    async def ask(self, ref: ReplyRef, question: str, choices: Sequence[Choice]) -> str:
        """The card stands in the reply that it belongs to. Asking again under the same id changes nothing."""
        if not choices:
            return await super().ask(ref, question, choices)
        conversation = self._conversation(ref.address.chat)
        try:
            await self._load(conversation)
            reply = conversation.reply_to(ref.to) or ref.id
            place = self._place(conversation, replace(ref, id=reply))
            await self._append(conversation, f"{ref.id}/0", card(place, question, choices, self.env.clock()))
        except Exception as error:  # the store's errors are not known to a channel
            raise NotSent(f"the page's log could not be written: {error}") from error
        return f"{ref.id}/0"

    async def settle(self, ref: ReplyRef, message_id: str, outcome: str) -> None:
        conversation = self._conversation(ref.address.chat)
        try:
            value = await find(self.env.state, conversation.chat, message_id)
            if value is None:  # so old that pages no longer show it
                value = {**self._place(conversation, ref), "text": "", "at": self.env.clock()}
            await self._append(conversation, message_id, settled(value, outcome))
        except Exception as error:  # the store's errors are not known to a channel
            raise NotSent(f"the page's log could not be written: {error}") from error

    def activity(self, ref: ReplyRef, activity: Activity) -> None:
        conversation = self._conversation(ref.address.chat)
        id = f"{ref.id}/t/{activity.call}"
        known = conversation.tools.get(id)
        value = {**self._place(conversation, ref), "role": "tool"}
        value |= {"name": activity.name, "state": activity.state, "input": "", "output": ""}
        if known is not None:
            value["input"] = known.value["input"]
        value["input" if activity.state == "running" else "output"] = activity.detail
        entry = Entry(id, value)
        conversation.tool(entry)
        if activity.state != "running":
            try:
                self._tools.put_nowait((conversation, entry))
            except asyncio.QueueFull:
                log.debug("a finished tool is written down at the end of its reply")

    async def _log_tools(self) -> None:
        while True:
            conversation, entry = await self._tools.get()
            try:
                if conversation.tools.get(entry.id) is entry:  # else the end of the reply has written it
                    await self._append(conversation, entry.id, entry.value)
            except Exception as error:  # noqa: BLE001 (a tool's card costs no reply; its end tries again)
                log.warning("a finished tool could not be written down: %s", error)
            finally:
                self._tools.task_done()

    def _place(self, conversation: Conversation, ref: ReplyRef) -> dict[str, Any]:
        pos = conversation.place(ref.id, self.env.clock())
        conversation.note_reply(f"u:{ref.to}", ref.id)
        return {"role": "bot", "group": ref.id, "pos": pos, "to": f"u:{ref.to}" if ref.to else ""}

    async def _append(self, conversation: Conversation, id: str, value: dict[str, Any]) -> None:
        async with conversation.writing:
            if self.env.shared and not conversation.loaded:
                await self._read_on(conversation)
            seq = await self.env.state.append(f"chat:{conversation.chat}", id, value)
            if self.env.shared:  # in the order of the log: what others wrote before comes first
                await self._read_on(conversation)
            else:
                conversation.logged(Entry(id, value, seq))
