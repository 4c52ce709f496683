"""A WeCom for AI bots: the long connection's server, the caller of a callback URL, response_url and file
links.

Refuses what the platform refuses (documents 100719, 101031, 101032, 101138, 101463). Its crypto is written
here after the document, so that it checks ours.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import secrets
import struct
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import WSMsgType, web
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

BOT_ID, SECRET = "aibot-1", "bot-secret-0000"
TOKEN, AES_KEY = "callback-token", base64.b64encode(bytes(range(32))).decode()[:43]
MAX_CONTENT = 20_480
Data = dict[str, Any]


# -- crypto, as the document says it -------------------------------------------------------------------


def pad(data: bytes) -> bytes:
    size = 32 - len(data) % 32
    return data + bytes([size]) * size


def aes(key: bytes, data: bytes, *, encrypt: bool) -> bytes:
    cipher = Cipher(algorithms.AES(key), modes.CBC(key[:16]))
    step = cipher.encryptor() if encrypt else cipher.decryptor()
    return step.update(data) + step.finalize()


def signature(token: str, timestamp: str, nonce: str, encrypted: str) -> str:
    return hashlib.sha1("".join(sorted((token, timestamp, nonce, encrypted))).encode()).hexdigest()


def seal(text: bytes, aes_key: str, receive_id: str = "") -> str:
    key = base64.b64decode(aes_key + "=")
    plain = os.urandom(16) + struct.pack(">I", len(text)) + text + receive_id.encode()
    return base64.b64encode(aes(key, pad(plain), encrypt=True)).decode()


def unseal(encrypted: str, aes_key: str) -> bytes:
    key = base64.b64decode(aes_key + "=")
    plain = aes(key, base64.b64decode(encrypted), encrypt=False)
    plain = plain[: -plain[-1]]
    (size,) = struct.unpack(">I", plain[16:20])
    assert plain[20 + size :] == b"", "an AI bot's receive id is empty"
    return plain[20 : 20 + size]


# -- what people see -----------------------------------------------------------------------------------


@dataclass
class Shown:
    """One message of the bot in a chat."""

    kind: str
    text: str = ""
    answers: str = ""
    stream: str = ""
    finished: bool = True
    began: float = 0.0
    packets: list[str] = field(default_factory=list)
    card: Data = field(default_factory=dict)
    seen_by: dict[str, Data] = field(default_factory=dict)
    pictures: list[bytes] = field(default_factory=list)
    media: str = ""


class Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code, self.message = code, message


@dataclass
class _Call:
    """A callback that can be answered: a message, an opened chat or a pressed button."""

    chat: str
    kind: str
    connection: int
    at: float
    msgid: str = ""
    answered: bool = False
    task: str = ""
    user: str = ""


class _Platform:
    """Chats, streams, cards and limits, common to both ways of receiving."""

    def __init__(self) -> None:
        self.chats: dict[str, list[Shown]] = defaultdict(list)
        self.kinds: dict[str, str] = {}
        self.streams: dict[str, Shown] = {}
        self.tasks: dict[str, Shown] = {}
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, Data] = {}
        self.media: dict[str, tuple[str, str, bytes]] = {}
        self.clock: Callable[[], float] = time.time
        self.stream_life = 360.0
        self.url_life = 3600.0
        self.rate, self.window = 30, 60.0
        self.sent: dict[str, list[float]] = defaultdict(list)
        self.changed = asyncio.Event()
        self._ids = 0

    def texts(self, chat: str) -> list[str]:
        return [shown.text for shown in self.chats[chat]]

    def tell(self) -> None:
        self.changed.set()

    async def until(self, condition: Callable[[], object], seconds: float = 15.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self.changed.clear()
                try:
                    async with asyncio.timeout(0.02):  # other conditions than ours change, too
                        await self.changed.wait()
                except TimeoutError:
                    continue

    def new_id(self, prefix: str) -> str:
        self._ids += 1
        return f"{prefix}{self._ids}-{secrets.token_hex(4)}"

    def count(self, chat: str) -> None:
        now = self.clock()
        self.sent[chat] = [at for at in self.sent[chat] if at > now - self.window]
        if len(self.sent[chat]) >= self.rate:
            raise Refusal(45009, "api freq out of limit")
        self.sent[chat].append(now)

    def check_content(self, content: Any) -> str:
        if not isinstance(content, str) or not content.strip():
            raise Refusal(40008, "empty content")
        if len(content.encode()) > MAX_CONTENT:
            raise Refusal(40058, "content exceed max length")
        return content

    def check_card(self, card: Data, *, update: bool = False) -> Data:
        task = card.get("task_id", "")
        if card.get("card_type") != "button_interaction":
            raise Refusal(42045, "card_action missing")
        if not re.fullmatch(r"[A-Za-z0-9_@-]{1,128}", task):
            raise Refusal(42014, "invalid task_id")
        if not update and task in self.tasks:
            raise Refusal(42014, "task_id repeated")
        buttons = card.get("button_list") or []
        keys = [button["key"] for button in buttons]
        if not 1 <= len(buttons) <= 6 or len(set(keys)) != len(keys) or max(map(len, keys)) > 1024:
            raise Refusal(42044, "invalid button_list")
        if not (card.get("main_title") or {}).get("title") and not card.get("sub_title_text"):
            raise Refusal(42043, "no title")
        return card

    def show_card(self, chat: str, card: Data, answers: str = "") -> None:
        shown = Shown("card", card.get("sub_title_text", ""), answers, card=self.check_card(card))
        self.tasks[card["task_id"]] = shown
        self.chats[chat].append(shown)
        self.tell()

    def update_card(self, body: Data, call: _Call) -> None:
        if body.get("response_type") != "update_template_card":
            raise Refusal(40008, "invalid response_type")
        card = self.check_card(body["template_card"], update=True)
        if card["task_id"] != call.task:
            raise Refusal(42014, "task_id mismatch")
        shown = self.tasks[call.task]
        if body.get("userids"):
            assert self.kinds[call.chat] == "group", "userids only works in groups"
            for user in body["userids"]:
                shown.seen_by[user] = card
        else:
            shown.card = card
            shown.seen_by.clear()
        self.tell()

    def lock_file(self, data: bytes, key: bytes) -> str:
        id = self.new_id("file")
        self.files[id] = aes(key, pad(data), encrypt=True)
        return id


# -- the long connection -------------------------------------------------------------------------------


class FakeWecomSocket(_Platform):
    """`async with FakeWecomSocket() as fake`: a bot connects to `fake.url`."""

    def __init__(self) -> None:
        super().__init__()
        self.bot_id, self.secret = BOT_ID, SECRET
        self.url = self.root = ""
        self.frames: list[Data] = []
        self.subscribes = 0
        self.mute: set[str] = set()
        """Commands that are carried out and never answered."""
        self.deaf: set[str] = set()
        """Commands that are neither carried out nor answered."""
        self.fail: list[tuple[str, int]] = []
        """(command, code): the next such call is refused with it."""
        self.forgotten = False
        """The server has lost the subscription while the socket is open."""
        self.stale_after_reconnect = True
        self.down = False
        self.calls: dict[str, _Call] = {}
        self._sockets: list[web.WebSocketResponse] = []
        self._subscribed: web.WebSocketResponse | None = None
        self._connection = 0
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeWecomSocket:
        app = web.Application()
        app.router.add_get("/ws", self._serve)
        app.router.add_get("/file/{id}", self._file)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url, self.root = f"ws://127.0.0.1:{port}/ws", f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        assert self._runner is not None
        await self._runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["id"])
        return web.Response(body=data) if data is not None else web.Response(status=403)

    @property
    def connected(self) -> bool:
        return self._subscribed is not None and not self._subscribed.closed

    def called(self, cmd: str) -> list[Data]:
        return [frame for frame in self.frames if frame["cmd"] == cmd]

    async def drop(self) -> None:
        """Every connection breaks."""
        for ws in list(self._sockets):
            await ws.close(code=1001)
        self._subscribed = None

    async def kick(self) -> None:
        """Another program subscribed with this bot."""
        ws, self._subscribed = self._subscribed, None
        assert ws is not None
        await self._event(ws, {"eventtype": "disconnected_event"}, {})
        await ws.close()

    async def _event(self, ws: web.WebSocketResponse, event: Data, body: Data) -> str:
        req_id = self.new_id("evt")
        body = {
            "msgid": self.new_id("event"),
            "create_time": int(time.time()),
            "aibotid": self.bot_id,
            "msgtype": "event",
            **body,
            "event": event,
        }
        await ws.send_json({"cmd": "aibot_event_callback", "headers": {"req_id": req_id}, "body": body})
        return req_id

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(max_msg_size=8 * 2**20)
        await ws.prepare(request)
        if self.down:
            await ws.close()
            return ws
        self._sockets.append(ws)
        try:
            async for message in ws:
                if message.type == WSMsgType.TEXT:
                    await self._frame(ws, json.loads(message.data))
        finally:
            self._sockets.remove(ws)
            self.tell()
        return ws

    async def _frame(self, ws: web.WebSocketResponse, frame: Data) -> None:
        self.frames.append(frame)
        cmd, req_id = frame["cmd"], frame["headers"]["req_id"]
        if cmd in self.deaf:
            return
        answer: Data = {"headers": {"req_id": req_id}, "errcode": 0, "errmsg": "ok"}
        try:
            planned = next((f for f in self.fail if f[0] == cmd), None)
            if planned is not None:
                self.fail.remove(planned)
                raise Refusal(planned[1], "planned")
            body = await self._carry_out(ws, cmd, req_id, frame.get("body") or {})
            if body:
                answer["body"] = body
        except Refusal as refusal:
            answer |= {"errcode": refusal.code, "errmsg": refusal.message}
        self.tell()
        if cmd not in self.mute and not ws.closed:
            await ws.send_json(answer)

    async def _carry_out(self, ws: web.WebSocketResponse, cmd: str, req_id: str, body: Data) -> Data | None:
        if cmd == "aibot_subscribe":
            await self._subscribe(ws, body)
            return None
        if ws is not self._subscribed or self.forgotten:
            raise Refusal(846609, "aibot websocket not subscribed")
        if cmd == "ping":
            return None
        handlers: dict[str, Callable[[str, Data], Data | None]] = {
            "aibot_respond_msg": self._respond,
            "aibot_send_msg": lambda _, b: self._send(b),
            "aibot_respond_welcome_msg": self._welcome,
            "aibot_respond_update_msg": self._update,
            "aibot_upload_media_init": lambda _, b: self._upload_init(b),
            "aibot_upload_media_chunk": lambda _, b: self._upload_chunk(b),
            "aibot_upload_media_finish": lambda _, b: self._upload_finish(b),
        }
        if cmd not in handlers:
            raise Refusal(40001, f"unknown cmd {cmd}")
        return handlers[cmd](req_id, body)

    async def _subscribe(self, ws: web.WebSocketResponse, body: Data) -> None:
        self.subscribes += 1
        if (body.get("bot_id"), body.get("secret")) != (self.bot_id, self.secret):
            raise Refusal(600041, "invalid secret")
        old, self._subscribed = self._subscribed, ws
        self._connection += 1
        self.forgotten = False
        if old is not None and not old.closed:
            await self._event(old, {"eventtype": "disconnected_event"}, {})
            await old.close()

    # -- answers --

    def _call(self, req_id: str, kind: str) -> _Call:
        call = self.calls.get(req_id)
        stale = call is not None and self.stale_after_reconnect and call.connection != self._connection
        if call is None or call.kind != kind or stale:
            raise Refusal(846605, "invalid req_id")
        return call

    def _respond(self, req_id: str, body: Data) -> None:
        call = self._call(req_id, "message")
        kind = body.get("msgtype")
        self.count(call.chat)
        if kind == "stream":
            self._write(call, body["stream"])
        elif kind == "markdown":
            self._append(call.chat, Shown("markdown", self.check_content(body["markdown"]["content"])))
        elif kind == "template_card":
            self.show_card(call.chat, body["template_card"], call.msgid)
        else:
            self._append(call.chat, self._media(body), call.msgid)

    def _append(self, chat: str, shown: Shown, answers: str = "") -> None:
        shown.answers = answers
        self.chats[chat].append(shown)

    def _write(self, call: _Call, stream: Data) -> None:
        if "msg_item" in stream:
            raise Refusal(40008, "msg_item not supported")
        content = self.check_content(stream["content"])
        shown = self.streams.get(stream["id"])
        if shown is None:
            shown = Shown("stream", answers=call.msgid, stream=stream["id"], began=self.clock())
            self.streams[stream["id"]] = shown
            self.chats[call.chat].append(shown)
        elif shown.answers != call.msgid:
            raise Refusal(846605, "stream of another req_id")
        elif shown.finished or self.clock() - shown.began > self.stream_life:
            raise Refusal(846608, "stream message update expired")
        shown.text, shown.finished = content, bool(stream.get("finish"))
        shown.packets.append(content)

    def _send(self, body: Data) -> None:
        chat, kind = body.get("chatid", ""), body.get("msgtype")
        wanted = {1: "single", 2: "group"}.get(body.get("chat_type", 0))
        if wanted is None or self.kinds.get(chat) != wanted:
            raise Refusal(93006, "invalid chatid")
        self.count(chat)
        if kind == "markdown":
            self._append(chat, Shown("markdown", self.check_content(body["markdown"]["content"])))
        elif kind == "template_card":
            self.show_card(chat, body["template_card"])
        elif kind in ("image", "voice", "video", "file"):
            self._append(chat, self._media(body))
        else:
            raise Refusal(40008, f"invalid msgtype {kind}")

    def _media(self, body: Data) -> Shown:
        kind = body["msgtype"]
        found = self.media.get((body.get(kind) or {}).get("media_id", ""))
        if found is None or found[0] != kind:
            raise Refusal(40007, "invalid media_id")
        return Shown(kind, found[1], pictures=[found[2]], media=body[kind]["media_id"])

    def _welcome(self, req_id: str, body: Data) -> None:
        call = self._call(req_id, "enter_chat")
        if self.clock() - call.at > 5:
            raise Refusal(846607, "too late")
        self._append(call.chat, Shown("welcome", self.check_content(body["text"]["content"])))

    def _update(self, req_id: str, body: Data) -> None:
        call = self._call(req_id, "card")
        if call.answered or self.clock() - call.at > 5:
            raise Refusal(846607, "too late")
        call.answered = True
        self.update_card(body, call)

    def _upload_init(self, body: Data) -> Data:
        most = {"image": 10, "voice": 2, "video": 10, "file": 20}[body["type"]] * 2**20
        if not 5 <= body["total_size"] <= most or not 1 <= body["total_chunks"] <= 100:
            raise Refusal(40006, "invalid media size")
        upload_id = self.new_id("upload")
        self.uploads[upload_id] = {**body, "parts": {}}
        return {"upload_id": upload_id}

    def _upload_chunk(self, body: Data) -> None:
        part = base64.b64decode(body["base64_data"], validate=True)
        if len(part) > 512 * 1024:
            raise Refusal(40006, "chunk too large")
        self.uploads[body["upload_id"]]["parts"][body["chunk_index"]] = part

    def _upload_finish(self, body: Data) -> Data:
        upload = self.uploads.pop(body["upload_id"])
        if sorted(upload["parts"]) != list(range(upload["total_chunks"])):
            raise Refusal(40006, "missing chunk")
        data = b"".join(upload["parts"][n] for n in sorted(upload["parts"]))
        if len(data) != upload["total_size"] or hashlib.md5(data).hexdigest() != upload["md5"]:
            raise Refusal(40006, "md5 mismatch")
        media_id = self.new_id("media")
        self.media[media_id] = (upload["type"], upload["filename"], data)
        return {"type": upload["type"], "media_id": media_id, "created_at": str(int(time.time()))}

    # -- what people do --

    async def say(
        self, user: str, text: str = "", *, group: str = "", msgid: str = "", raw: bool = False, **body: Any
    ) -> str:
        """A person writes; `body` replaces the text by another kind. Returns the message id. `raw`: control
        characters go unescaped."""
        chat = group or user
        self.kinds[chat] = "group" if group else "single"
        msgid = msgid or self.new_id("msg")
        req_id = self.new_id("req")
        self.calls[req_id] = _Call(chat, "message", self._connection, self.clock(), msgid, user=user)
        content = {"msgtype": "text", "text": {"content": text}} if text else {}
        message = {
            "msgid": msgid,
            "aibotid": self.bot_id,
            **({"chatid": group} if group else {}),
            "chattype": self.kinds[chat],
            "from": {"userid": user},
            **content,
            **body,
        }
        frame = {"cmd": "aibot_msg_callback", "headers": {"req_id": req_id}, "body": message}
        encoded = json.dumps(frame, ensure_ascii=False)
        if raw:
            encoded = re.sub(r"\\u00[01][0-9a-f]|\\n", lambda m: json.loads(f'"{m[0]}"'), encoded)
        assert self._subscribed is not None, "the bot is not connected: the message would be lost"
        await self._subscribed.send_str(encoded)
        return msgid

    async def enter(self, user: str) -> None:
        self.kinds[user] = "single"
        assert self._subscribed is not None
        body = {"from": {"userid": user}}
        req_id = await self._event(self._subscribed, {"eventtype": "enter_chat"}, body)
        self.calls[req_id] = _Call(user, "enter_chat", self._connection, self.clock())

    async def press(self, chat: str, user: str, task: str, key: str) -> None:
        assert self._subscribed is not None
        where = {"chatid": chat} if self.kinds[chat] == "group" else {}
        body = {"from": {"userid": user}, "chattype": self.kinds[chat], **where}
        card = {"card_type": "button_interaction", "event_key": key, "task_id": task}
        event = {"eventtype": "template_card_event", "template_card_event": card}
        req_id = await self._event(self._subscribed, event, body)
        self.calls[req_id] = _Call(chat, "card", self._connection, self.clock(), task=task)

    def file(self, data: bytes) -> Data:
        """A file as a message carries it: a link and a key of its own."""
        key = os.urandom(32)
        id = self.lock_file(data, key)
        return {"url": f"{self.root}/file/{id}", "aeskey": base64.b64encode(key).decode().rstrip("=")}


# -- the callback URL ----------------------------------------------------------------------------------


class FakeWecomCallback(_Platform):
    """Calls `target` (the bridge's callback URL) as WeCom does; `tick` is the pause between two polls."""

    def __init__(self, tick: float = 0.05) -> None:
        super().__init__()
        self.target = ""
        self.token, self.aes_key = TOKEN, AES_KEY
        self.tick = tick
        self.timeout = 5.0
        self.statuses: list[int] = []
        self.requests: list[tuple[Data, bytes]] = []
        """(query, body) of every request, to be repeated by a test."""
        self.root = ""
        self.urls: dict[str, tuple[str, float]] = {}
        self.refuse_urls = False
        self.open: dict[str, int] = defaultdict(int)
        self.polling = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._http: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> FakeWecomCallback:
        app = web.Application()
        app.router.add_post("/response/{code}", self._response)
        app.router.add_get("/file/{id}", self._file)
        self._runner = web.AppRunner(app, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.root = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._http = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        assert self._http is not None
        assert self._runner is not None
        await self._http.close()
        await self._runner.cleanup()

    async def _file(self, request: web.Request) -> web.Response:
        data = self.files.get(request.match_info["id"])
        return web.Response(body=data) if data is not None else web.Response(status=403)

    async def _response(self, request: web.Request) -> web.Response:
        """response_url: once, within an hour, Markdown or a card."""
        chat, at = self.urls.pop(request.match_info["code"], ("", 0.0))
        body = await request.json()
        try:
            if not chat or self.clock() - at > self.url_life or self.refuse_urls:
                raise Refusal(60140, "invalid response_code")
            if body["msgtype"] == "markdown":
                shown = Shown("markdown", self.check_content(body["markdown"]["content"]))
                self.chats[chat].append(shown)
            elif body["msgtype"] == "template_card":
                self.show_card(chat, body["template_card"])
            else:
                raise Refusal(40008, "invalid msgtype")
        except Refusal as refusal:
            return web.json_response({"errcode": refusal.code, "errmsg": refusal.message})
        self.tell()
        return web.json_response({"errcode": 0, "errmsg": "ok"})

    def query(self, encrypted: str, **more: str) -> Data:
        timestamp, nonce = str(int(self.clock())), secrets.token_hex(5)
        signed = signature(self.token, timestamp, nonce, encrypted)
        return {"msg_signature": signed, "timestamp": timestamp, "nonce": nonce, **more}

    async def verify(self) -> tuple[int, str]:
        """The console's check of the URL: (status, what was echoed)."""
        assert self._http is not None
        echo = seal(b"echo-1234567890", self.aes_key)
        async with self._http.get(self.target, params=self.query(echo, echostr=echo)) as response:
            return response.status, await response.text()

    async def post(self, body: Data | bytes, *, receive_id: str = "") -> Data | None:
        """One callback; returns the decrypted answer, None for an empty one."""
        text = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode()
        encrypted = seal(text, self.aes_key, receive_id)
        return await self.repeat(self.query(encrypted), json.dumps({"encrypt": encrypted}).encode())

    async def repeat(self, query: Data, raw: bytes) -> Data | None:
        assert self._http is not None
        self.requests.append((query, raw))
        timeout = aiohttp.ClientTimeout(total=self.timeout)
        async with self._http.post(self.target, params=query, data=raw, timeout=timeout) as response:
            self.statuses.append(response.status)
            content = await response.read()
            if response.status != 200 or not content:
                return None
        answer = json.loads(content)
        assert answer["nonce"] == query["nonce"]
        assert isinstance(answer["timestamp"], int)
        signed = signature(self.token, str(answer["timestamp"]), answer["nonce"], answer["encrypt"])
        assert answer["msgsignature"] == signed
        found: Data = json.loads(unseal(answer["encrypt"], self.aes_key))
        return found

    # -- what people do --

    def response_url(self, chat: str) -> str:
        code = self.new_id("code")
        self.urls[code] = (chat, self.clock())
        return f"{self.root}/response/{code}"

    async def say(
        self, user: str, text: str = "", *, group: str = "", msgid: str = "", url: bool = True, **body: Any
    ) -> str:
        """A person writes; WeCom asks three times at most, then polls the stream that it was given."""
        if self.open[user] >= 3:
            raise AssertionError("WeCom lets a person have three open exchanges with a bot")
        chat = group or user
        self.kinds[chat] = "group" if group else "single"
        msgid = msgid or self.new_id("msg")
        message = {
            "msgid": msgid,
            "aibotid": BOT_ID,
            **({"chatid": group} if group else {}),
            "chattype": self.kinds[chat],
            "from": {"userid": user},
            **({"response_url": self.response_url(chat)} if url else {}),
            **({"msgtype": "text", "text": {"content": text}} if text else {}),
            **body,
        }
        for _ in range(3):
            try:
                answer = await self.post(message)
            except TimeoutError:
                continue
            if self.statuses[-1] == 200:
                break
        else:
            return msgid
        if answer is not None:
            self._take(answer, chat, msgid)
            self._follow(answer, message, user)
        return msgid

    def _follow(self, answer: Data, message: Data, user: str) -> None:
        if answer["msgtype"].startswith("stream") and not answer["stream"]["finish"] and self.polling:
            self.open[user] += 1
            task = asyncio.create_task(self._poll(answer["stream"]["id"], message, user))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _poll(self, stream: str, message: Data, user: str) -> None:
        began, chat = self.clock(), message.get("chatid") or user
        keep: Data = {
            key: message[key] for key in ("aibotid", "chatid", "chattype", "from") if key in message
        }
        try:
            while self.clock() - began < self.stream_life and self.polling:
                await asyncio.sleep(self.tick)
                body = {**keep, "msgid": self.new_id("poll"), "msgtype": "stream", "stream": {"id": stream}}
                try:
                    answer = await self.post(body)
                except (aiohttp.ClientError, TimeoutError):
                    continue  # the bridge is restarting
                if answer is None:
                    continue
                self._take(answer, chat, message["msgid"])
                if answer["stream"]["finish"]:
                    return
        finally:
            self.open[user] -= 1
            self.tell()

    def _take(self, answer: Data, chat: str, msgid: str) -> None:
        kind = answer.get("msgtype")
        assert kind in ("stream", "stream_with_template_card", "text"), answer
        if kind == "text":
            self.chats[chat].append(Shown("welcome", answer["text"]["content"]))
            self.tell()
            return
        stream = answer["stream"]
        shown = self.streams.get(stream["id"])
        if shown is None:
            shown = Shown("stream", answers=msgid, stream=stream["id"], finished=False)
            self.streams[stream["id"]] = shown
            self.chats[chat].append(shown)
        assert shown.answers == msgid
        assert len(stream["content"].encode()) <= MAX_CONTENT
        items = stream.get("msg_item") or []
        assert not items or stream["finish"], "pictures only with the last packet"
        assert len(items) <= 10
        for item in items:
            data = base64.b64decode(item["image"]["base64"])
            assert hashlib.md5(data).hexdigest() == item["image"]["md5"]
            shown.pictures.append(data)
        if not shown.finished:
            shown.text, shown.finished = stream["content"], stream["finish"]
            shown.packets.append(shown.text)
        if kind == "stream_with_template_card":
            self.show_card(chat, answer["template_card"], msgid)
        self.tell()

    async def enter(self, user: str) -> None:
        self.kinds[user] = "single"
        body = {"msgid": self.new_id("event"), "from": {"userid": user}, "msgtype": "event"}
        answer = await self.post({**body, "event": {"eventtype": "enter_chat"}})
        if answer is not None:
            self._take(answer, user, "")

    async def press(self, chat: str, user: str, task: str, key: str) -> None:
        card = {"card_type": "button_interaction", "event_key": key, "task_id": task}
        body = {
            "msgid": self.new_id("event"),
            "from": {"userid": user},
            **({"chatid": chat} if self.kinds[chat] == "group" else {}),
            "chattype": self.kinds[chat],
            "response_url": self.response_url(chat),
            "msgtype": "event",
            "event": {"eventtype": "template_card_event", "template_card_event": card},
        }
        answer = await self.post(body)
        if answer is not None:
            self.update_card(answer, _Call(chat, "card", 0, self.clock(), task=task))

    def file(self, data: bytes) -> Data:
        id = self.lock_file(data, base64.b64decode(self.aes_key + "="))
        return {"url": f"{self.root}/file/{id}"}
