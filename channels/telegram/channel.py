"""The Telegram channel: receives by polling in the bridge's event loop, replies by sending and editing."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from channels.base import (
    Address,
    Attachment,
    Channel,
    ChannelConfig,
    ChannelError,
    Chunk,
    Env,
    Flooded,
    Health,
    Limits,
    NotSent,
    Outbound,
    OutFile,
    Receive,
    Rejected,
    ReplyRef,
    TooLarge,
)
from channels.telegram.api import CALL_TIMEOUT, UPLOAD_TIMEOUT, Api, ApiError, Upload
from channels.telegram.chunks import MAX_TEXT, split
from channels.telegram.errors import bad_entities, not_modified, send_error
from channels.telegram.format import markdown
from channels.telegram.inbound import Me, is_forum, read_update
from channels.telegram.polling import Data, Poller
from channels.telegram.recent import Recent
from channels.telegram.styled import PLAIN, clean

log = logging.getLogger("causeway.telegram")

MAX_CAPTION = 1024
MIB = 1024 * 1024
#: Bot API, "Sending files" and getFile. A photo beyond its limit goes as a document.
MAX_PHOTO, MAX_UPLOAD, MAX_DOWNLOAD = 10 * MIB, 50 * MIB, 20 * MIB
#: A group takes about 20 messages a minute, edits included (measured by others; not a contract).
GROUP_INTERVAL = 3.0
_REMEMBERED = 2000
_TOKEN = re.compile(r"\d+:\S+")
_MOVED = "moved:"


class TelegramConfig(ChannelConfig):
    """`base_url` is the server's root; a local Bot API server has its own."""

    token: SecretStr
    base_url: str = "https://api.telegram.org"
    mode: Literal["polling", "webhook"] = "polling"
    webhook_secret: SecretStr | None = None


