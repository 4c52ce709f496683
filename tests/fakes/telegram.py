"""A Bot API server for tests: it keeps chats, hands out updates and refuses what the real server refuses.

In a test::

    async with FakeTelegram() as fake:
        channel = TelegramChannel(..., base_url=fake.url)
        fake.say(5, "hello")
        await fake.wait_for(lambda: fake.chats[5].texts)

As a program: `python -m tests.fakes.telegram --port 8081`; then POST /_fake/say and /_fake/fault, GET
/_fake/state.
Texts are judged by TDLib (`telegram_judge`). Error texts are those of the real server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from aiohttp import web

from tests.fakes.telegram_judge import Refused, found_entities, judge
from tests.fakes.telegram_webhook import Deliveries, Hook

TOKEN = "123456789:AAFakeTokenForTestsOnly_abcdefghijk"
NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same "
    "as a current content and reply markup of the message"
)
CONFLICT = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
CONFLICT_WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active; "
    "use deleteWebhook to delete the webhook first"
)
MEDIA = {
    "senddocument": "document",
    "sendphoto": "photo",
    "sendaudio": "audio",
    "sendvoice": "voice",
    "sendvideo": "video",
    "sendanimation": "animation",
}
#: Some of the emoji that may stand as a reaction.
REACTIONS = ("👍", "👎", "❤", "🔥", "👀", "🎉", "👌", "🤔", "✍", "⚡")
IMAGE_HEADS = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
MIB = 1024 * 1024

Json = dict[str, Any]


class ApiError(Exception):
    def __init__(self, code: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.code, self.description, self.parameters = code, description, parameters


def bad(description: str) -> ApiError:
    return ApiError(400, f"Bad Request: {description}")


@dataclass
class Call:
    """One request that came in. `status` is 0 while it runs and when the connection was cut."""

    method: str
    params: Json
    at: float
    status: int = 0
    description: str = ""

    @property
    def chat(self) -> int:
        try:
            return int(self.params.get("chat_id", 0))
        except (TypeError, ValueError):
            return 0


@dataclass
class Chat:
    id: int
    type: str = "private"
    title: str = ""
    is_forum: bool = False
    topics: set[int] = field(default_factory=set)
    gone: str = ""  # the server's words when the bot may not write here
    migrated_to: int = 0
    flood_until: float = 0.0
    history: list[Json] = field(default_factory=list)
    drafts: dict[int, str] = field(default_factory=dict)
    actions: list[Json] = field(default_factory=list)
    member: Json = field(default_factory=lambda: {"status": "member"})  # what the bot is here
    permissions: Json = field(default_factory=dict)

    @property
    def shown(self) -> list[Json]:
        """The bot's messages as people see them now, oldest first."""
        return [message for message in self.history if message.get("from", {}).get("is_bot")]

    @property
    def texts(self) -> list[str]:
        return [str(message.get("text", message.get("caption", ""))) for message in self.shown]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def to_json(self) -> Json:
        chat: Json = {"id": self.id, "type": self.type}
        if self.type == "private":
            return chat | {"first_name": self.title or f"User {self.id}"}
        chat["title"] = self.title or f"Group {self.id}"
        return chat | ({"is_forum": True} if self.is_forum else {})

    def find(self, message_id: int) -> Json | None:
        return next((m for m in self.history if m["message_id"] == message_id), None)


@dataclass
class Fault:
    """What shall happen to matching calls. `after` calls are let through first, then `times` are hit."""

    method: str
    chat: int | None = None
    times: int = 1
    after: int = 0
    error: ApiError | None = None
    html: bool = False  # answer with a proxy's page instead of JSON
    delay: float = 0.0  # seconds before the answer, after the effect
    cut: str = ""  # "before" or "after" the effect: the connection is cut without an answer

    def hits(self, call: Call) -> bool:
        if self.times <= 0 or self.method.lower() not in ("*", call.method.lower()):
            return False
        if self.chat is not None and self.chat != call.chat:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