class TelegramChannel(Channel):
    type = "telegram"
    Config = TelegramConfig
    limits = Limits(max_text=MAX_TEXT, unit="utf16", streams=True, update_interval=1.0, typing_interval=4.0)
    config: TelegramConfig

    def __init__(self, name: str, config: TelegramConfig, env: Env) -> None:
        super().__init__(name, config, env)
        self._api: Api | None = None
        self._poller: Poller | None = None
        self._task: asyncio.Task[None] | None = None
        self._receive: Receive | None = None
        self._me: Me | None = None
        self._forums: Recent[bool] = Recent(_REMEMBERED)
        self._last_call: Recent[float] = Recent(_REMEMBERED)  # loop time of the last message call a group
        self._moved: Recent[str] = Recent(_REMEMBERED)  # group -> the supergroup it became

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, receive: Receive) -> None:
        token, root = self._settings()
        self._receive = receive
        self._api = await Api.connect(token, root)
        self._poller = Poller(self._api, self.env.state, self.env.clock, self._prepare, self._handle)
        self._task = asyncio.create_task(self._poller.run(), name=f"poll {self.name}")

    def _settings(self) -> tuple[str, str]:
        where = f"channels.{self.name}"
        token = self.config.token.get_secret_value().strip()
        if not _TOKEN.fullmatch(token):
            raise ChannelError(
                f"{where}.token is no bot token (digits, colon, letters); take it from @BotFather"
            )
        if self.config.mode == "webhook":
            raise ChannelError(
                f"{where}.mode: webhook is not part of this version yet; use polling (needs no address)"
            )
        root = self.config.base_url.strip().rstrip("/").removesuffix("/bot").rstrip("/")
        if not root.startswith(("http://", "https://")):
            raise ChannelError(f"{where}.base_url must begin with http:// or https://")
        return token, root

    async def _prepare(self) -> None:
        """Learn who the bot is. Called by the poller until it succeeds."""
        me = await self._client().call("getMe")
        self._me = Me(int(me["id"]), str(me.get("username", "")), bool(me.get("has_topics_enabled")))
        log.info("Telegram: signed in as @%s", self._me.username)

    async def pause(self) -> None:
        task, self._task = self._task, None
        if task:
            task.cancel()
            await asyncio.wait({task})

    async def stop(self) -> None:
        await self.pause()
        api, self._api = self._api, None
        if api:
            await api.close()

    def health(self) -> Health:
        if self._poller is None:
            return Health(False, "not started", "")
        if self._task is not None and self._task.done():
            return Health(False, "polling ended unexpectedly", "restart the bridge and report the log")
        return self._poller.health

    def _client(self) -> Api:
        if self._api is None:
            raise NotSent(f"channel {self.name} is not running")
        return self._api

    # -- receiving ---------------------------------------------------------------------------------------

    async def _handle(self, update: Data) -> None:
        if self._me is None or self._receive is None:
            raise RuntimeError("an update came before the channel was prepared")
        try:
            inbound = read_update(update, self.name, self._me)
            forum = is_forum(update)
        except (KeyError, TypeError, ValueError, AttributeError):
            # One odd update must not stop those behind it for ever.
            log.exception("update %s could not be read; it is skipped", update.get("update_id"))
            return
        if inbound is None:
            return
        if forum:
            self._forums.put(inbound.address.chat, True)
        await self._receive(inbound)

    # -- showing -----------------------------------------------------------------------------------------

    def render(self, outbound: Outbound) -> list[Chunk]:
        # What Markdown shows nothing of (an empty fence) is still what was said.
        pieces = split(markdown(outbound.text)) or split([(clean(outbound.text), PLAIN)])
        chunks = [Chunk(text, {"entities": entities} if entities else {}) for text, entities in pieces]
        for file in outbound.files:
            head, *rest = split(markdown(file.caption), MAX_CAPTION) or [("", [])]
            chunks.append(Chunk(head[0], {"entities": head[1]} if head[1] else {}, file))
            chunks += [Chunk(text, {"entities": entities}) for text, entities in rest]
        return chunks

    async def post(self, ref: ReplyRef, n: int, chunk: Chunk, *, final: bool) -> str:
        params = self._place(ref.address)
        if n == 0 and ref.to.isdigit() and ref.address.kind != "direct":
            params["reply_parameters"] = {"message_id": int(ref.to), "allow_sending_without_reply": True}
        if chunk.file is not None:
            return await self._post_file(ref.address, params, chunk, chunk.file)
        message = await self._write(ref.address, "sendMessage", chunk, "entities", params | _text_of(chunk))
        return str(message["message_id"])

    async def edit(self, ref: ReplyRef, n: int, message_id: str, chunk: Chunk, *, final: bool) -> None:
        if chunk.file is not None:
            return  # a file is posted when it is final and does not change
        if not final:
            self._keep_group_pace(ref.address)
        params = {"chat_id": ref.address.chat, "message_id": int(message_id)} | _text_of(chunk)
        try:
            await self._write(ref.address, "editMessageText", chunk, "entities", params)
        except _NotModified:
            return

    async def _post_file(self, address: Address, params: Data, chunk: Chunk, file: OutFile) -> str:
        data = await asyncio.to_thread(_read_file, file)
        methods = ["sendDocument"]
        if file.mime in ("image/png", "image/jpeg", "image/webp") and len(data) <= MAX_PHOTO:
            methods.insert(0, "sendPhoto")
        if chunk.text:
            params["caption"] = chunk.text
            params["caption_entities"] = chunk.data.get("entities") or None
        while True:
            method = methods.pop(0)
            field = method.removeprefix("send").lower()
            upload = {field: Upload(data, file.name or Path(file.path).name)}
            try:
                message = await self._write(address, method, chunk, "caption_entities", params | upload)
            except Rejected:
                if not methods:
                    raise
                log.info("a picture was refused as a photo; it goes as a document")
            else:
                return str(message["message_id"])

    def _place(self, address: Address) -> Data:
        place: Data = {"chat_id": address.chat}
        if address.thread not in (None, "1"):  # General must not be named when sending
            place["message_thread_id"] = int(address.thread or 0)
        return place

    async def _write(self, address: Address, method: str, chunk: Chunk, entities: str, params: Data) -> Any:
        """One call that changes what a chat shows. Follows a migrated group; drops refused formatting."""
        chat = address.chat
        params["chat_id"] = await self._current(chat)
        timeout = UPLOAD_TIMEOUT if chunk.file else CALL_TIMEOUT
        for _ in range(3):
            if address.kind != "direct":
                self._last_call.put(chat, asyncio.get_running_loop().time())
            try:
                return await self._client().call(method, timeout, **params)
            except ApiError as error:
                if error.migrate_to:
                    await self._follow(chat, str(error.migrate_to))
                    params["chat_id"] = str(error.migrate_to)
                elif not_modified(error):
                    raise _NotModified(str(error)) from None
                elif bad_entities(error) and params.get(entities):
                    log.warning("%s: the formatting was refused (%s); sent plain", method, error.reason)
                    params[entities] = None
                else:
                    raise send_error(error) from None
        raise Rejected(f"Telegram {method}: refused again and again")

    def _keep_group_pace(self, address: Address) -> None:
        """Edits of growing text in a group are spaced wider than the channel's general interval."""
        if address.kind == "direct":
            return
        last = self._last_call.get(address.chat)
        wait = 0.0 if last is None else last + GROUP_INTERVAL - asyncio.get_running_loop().time()
        if wait > 0:
            raise Flooded("the group's own pace", wait)

    async def _current(self, chat: str) -> str:
        """The id that a chat has now: a group that became a supergroup got a new one."""
        moved = self._moved.get(chat)
        if moved is None:
            stored = await self.env.state.get(_MOVED + chat) if chat.startswith("-") else None
            moved = stored if isinstance(stored, str) else chat
            self._moved.put(chat, moved)
        return moved

    async def _follow(self, chat: str, new: str) -> None:
        log.warning("group %s became supergroup %s; replies follow it", chat, new)
        self._moved.put(chat, new)
        await self.env.state.put(_MOVED + chat, new)

    async def typing(self, ref: ReplyRef) -> None:
        address = ref.address
        if address.kind == "channel" or self._api is None:
            return
        place = self._place(address)
        place["chat_id"] = await self._current(address.chat)
        if address.thread in (None, "1") and self._forums.get(address.chat):
            place["message_thread_id"] = 1  # here General does want its id
        try:
            await self._api.call("sendChatAction", 10.0, action="typing", **place)
        except ApiError as error:
            log.debug("the typing sign was not shown: %s", error)

    # -- attachments -------------------------------------------------------------------------------------

    async def fetch(self, attachment: Attachment, target: Path, max_bytes: int) -> None:
        limit = min(max_bytes, MAX_DOWNLOAD)
        if attachment.size > limit:
            raise TooLarge(f"{attachment.name} has {attachment.size} bytes; {limit} can be fetched")
        try:
            found = await self._client().call("getFile", file_id=attachment.ref)
            if int(found.get("file_size") or 0) > limit:
                raise TooLarge(f"{attachment.name} has {found['file_size']} bytes; {limit} can be fetched")
            path = str(found.get("file_path") or "")
            if not path or path.startswith("/"):
                raise Rejected("the server gave no downloadable path for the file")
            await self._client().download(path, target, limit)
        except ApiError as error:
            if "file is too big" in error.reason.lower():
                raise TooLarge(f"{attachment.name} is larger than the 20 MB that a bot can fetch") from None
            failed = send_error(error)
            raise failed if isinstance(failed, NotSent | Rejected) else _as_fetch_error(error) from None


class _NotModified(Rejected):
    """The message already shows this text."""


def _as_fetch_error(error: ApiError) -> NotSent | Rejected:
    """Fetching changes nothing, so an unknown outcome may simply be tried again."""
    return NotSent(str(error)) if error.taken == "maybe" else Rejected(str(error))


def _text_of(chunk: Chunk) -> Data:
    return {
        "text": chunk.text,
        "entities": chunk.data.get("entities") or None,
        "link_preview_options": {"is_disabled": True},
    }


def _read_file(file: OutFile) -> bytes:
    path = Path(file.path)
    try:
        size = path.stat().st_size
        if size > MAX_UPLOAD:
            raise Rejected(f"{file.name} has {size} bytes; a bot can send {MAX_UPLOAD}")
        return path.read_bytes()
    except OSError as error:
        raise Rejected(f"{file.name} cannot be read: {error.strerror}") from None