class FakeTelegram:
    def __init__(self, token: str = TOKEN, username: str = "TheBot", bot_id: int = 123456789) -> None:
        self.token = token
        self.me: Json = {
            "id": bot_id,
            "is_bot": True,
            "first_name": "The Bot",
            "username": username,
            "can_join_groups": True,
            "can_read_all_group_messages": False,
            "supports_inline_queries": False,
        }
        self.chats: dict[int, Chat] = {}
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.menus: dict[str, list[Json]] = {}  # commands by language, "" for the default
        self.hook: Hook | None = None
        self.deliveries: Deliveries | None = None
        self.noise: random.Random | None = None  # webhook deliveries that come twice, chats in any order
        self.local = False  # a local server: webhooks without TLS, files on `disk`
        self.disk: Path | None = None
        self.query_life = 60.0  # seconds in which a pressed button may be answered
        self.queries: dict[str, float] = {}  # callback query id -> loop time of the press
        self.answers: list[Json] = []  # what answerCallbackQuery showed
        self.connections: set[str] = set()  # business connections that are in force
        self.updates: list[Json] = []
        self.files: dict[str, bytes] = {}
        self.url = ""
        self._next_update = 1000
        self._next_message = 100
        self._poll = 0
        self._changes = asyncio.Event()
        self._runner: web.AppRunner | None = None

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=64 * MIB)
        app.router.add_post("/_fake/say", self._control_say)
        app.router.add_post("/_fake/fault", self._control_fault)
        app.router.add_get("/_fake/state", self._control_state)
        app.router.add_get("/file/bot{token}/{path:.+}", self._download)
        app.router.add_route("*", "/bot{token}/{method}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{port}"
        if self.hook and self.local:
            self.deliveries = Deliveries(self.hook, self.updates, self._changes.set, self.noise)
        return self.url

    async def stop(self) -> None:
        if self.deliveries:
            await self.deliveries.stop()
            self.deliveries = None
        if self._runner:
            self._poll += 1
            self._notify()
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> FakeTelegram:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # -- what tests do -----------------------------------------------------------------------------------

    def chat(self, id: int, type: str = "", **changes: Any) -> Chat:
        """The chat with this id; made when it is new (positive ids are private, others supergroups)."""
        chat = self.chats.get(id)
        if chat is None:
            chat = self.chats[id] = Chat(id, type or ("private" if id > 0 else "supergroup"))
        for name, value in changes.items():
            setattr(chat, name, value)
        return chat

    def say(self, chat: int, text: str, user: int | None = None, **extra: Any) -> Json:
        """A person writes. `thread` and `reply_to` (a message id) are short; other `extra` goes in as is."""
        place = self.chat(chat)
        sender = user if user is not None else (chat if chat > 0 else 77)
        kind = extra.pop("kind", "message")
        message: Json = {
            "message_id": self._message_id(),
            "from": {"id": sender, "is_bot": False, "first_name": f"User {sender}", "language_code": "en"},
            "chat": place.to_json(),
            "date": int(time.time()),
        }
        thread = extra.pop("thread", None)
        if thread is not None:
            place.topics.add(thread)
            message |= {"message_thread_id": thread, "is_topic_message": True}
        reply_to = extra.pop("reply_to", None)
        if reply_to is not None:
            original = dict(place.find(reply_to) or {})
            original.pop("reply_to_message", None)
            message["reply_to_message"] = original
        if text:
            name = "caption" if MEDIA.keys() & {f"send{key}" for key in extra} else "text"
            message[name] = text
            entities = found_entities(text)
            if entities:
                message["entities" if name == "text" else "caption_entities"] = entities
        message |= extra
        place.history.append(message)
        self.push({kind: message})
        return message

    def album(self, chat: int, group: str, *parts: Json, text: str = "", **extra: Any) -> list[Json]:
        """Pictures or files sent together: messages of their own with one `media_group_id`."""
        return [
            self.say(chat, "" if n else text, media_group_id=group, **part, **extra)
            for n, part in enumerate(parts)
        ]

    def rewrite(self, chat: int, message_id: int, text: str, kind: str = "edited_message") -> Json:
        """A person edits a message."""
        message = self.chats[chat].find(message_id)
        assert message is not None
        name = "text" if "text" in message else "caption"
        entities = found_entities(text)
        message |= {name: text, "edit_date": int(time.time())}
        message["entities" if name == "text" else "caption_entities"] = entities
        self.push({kind: dict(message)})
        return message

    def press(self, chat: int, message_id: int, data: str, user: int | None = None) -> str:
        """A person presses a button of a message of the bot; returns the query's id."""
        message = self.chat(chat).find(message_id)
        buttons = [
            b for row in (message or {}).get("reply_markup", {}).get("inline_keyboard", ()) for b in row
        ]
        if message is not None and data not in [button.get("callback_data") for button in buttons]:
            raise AssertionError(f"message {message_id} has no button with {data!r}")
        shown = message or {"message_id": message_id, "date": 0, "chat": self.chat(chat).to_json()}
        query_id = f"Q{self._next_update}"
        self.queries[query_id] = time.monotonic()
        self.push({"callback_query": self._query(query_id, shown, data, user or (chat if chat > 0 else 77))})
        return query_id

    def _query(self, query_id: str, message: Json, data: str, user: int) -> Json:
        return {
            "id": query_id,
            "from": {"id": user, "is_bot": False, "first_name": f"User {user}", "language_code": "en"},
            "chat_instance": "1",
            "data": data,
            "message": message,
        }

    def push(self, update: Json) -> int:
        """Queue a raw update (without its id); returns the id."""
        number = self._next_update
        self._next_update += 1
        self.updates.append({"update_id": number, **update})
        self._notify()
        return number

    def file(self, data: bytes, name: str = "file.bin") -> str:
        """Store a file that a message can refer to; returns its file_id."""
        file_id = f"FILE{len(self.files)}_{name}"
        self.files[file_id] = data
        return file_id

    def fail(self, method: str, code: int, description: str = "", **where: Any) -> Fault:
        """Let calls be refused, e.g. `fail("sendMessage", 429, retry_after=30, chat=5, after=1)`."""
        parameters = {k: where.pop(k) for k in ("retry_after", "migrate_to_chat_id") if k in where}
        if not description:
            texts = {401: "Unauthorized", 409: CONFLICT, 500: "Internal Server Error", 502: "Bad Gateway"}
            description = texts.get(code, "")
            if code == 429:
                description = f"Too Many Requests: retry after {parameters.get('retry_after', 0)}"
        return self._add(Fault(method, error=ApiError(code, description, **parameters), **where))

    def cut(self, method: str, when: str = "before", **where: Any) -> Fault:
        """Cut the connection before or after the call has its effect."""
        return self._add(Fault(method, cut=when, **where))

    def delay(self, method: str, seconds: float, **where: Any) -> Fault:
        """Answer late; the effect is there at once."""
        return self._add(Fault(method, delay=seconds, **where))

    def _add(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    def called(self, method: str, chat: int | None = None) -> list[Call]:
        name = method.lower()
        return [c for c in self.calls if c.method.lower() == name and (chat is None or c.chat == chat)]

    async def wait_for(self, predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
        """Wait until `predicate()` is true; looked at after each change. AssertionError after `timeout` s."""
        deadline = time.monotonic() + timeout
        while not (result := predicate()):
            left = deadline - time.monotonic()
            if left <= 0:
                recent = [(c.method, c.status, c.description) for c in self.calls[-8:]]
                raise AssertionError(
                    f"not within {timeout} s; shown: { {i: c.texts for i, c in self.chats.items()} }; "
                    f"calls: {recent}"
                )
            self._changes.clear()
            try:
                await asyncio.wait_for(self._changes.wait(), min(left, 0.25))
            except TimeoutError:
                continue
        return result

    @property
    def webhook(self) -> str:
        return self.hook.url if self.hook else ""

    @webhook.setter
    def webhook(self, url: str) -> None:
        """Somebody sets a webhook (nothing is delivered to it) or removes it."""
        self.hook = Hook(url) if url else None

    def _notify(self) -> None:
        self._changes.set()
        if self.deliveries:
            self.deliveries.wake()
        for waiter in list(self._waiters):
            waiter.set()

    @property
    def _waiters(self) -> list[asyncio.Event]:
        waiters: list[asyncio.Event] = self.__dict__.setdefault("_poll_waiters", [])
        return waiters

    def _message_id(self) -> int:
        self._next_message += 1
        return self._next_message

    # -- HTTP --------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            params = await _params(request)
        except ConnectionResetError:  # the caller went away in the middle of its request
            return _cut(request)
        call = Call(request.match_info["method"], params, time.monotonic())
        self.calls.append(call)
        fault = next((f for f in self.faults if f.hits(call)), None)
        if fault and fault.cut == "before":
            return _cut(request)
        try:
            if request.match_info["token"] != self.token:
                raise ApiError(401, "Unauthorized")
            if fault and fault.error:
                self._note_flood(call, fault.error)
                raise fault.error
            result = await self._dispatch(call)
            call.status = 200
            answer = web.json_response({"ok": True, "result": result})
        except ApiError as error:
            call.status, call.description = error.code, error.description
            body: Json = {"ok": False, "error_code": error.code, "description": error.description}
            if error.parameters:
                body["parameters"] = error.parameters
            answer = web.json_response(body, status=error.code)
            if fault and fault.html:
                page = f"<html><h1>{error.code}</h1></html>"
                answer = web.Response(text=page, content_type="text/html", status=error.code)
        self._notify()
        if fault and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault and fault.cut == "after":
            call.status = 0
            return _cut(request)
        return answer

    def _note_flood(self, call: Call, error: ApiError) -> None:
        if error.code == 429 and call.chat in self.chats:
            self.chats[call.chat].flood_until = time.monotonic() + error.parameters.get("retry_after", 0)

    async def _dispatch(self, call: Call) -> Any:
        method = call.method.lower()
        handler: Callable[[Json], Any] | None = getattr(self, f"_do_{method}", None)
        if method in MEDIA:
            result: Any = self._send_media(call.params, MEDIA[method])
        elif handler is None:
            raise ApiError(404, "Not Found")
        else:
            result = handler(call.params)
        return await result if isinstance(result, Awaitable) else result

    async def _download(self, request: web.Request) -> web.StreamResponse:
        self.calls.append(Call("download", {"path": request.match_info["path"]}, time.monotonic(), 200))
        fault = next((f for f in self.faults if f.hits(self.calls[-1])), None)
        if fault and fault.cut:
            return _cut(request)
        data = self.files.get(PurePosixPath(request.match_info["path"]).name)
        if data is None or request.match_info["token"] != self.token:
            return web.json_response({"ok": False, "error_code": 404, "description": "Not Found"}, status=404)
        return web.Response(body=data, content_type="application/octet-stream")

    async def _control_say(self, request: web.Request) -> web.Response:
        body = await request.json()
        return web.json_response(self.say(body.pop("chat"), body.pop("text", ""), **body))

    async def _control_fault(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "code" in body:
            self.fail(body.pop("method"), body.pop("code"), **body)
        else:
            self._add(Fault(**body))
        return web.json_response({})

    async def _control_state(self, request: web.Request) -> web.Response:
        chats = {str(c.id): {"texts": c.texts, "shown": c.shown} for c in self.chats.values()}
        calls = [
            {"method": c.method, "chat": c.chat, "at": c.at, "status": c.status} for c in self.calls[-2000:]
        ]
        return web.json_response({"chats": chats, "calls": calls, "pending": len(self.updates)})

    # -- methods: receiving ------------------------------------------------------------------------------

    def _do_getme(self, params: Json) -> Json:
        return self.me

    async def _do_getupdates(self, params: Json) -> list[Json]:
        if self.webhook:
            raise ApiError(409, CONFLICT_WEBHOOK)
        self._poll += 1
        mine = self._poll
        self._notify()  # the earlier poll ends with a conflict
        offset, limit = int(params.get("offset", 0)), min(100, int(params.get("limit", 100)) or 100)
        if offset < 0:
            self.updates = self.updates[offset:]
        elif offset:
            self.updates = [u for u in self.updates if u["update_id"] >= offset]
        deadline = time.monotonic() + min(50.0, float(params.get("timeout", 0)))
        waiter = asyncio.Event()
        self._waiters.append(waiter)
        try:
            while True:
                if mine != self._poll:
                    raise ApiError(409, CONFLICT)
                allowed = params.get("allowed_updates")
                ready = [u for u in self.updates if not allowed or u.keys() & set(allowed)]
                left = deadline - time.monotonic()
                if ready or left <= 0:
                    return ready[:limit]
                waiter.clear()
                try:
                    await asyncio.wait_for(waiter.wait(), left)
                except TimeoutError:
                    continue
        finally:
            self._waiters.remove(waiter)

    def _do_getwebhookinfo(self, params: Json) -> Json:
        hook = self.hook or Hook("")
        info: Json = {
            "url": hook.url,
            "has_custom_certificate": False,
            "pending_update_count": len(self.updates),
        }
        if hook.url:
            info |= {"max_connections": hook.max_connections}
            info |= {"allowed_updates": hook.allowed} if hook.allowed else {}
        if hook.error:
            info |= {"last_error_date": hook.error_date, "last_error_message": hook.error}
        return info

    async def _do_setwebhook(self, params: Json) -> bool:
        url, secret = str(params.get("url", "")), str(params.get("secret_token", ""))
        if not url:
            return await self._do_deletewebhook(params)
        if not url.startswith("https://") and not self.local:
            raise bad("bad webhook: An HTTPS URL must be provided for webhook")
        if len(secret) > 256:
            raise bad("secret token is too long")
        if not re.fullmatch(r"[A-Za-z0-9_-]*", secret):
            raise bad("secret token contains unallowed characters")
        await self._stop_deliveries()
        connections = min(100, max(1, int(params.get("max_connections", 40))))
        self.hook = Hook(url, secret, connections, list(params.get("allowed_updates") or []))
        if params.get("drop_pending_updates"):
            self.updates.clear()
        self._poll += 1
        if self.local:
            self.deliveries = Deliveries(self.hook, self.updates, self._changes.set, self.noise)
        self._notify()
        return True

    async def _do_deletewebhook(self, params: Json) -> bool:
        await self._stop_deliveries()
        self.hook = None
        if params.get("drop_pending_updates"):
            self.updates.clear()
        return True

    async def _stop_deliveries(self) -> None:
        deliveries, self.deliveries = self.deliveries, None
        if deliveries:
            await deliveries.stop()

    def _do_getfile(self, params: Json) -> Json:
        file_id = str(params.get("file_id", ""))
        data = self.files.get(file_id)
        if data is None:
            raise bad("wrong file_id or the file is temporarily unavailable")
        if len(data) > 20 * MIB and not self.local:
            raise bad("file is too big")
        path = f"documents/{file_id}"
        if self.disk:
            place = self.disk / self.token / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            path = str(place)
        return {
            "file_id": file_id,
            "file_unique_id": file_id,
            "file_size": len(data),
            "file_path": path,
        }

    # -- methods: sending --------------------------------------------------------------------------------

    def _place(self, params: Json) -> Chat:
        try:
            chat = self.chats.get(int(params.get("chat_id", "")))
        except ValueError:
            chat = None
        if "chat_id" not in params:
            raise bad("chat_id is empty")
        if chat is None:
            raise bad("chat not found")
        connection = params.get("business_connection_id")
        if connection is not None and connection not in self.connections:
            raise bad("business connection not found")
        if chat.migrated_to:
            raise ApiError(
                400,
                "Bad Request: group chat was upgraded to a supergroup chat",
                migrate_to_chat_id=chat.migrated_to,
            )
        if chat.gone:
            code = 403 if chat.gone.startswith("Forbidden") else 400
            raise ApiError(code, chat.gone)
        left = chat.flood_until - time.monotonic()
        if left > 0:
            seconds = int(left) + 1
            raise ApiError(429, f"Too Many Requests: retry after {seconds}", retry_after=seconds)
        return chat

    def _new_message(self, chat: Chat, params: Json) -> Json:
        message: Json = {
            "message_id": 0,
            "from": {k: self.me[k] for k in ("id", "is_bot", "first_name", "username")},
            "chat": chat.to_json(),
            "date": int(time.time()),
        }
        if "business_connection_id" in params:
            message["business_connection_id"] = params["business_connection_id"]
        if "message_thread_id" in params:
            thread = int(params["message_thread_id"])
            if thread not in chat.topics or thread == 1:
                raise bad("message thread not found")
            message |= {"message_thread_id": thread, "is_topic_message": True}
        reply = params.get("reply_parameters") or {}
        if reply:
            original = chat.find(int(reply["message_id"]))
            if original is None and not reply.get("allow_sending_without_reply"):
                raise bad("message to be replied not found")
            if original:
                message["reply_to_message"] = {k: v for k, v in original.items() if k != "reply_to_message"}
        return message

    def _show(self, chat: Chat, message: Json) -> Json:
        message["message_id"] = self._message_id()
        chat.history.append(message)
        return message

    def _do_sendmessage(self, params: Json) -> Json:
        chat = self._place(params)
        message = self._new_message(chat, params)
        message |= _judged(params) | _markup(params)
        return self._show(chat, message)

    def _do_editmessagetext(self, params: Json) -> Json:
        chat = self._place(params)
        message = chat.find(int(params.get("message_id", 0)))
        if message is None:
            raise bad("message to edit not found")
        if not message["from"]["is_bot"] or "text" not in message:
            raise bad("message can't be edited")
        new = _judged(params) | _markup(params)
        if all(new.get(key) == message.get(key) for key in ("text", "entities", "reply_markup")):
            raise bad(NOT_MODIFIED)
        message.pop("entities", None)
        message.pop("reply_markup", None)  # an edit without buttons takes them away
        message |= new | {"edit_date": int(time.time())}
        return message

    def _do_sendmessagedraft(self, params: Json) -> bool:
        chat = self._place(params)
        if chat.type != "private":
            raise bad("method is available only in private chats")
        if not int(params.get("draft_id", 0)):
            raise bad("draft_id must be non-zero")
        text = str(params.get("text", ""))
        chat.drafts[int(params["draft_id"])] = _judged(params)["text"] if text else ""
        return True

    def _send_media(self, params: Json, kind: str) -> Json:
        chat = self._place(params)
        message = self._new_message(chat, params)
        message |= self._media(kind, params.get(kind))
        if params.get("caption"):
            message |= _judged(params, "caption", 1024)
        return self._show(chat, message)

    def _media(self, kind: str, upload: Any) -> Json:
        if not isinstance(upload, tuple):
            raise bad(f"there is no {kind} in the request")
        name, mime, data = upload
        if not data:
            raise bad("file must be non-empty")
        if len(data) > (10 if kind == "photo" else 50) * MIB:
            raise ApiError(413, "Request Entity Too Large")
        if kind == "photo" and not data.startswith(IMAGE_HEADS):
            raise bad("IMAGE_PROCESS_FAILED")
        file_id = self.file(data, name)
        described: Json = {"file_id": file_id, "file_unique_id": file_id, "file_size": len(data)}
        if kind == "photo":
            return {"photo": [described | {"width": 1, "height": 1}]}
        described |= {"file_name": name, "mime_type": mime}
        if kind in ("audio", "voice", "video", "animation"):
            size = {"width": 1, "height": 1} if kind in ("video", "animation") else {}
            described |= {"duration": 1} | size
        return {kind: described}

    def _do_sendmediagroup(self, params: Json) -> list[Json]:
        chat = self._place(params)
        media = params.get("media")
        if not isinstance(media, list) or not media:
            raise bad("there are no messages to send")
        if len(media) > 10:
            raise bad("too many messages to send as an album")
        kinds = {str(item.get("type")) for item in media}
        if not kinds <= {"photo", "video", "document", "audio"}:
            raise bad("type of file mismatch")
        if len(kinds) > 1 and kinds & {"document", "audio"}:
            raise bad(f"{sorted(kinds & {'document', 'audio'})[0]} can't be mixed with other media types")
        group = f"G{self._next_message}"
        messages = []
        for item in media:
            message = self._new_message(chat, params) | {"media_group_id": group}
            message |= self._media(item["type"], params.get(str(item["media"]).removeprefix("attach://")))
            if item.get("caption"):
                message |= _judged(item, "caption", 1024)
            messages.append(message)
        return [self._show(chat, message) for message in messages]

    def _do_sendchataction(self, params: Json) -> bool:
        chat = self._place(params)
        thread = int(params.get("message_thread_id", 0))
        if thread > 1 and thread not in chat.topics:
            raise bad("message thread not found")
        if params.get("action") not in ("typing", "upload_document", "upload_photo", "upload_voice"):
            raise bad("wrong parameter action in request")
        chat.actions.append(params | {"at": time.monotonic()})
        return True

    def _do_deletemessage(self, params: Json) -> bool:
        chat = self._place(params)
        message = chat.find(int(params.get("message_id", 0)))
        if message is None:
            raise bad("message to delete not found")
        chat.history.remove(message)
        return True

    def _do_setmycommands(self, params: Json) -> bool:
        commands = params.get("commands", [])
        if len(commands) > 100:
            raise bad("BOT_COMMANDS_TOO_MUCH")
        for command in commands:
            if not re.fullmatch(r"[a-z0-9_]{1,32}", command["command"]):
                raise bad("BOT_COMMAND_INVALID")
            if not 1 <= len(command["description"]) <= 256:
                raise bad("BOT_COMMAND_DESCRIPTION_INVALID")
        self.menus[str(params.get("language_code", ""))] = commands
        return True

    def _do_setmessagereaction(self, params: Json) -> bool:
        message = self._place(params).find(int(params.get("message_id", 0)))
        if message is None:
            raise bad("message to react not found")
        reactions = params.get("reaction") or []
        if len(reactions) > 1:
            raise bad("REACTIONS_TOO_MANY")
        if any(reaction.get("emoji") not in REACTIONS for reaction in reactions):
            raise bad("REACTION_INVALID")
        message["reactions"] = [reaction["emoji"] for reaction in reactions]
        return True

    def _do_getchat(self, params: Json) -> Json:
        chat = self._place(params)
        return chat.to_json() | ({"permissions": chat.permissions} if chat.permissions else {})

    def _do_getchatmember(self, params: Json) -> Json:
        chat = self._place(params)
        if int(params.get("user_id", 0)) != self.me["id"]:
            raise bad("user not found")
        return {"user": self.me, **chat.member}

    def _do_answercallbackquery(self, params: Json) -> bool:
        pressed = self.queries.pop(str(params.get("callback_query_id", "")), None)
        if pressed is None or time.monotonic() - pressed > self.query_life:
            raise bad("query is too old and response timeout expired or query ID is invalid")
        if len(str(params.get("text", ""))) > 200:
            raise bad("MESSAGE_TOO_LONG")
        self.answers.append(params)
        return True


def _markup(params: Json) -> Json:
    """An inline keyboard, refused as the real server does."""
    markup = params.get("reply_markup") or {}
    for button in (button for row in markup.get("inline_keyboard", ()) for button in row):
        if not str(button.get("text", "")):
            raise bad("can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard")
        data = button.get("callback_data")
        if data is not None and not 1 <= len(str(data).encode()) <= 64:
            raise bad("BUTTON_DATA_INVALID")
    return {"reply_markup": markup} if markup else {}


def _judged(params: Json, name: str = "text", limit: int = 4096) -> Json:
    text = str(params.get(name, ""))
    if not text:
        raise bad(f"message {name} is empty")
    entities = params.get("entities" if name == "text" else "caption_entities") or []
    try:
        shown = judge(text, entities, str(params.get("parse_mode", "")), limit)
    except Refused as refused:
        raise bad(str(refused)) from None
    key = "entities" if name == "text" else "caption_entities"
    return {name: shown.text} | ({key: shown.entities} if shown.entities else {})


async def _params(request: web.Request) -> Json:
    """Parameters as the server takes them: query, form, multipart (files as name, type, bytes) or JSON."""
    params: Json = {}
    pairs: Iterable[tuple[str, Any]] = request.query.items()
    if request.content_type == "application/json":
        params |= await request.json()
    elif request.can_read_body:
        pairs = [*pairs, *(await request.post()).items()]
    for key, value in pairs:
        if isinstance(value, web.FileField):
            params[key] = (value.filename, value.content_type, value.file.read())
        elif isinstance(value, str) and value[:1] in ("[", "{") and key not in ("text", "caption"):
            params[key] = json.loads(value)
        elif value in ("true", "false"):
            params[key] = value == "true" if key not in ("text", "caption") else value
        else:
            params[key] = value
    return params


def _cut(request: web.Request) -> web.Response:
    if request.transport:
        request.transport.abort()
    return web.Response()


async def _serve(port: int, token: str) -> None:
    fake = FakeTelegram(token)
    print(await fake.start(port), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=8081)
    parser.add_argument("--token", default=TOKEN)
    arguments = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(arguments.port, arguments.token))
