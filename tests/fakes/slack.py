"""A Slack for tests: it keeps chats, tells the app what happens in them, and refuses what Slack refuses.

In a test::

    async with FakeSlack() as fake:
        channel = SlackChannel(..., base_url=fake.url, bot_token=fake.bot_token, app_token=fake.app_token)
        ts = fake.say("C1", f"<@{fake.bot_user}> hello")
        await fake.wait_for(lambda: fake.thread("C1", ts).texts)

Events go out over Socket Mode; over HTTP, signed, when `fake.sockets.http_url` is set. `slack_api` has the
methods, `slack_judge` the limits of messages, `slack_socket` the deliveries and their knobs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.fakes.slack_api import SCOPES, Methods
from tests.fakes.slack_judge import Refused, pings, visible
from tests.fakes.slack_socket import Delivery, Sockets

Json = dict[str, Any]
MIB = 1024 * 1024
#: A streamed message lives so long (seconds, measured by others); appending does not extend it.
STREAM_LIFE = 306.0
LOGIN_PAGE = "<!DOCTYPE html><html><head><title>Sign in | Slack</title></head><body>Sign in</body></html>"
ALL_SCOPES = frozenset(scope for scopes in SCOPES.values() for scope in scopes) | {
    "app_mentions:read",
    "commands",
    "groups:history",
    "im:history",
    "mpim:history",
}


#: Arguments that a form carries as JSON.
_OBJECTS = frozenset({"attachments", "blocks", "chunks", "files", "metadata", "prompts", "view"})


@dataclass
class Call:
    """One request that came in. `error` is Slack's word, `status` 0 when the connection was cut."""

    method: str
    params: Json
    at: float
    status: int = 200
    error: str = ""

    @property
    def channel(self) -> str:
        return str(self.params.get("channel") or self.params.get("channel_id") or "")


@dataclass
class Fault:
    """What shall happen to matching calls. `after` calls are let through first, then `times` are hit."""

    method: str
    channel: str = ""
    times: int = 1
    after: int = 0
    error: str = ""
    retry_after: float = 0.0
    status: int = 200  # an answer of a proxy when it is not 200 (and no `error`)
    delay: float = 0.0  # seconds before the answer, after the effect
    cut: str = ""  # "before" or "after" the effect: the connection is cut without an answer
    more: Json = field(default_factory=dict)

    def hits(self, call: Call) -> bool:
        if self.times <= 0 or self.method not in ("*", call.method):
            return False
        if self.channel and self.channel != call.channel:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        self.times -= 1
        return True


@dataclass
class View:
    """Messages of the bot as people see them, oldest first."""

    messages: list[Json]

    @property
    def texts(self) -> list[str]:
        return [visible(message) for message in self.messages]

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    @property
    def pings(self) -> list[str]:
        return [ping for message in self.messages for ping in pings(message)]


@dataclass
class Place:
    """A conversation. `kind` as in Slack's events: channel, group (private), im, mpim."""

    id: str
    kind: str = "channel"
    name: str = ""
    members: set[str] = field(default_factory=set)
    archived: bool = False
    messages: list[Json] = field(default_factory=list)
    ephemeral: list[Json] = field(default_factory=list)
    statuses: list[Json] = field(default_factory=list)
    prompts: dict[str, list[Json]] = field(default_factory=dict)

    def find(self, ts: str) -> Json | None:
        return next((m for m in self.messages if m["ts"] == ts), None)


@dataclass
class File:
    meta: Json
    data: bytes | None
    length: int = 0


class FakeSlack:
    def __init__(self, bot_user: str = "U0BOT", team: str = "T0FAKE") -> None:
        self.bot_token, self.app_token = "xoxb-fake-bot-token", "xapp-1-fake-app-token"
        self.signing_secret = "fake-signing-secret-0123456789"
        self.bot_user, self.bot_id, self.app, self.team = bot_user, "B0BOT", "A0APP", team
        self.scopes = set(ALL_SCOPES)
        self.users: dict[str, Json] = {}
        self.places: dict[str, Place] = {}
        self.files: dict[str, File] = {}
        self.homes: dict[str, Json] = {}
        self.modals: list[Json] = []
        self.responses: list[Json] = []
        self.calls: list[Call] = []
        self.faults: list[Fault] = []
        self.socket_mode = True
        self.streams = True
        self.page_size = 999
        self.limited_history = False  # 15 messages a page and one call a minute
        self.pace: tuple[float, int] | None = None  # (seconds a post, burst) for each channel
        self.edit_window: float | None = None
        self.echo = True  # the bot's own messages come back as events
        self.url = ""
        self.sockets = Sockets(self)
        self._methods = Methods(self)
        self._offset = 0.0
        self._ts = itertools.count(1)
        self._ids = itertools.count(1)
        self._triggers: dict[str, float] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        self._history_at: float | None = None
        self._changes = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.user(bot_user, "causeway", is_bot=True)

    # -- life --------------------------------------------------------------------------------------------

    async def start(self, port: int = 0) -> str:
        app = web.Application(client_max_size=64 * MIB)
        app.router.add_route("*", "/api/{method}", self._handle)
        app.router.add_get("/link/", self.sockets.handle)
        app.router.add_post("/upload/v1/{id}", self._upload)
        app.router.add_get("/files-pri/{id}/{name}", self._download)
        app.router.add_post("/response/{id}", self._respond)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        await self.sockets.start()
        return self.url

    async def stop(self) -> None:
        await self.sockets.stop()
        if self._runner:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> FakeSlack:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def now(self) -> float:
        return time.time() + self._offset

    def advance(self, seconds: float) -> None:
        """Let time pass: streams end, edit windows close, rate limits recover."""
        self._offset += seconds

    # -- what tests set up -------------------------------------------------------------------------------

    def user(self, id: str, name: str = "", **more: Any) -> Json:
        name = name or f"name-{id}"
        profile = {"display_name": name, "real_name": name.title()}
        self.users[id] = {
            "id": id,
            "team_id": self.team,
            "name": name,
            "real_name": name.title(),
            "is_bot": False,
            "locale": "en-US",
            "profile": profile,
            **more,
        }
        return self.users[id]

    def place(self, id: str, kind: str = "", *, members: tuple[str, ...] | list[str] = ()) -> Place:
        """The conversation with this id; made when it is new (the bot is a member)."""
        if id not in self.places:
            kind = kind or {"D": "im", "G": "mpim"}.get(id[0], "channel")
            self.places[id] = Place(id, kind, f"name-{id.lower()}", {self.bot_user, *members})
        return self.places[id]

    def direct(self, user: str) -> Place:
        """The direct chat of a person with the bot."""
        found = next((p for p in self.places.values() if p.kind == "im" and user in p.members), None)
        return found or self.place(f"D{user}", "im", members=[user])

    def file(self, data: bytes, name: str = "a.txt", mimetype: str = "text/plain", **more: Any) -> Json:
        """Store a file that a message can carry; returns its object."""
        id = f"F{next(self._ids):05d}"
        address = f"{self.url}/files-pri/{id}/{name}"
        meta = {
            "id": id,
            "name": name,
            "title": name,
            "mimetype": mimetype,
            "filetype": name.rpartition(".")[2],
            "size": len(data),
            "mode": "hosted",
            "file_access": "visible",
            "url_private": address,
            "url_private_download": address,
            **more,
        }
        self.files[id] = File(meta, data, len(data))
        return meta

    def fail(self, method: str, error: str = "", **where: Any) -> Fault:
        """Let calls be refused: `fail("chat.postMessage", "ratelimited", retry_after=30, channel="C1")`."""
        known = {k: where.pop(k) for k in list(where) if k in Fault.__dataclass_fields__}
        return self._add(Fault(method, error=error, more=where, **known))

    def cut(self, method: str, when: str = "before", **where: Any) -> Fault:
        """Cut the connection before or after the call has its effect."""
        return self._add(Fault(method, cut=when, **where))

    def delay(self, method: str, seconds: float, **where: Any) -> Fault:
        """Answer late; the effect is there at once."""
        return self._add(Fault(method, delay=seconds, **where))

    def _add(self, fault: Fault) -> Fault:
        self.faults.append(fault)
        return fault

    # -- what people do ----------------------------------------------------------------------------------

    def say(self, channel: str, text: str, user: str = "U1", thread_ts: str = "", **more: Any) -> str:
        """A person writes; the events go out. Returns the message's ts."""
        message = self.write(channel, text, user, thread_ts, **more)
        self.tell(self.place(channel), message)
        return str(message["ts"])

    def write(self, channel: str, text: str, user: str = "U1", thread_ts: str = "", **more: Any) -> Json:
        """A person's message in the chat's state, without an event."""
        place = self.place(channel)
        if user not in self.users:
            self.user(user)
        place.members.add(user)
        ts = self.next_ts()
        message: Json = {
            "type": "message",
            "user": user,
            "text": text,
            "ts": ts,
            "client_msg_id": f"msg-{ts}",
            "team": self.team,
            **more,
        }
        if message.get("files"):
            message.setdefault("subtype", "file_share")
        self._put(place, message, thread_ts)
        return message

    def tell(self, place: Place, message: Json) -> list[Delivery]:
        """The events of a message: `message`, and `app_mention` where the bot is named in a channel."""
        if self.bot_user not in place.members:
            return []
        event = {
            **self.public(message),
            "channel": place.id,
            "channel_type": place.kind,
            "event_ts": message["ts"],
        }
        told = [self.emit(event)]
        if f"<@{self.bot_user}>" in str(message.get("text")) and place.kind != "im":
            keys = ("user", "text", "ts", "team", "thread_ts", "blocks", "files", "client_msg_id", "bot_id")
            mention = {k: event[k] for k in keys if k in event}
            told.append(
                self.emit({"type": "app_mention", **mention, "channel": place.id, "event_ts": event["ts"]})
            )
        return told

    def emit(self, event: Json) -> Delivery:
        """Tell the app of an event."""
        return self.sockets.deliver("events_api", self.wrap(event))

    def wrap(self, event: Json) -> Json:
        authorization = {"team_id": self.team, "user_id": self.bot_user, "is_bot": True}
        return {
            "token": "verification-token",
            "team_id": self.team,
            "api_app_id": self.app,
            "event": event,
            "type": "event_callback",
            "event_id": f"Ev{next(self._ids):06d}",
            "event_time": int(self.now()),
            "authorizations": [{"enterprise_id": None, "is_enterprise_install": False, **authorization}],
            "is_ext_shared_channel": False,
        }

    def edit(self, channel: str, ts: str, text: str) -> Delivery:
        """A person changes a message."""
        place = self.places[channel]
        message = place.find(ts)
        assert message is not None
        before = dict(message)
        message.update(text=text, edited={"user": message["user"], "ts": self.next_ts()})
        return self.changed(place, message, before)

    def unfurl(self, channel: str, ts: str) -> Delivery:
        """Slack shows a preview of a link in a message."""
        place = self.places[channel]
        message = place.find(ts)
        assert message is not None
        before = dict(message)
        message["attachments"] = [{"id": 1, "from_url": "https://example.org", "title": "Example"}]
        return self.changed(place, message, before)

    def delete(self, channel: str, ts: str) -> Delivery:
        place = self.places[channel]
        message = place.find(ts)
        assert message is not None
        place.messages.remove(message)
        return self.emit(
            {
                "type": "message",
                "subtype": "message_deleted",
                "hidden": True,
                "channel": channel,
                "channel_type": place.kind,
                "ts": self.next_ts(),
                "deleted_ts": ts,
                "previous_message": self.public(message),
            }
        )

    def changed(self, place: Place, message: Json, before: Json) -> Delivery:
        return self.emit(
            {
                "type": "message",
                "subtype": "message_changed",
                "hidden": True,
                "channel": place.id,
                "channel_type": place.kind,
                "ts": self.next_ts(),
                "message": self.public(message),
                "previous_message": self.public(before),
            }
        )

    def press(self, channel: str, ts: str, label: str, user: str = "U1") -> Delivery:
        """A person presses the button with this label (or action id, or value) under a message."""
        place = self.places[channel]
        message = place.find(ts)
        assert message is not None, f"no message {ts} in {channel}"
        actions = [(b, e) for b in message.get("blocks") or () for e in b.get("elements") or ()]
        block, button = next(
            (b, e)
            for b, e in actions
            if e.get("type") == "button" and label in (e["text"]["text"], e.get("value"), e.get("action_id"))
        )
        container = {"type": "message", "message_ts": ts, "channel_id": channel, "is_ephemeral": False}
        if message.get("thread_ts"):
            container["thread_ts"] = message["thread_ts"]
        action = {k: button[k] for k in ("action_id", "text", "value", "type", "style") if k in button}
        action |= {"block_id": block.get("block_id", "b"), "action_ts": self.next_ts()}
        payload = {
            "type": "block_actions",
            "container": container,
            "channel": {"id": channel, "name": place.name},
            "message": self.public(message),
            "state": {"values": {}},
            "response_url": self.response_url(channel),
            "actions": [action],
        }
        return self.interact(payload, user)

    def interact(self, payload: Json, user: str = "U1") -> Delivery:
        """An interaction with everything that all of them have."""
        person = {"id": user, "username": f"name-{user}", "name": f"name-{user}", "team_id": self.team}
        return self.sockets.deliver(
            "interactive",
            {
                "user": person,
                "team": {"id": self.team, "domain": "fake"},
                "api_app_id": self.app,
                "token": "verification-token",
                "trigger_id": self.new_trigger(),
                **payload,
            },
        )

    def shortcut(self, channel: str, ts: str, callback: str, user: str = "U1") -> Delivery:
        """A person chooses a message shortcut."""
        place = self.places[channel]
        message = place.find(ts)
        assert message is not None
        return self.interact(
            {
                "type": "message_action",
                "callback_id": callback,
                "action_ts": self.next_ts(),
                "message_ts": ts,
                "message": self.public(message),
                "channel": {"id": channel, "name": place.name},
                "response_url": self.response_url(channel),
            },
            user,
        )

    def submit(self, view: Json, values: Json, user: str = "U1") -> Delivery:
        """A person sends a modal off. `values`: block id -> action id -> value object."""
        sent = {**view, "state": {"values": values}}
        return self.interact({"type": "view_submission", "view": sent, "response_urls": []}, user)

    def command(self, channel: str, text: str, user: str = "U1", command: str = "/causeway") -> Delivery:
        """A person sends a slash command."""
        if user not in self.users:
            self.user(user)
        place = self.place(channel)
        return self.sockets.deliver(
            "slash_commands",
            {
                "token": "verification-token",
                "team_id": self.team,
                "team_domain": "fake",
                "channel_id": channel,
                "channel_name": "directmessage" if place.kind == "im" else place.name,
                "user_id": user,
                "user_name": f"name-{user}",
                "command": command,
                "text": text,
                "api_app_id": self.app,
                "is_enterprise_install": "false",
                "response_url": self.response_url(channel, user),
                "trigger_id": self.new_trigger(),
            },
        )

    def open_home(self, user: str = "U1") -> Delivery:
        if user not in self.users:
            self.user(user)
        event = {"type": "app_home_opened", "user": user, "channel": self.direct(user).id, "tab": "home"}
        return self.emit({**event, "event_ts": self.next_ts()})

    def start_assistant(self, user: str = "U1", **context: Any) -> str:
        """A person opens the assistant; returns the thread's ts."""
        if user not in self.users:
            self.user(user)
        place = self.direct(user)
        root = self.post_as_bot(place, {"text": "New chat", "subtype": "assistant_app_thread"}, "")
        ts = str(root["ts"])
        thread = {"user_id": user, "context": context, "channel_id": place.id, "thread_ts": ts}
        self.emit(
            {"type": "assistant_thread_started", "assistant_thread": thread, "event_ts": self.next_ts()}
        )
        return ts

    # -- what tests look at ------------------------------------------------------------------------------

    def shown(self, channel: str) -> View:
        """All of the bot's messages in a chat."""
        return View([m for m in self.place(channel).messages if m.get("bot_id") == self.bot_id])

    def thread(self, channel: str, ts: str) -> View:
        """The bot's messages in one thread."""
        return View([m for m in self.shown(channel).messages if m.get("thread_ts") == ts and m["ts"] != ts])

    def called(self, method: str, channel: str = "") -> list[Call]:
        return [c for c in self.calls if c.method == method and (not channel or c.channel == channel)]

    async def wait_for(self, predicate: Callable[[], Any], timeout: float = 10.0) -> Any:
        """Wait until `predicate()` is true; looked at after each change. AssertionError after `timeout` s."""
        deadline = time.monotonic() + timeout
        while not (result := predicate()):
            left = deadline - time.monotonic()
            if left <= 0:
                recent = [(c.method, c.status, c.error) for c in self.calls[-8:]]
                seen = {id: self.shown(id).texts[-5:] for id in list(self.places)[:5]}
                raise AssertionError(f"not within {timeout} s; shown: {seen}; calls: {recent}")
            self._changes.clear()
            try:
                await asyncio.wait_for(self._changes.wait(), min(left, 0.05))
            except TimeoutError:
                continue
        return result

    def notify(self) -> None:
        self._changes.set()

    # -- state -------------------------------------------------------------------------------------------

    def next_ts(self) -> str:
        return f"{int(self.now())}.{next(self._ts):06d}"

    def public(self, message: Json) -> Json:
        """A message as Slack hands it out."""
        shown = {k: v for k, v in message.items() if not k.startswith("_")}
        if reactions := shown.get("reactions"):
            shown["reactions"] = [{"name": n, "users": u, "count": len(u)} for n, u in reactions.items() if u]
        return json.loads(json.dumps(shown))  # type: ignore[no-any-return]

    def post_as_bot(self, place: Place, body: Json, thread: str) -> Json:
        message: Json = {
            "type": "message",
            "user": self.bot_user,
            "bot_id": self.bot_id,
            "app_id": self.app,
            "team": self.team,
            "ts": self.next_ts(),
            **body,
        }
        self._put(place, message, thread)
        if self.echo:
            self.tell(place, message)
        return message

    def _put(self, place: Place, message: Json, thread: str) -> None:
        if thread:
            parent = place.find(thread)
            message["thread_ts"] = thread
            if parent is not None:
                parent["thread_ts"] = thread
                parent["reply_count"] = parent.get("reply_count", 0) + 1
                if "user" in parent:
                    message["parent_user_id"] = parent["user"]
        place.messages.append(message)
        self.notify()

    def expire(self, message: Json) -> None:
        """End a stream whose time is over."""
        if message.get("_streaming") and self.now() - message["_started"] > STREAM_LIFE:
            message["_streaming"] = False

    def stop_stream(self, channel: str, ts: str) -> None:
        """A person presses Stop under a streamed message."""
        message = self.places[channel].find(ts)
        assert message is not None
        message.update(_streaming=False, _stopped_by_user=True)

    def expect_upload(self, name: str, length: int) -> str:
        meta = self.file(b"", name, "application/octet-stream", size=length)
        self.files[meta["id"]] = File(meta, None, length)
        return str(meta["id"])

    def new_trigger(self) -> str:
        trigger = f"trigger.{next(self._ids)}"
        self._triggers[trigger] = self.now()
        return trigger

    def take_trigger(self, trigger: str) -> None:
        made = self._triggers.pop(trigger, None)
        if made is None:
            raise Refused("invalid_trigger_id")
        if self.now() - made > 3:
            raise Refused("expired_trigger_id")

    def response_url(self, channel: str, user: str = "U1") -> str:
        id = f"R{next(self._ids)}"
        self.responses.append({"id": id, "channel": channel, "user": user, "at": self.now(), "used": []})
        return f"{self.url}/response/{id}"

    # -- HTTP --------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        try:
            params = await _params(request)
        except ConnectionResetError:
            return _cut(request)
        except ValueError:
            return self._answer({"ok": False, "error": "invalid_json"})
        call = Call(method, params, time.monotonic())
        self.calls.append(call)
        fault = next((f for f in self.faults if f.hits(call)), None)
        if fault and fault.cut == "before":
            call.status = 0
            return _cut(request)
        if fault and fault.status != 200:
            call.status = fault.status
            return web.Response(status=fault.status, text="<html>proxy</html>", content_type="text/html")
        answer = self._run(request, call, fault)
        self.notify()
        if fault and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault and fault.cut == "after":
            call.status = 0
            return _cut(request)
        return answer

    def _run(self, request: web.Request, call: Call, fault: Fault | None) -> web.Response:
        try:
            self._authorize(request, call.method)
            if fault and fault.error:
                raise Refused(fault.error, retry_after=fault.retry_after, **fault.more)
            self._throttle(call)
            result = {"ok": True, **self._methods.run(call.method, call.params)}
        except Refused as error:
            call.error = error.error
            more = dict(error.more)
            wait = more.pop("retry_after", 0)
            result = {"ok": False, "error": error.error, **more}
            if error.error == "ratelimited":
                call.status = 429
                return self._answer(result, 429, {"Retry-After": f"{wait or 1:g}"})
        return self._answer(result)

    def _answer(self, result: Json, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
        scopes = {"X-OAuth-Scopes": ",".join(sorted(self.scopes))}
        return web.json_response(result, status=status, headers={**scopes, **(headers or {})})

    def _authorize(self, request: web.Request, method: str) -> None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            raise Refused("not_authed")
        if token not in (self.bot_token, self.app_token):
            raise Refused("invalid_auth")
        if (method == "apps.connections.open") != (token == self.app_token):
            raise Refused("not_allowed_token_type")
        needed = SCOPES.get(method)
        if needed and not self.scopes & set(needed):
            raise Refused("missing_scope", needed=needed[0], provided=",".join(sorted(self.scopes)))

    def _throttle(self, call: Call) -> None:
        """Slack's rates, where a test wants them."""
        now = self.now()
        if self.limited_history and call.method in ("conversations.replies", "conversations.history"):
            self.page_size = 15
            if self._history_at is not None and now - self._history_at < 60:
                raise Refused("ratelimited", retry_after=60 - (now - self._history_at))
            self._history_at = now
        if self.pace and call.method == "chat.postMessage":
            interval, burst = self.pace
            left, at = self._buckets.get(call.channel, (float(burst), now))
            left = min(burst, left + (now - at) / interval)
            if left < 1:
                raise Refused("ratelimited", retry_after=(1 - left) * interval)
            self._buckets[call.channel] = (left - 1, now)

    async def _upload(self, request: web.Request) -> web.Response:
        file = self.files.get(request.match_info["id"])
        data = await request.read()
        self.calls.append(Call("upload", {"headers": dict(request.headers)}, time.monotonic()))
        if file is None or len(data) != file.length:
            return web.Response(status=400, text="bad upload")
        file.data = data
        return web.Response(text=f"OK - {len(data)}")

    async def _download(self, request: web.Request) -> web.StreamResponse:
        call = Call("download", {"id": request.match_info["id"]}, time.monotonic())
        self.calls.append(call)
        fault = next((f for f in self.faults if f.hits(call)), None)
        if fault and fault.status in (301, 302):
            raise web.HTTPFound(str(fault.more["location"]))
        if fault and fault.status != 200:
            return web.Response(status=fault.status)
        file = self.files.get(request.match_info["id"])
        allowed = request.headers.get("Authorization") == f"Bearer {self.bot_token}"
        if file is None or file.data is None:
            return web.Response(status=404)
        if not allowed or "files:read" not in self.scopes:
            return web.Response(text=LOGIN_PAGE, content_type="text/html")
        return web.Response(body=file.data, content_type=file.meta["mimetype"])

    async def _respond(self, request: web.Request) -> web.Response:
        found = next((r for r in self.responses if r["id"] == request.match_info["id"]), None)
        if found is None or len(found["used"]) >= 5 or self.now() - found["at"] > 1800:
            return web.json_response({"ok": False, "error": "expired_url"}, status=404)
        body = await request.json()
        found["used"].append(body)
        place = self.places[found["channel"]]
        if body.get("response_type") == "in_channel":
            self.post_as_bot(place, {"text": body.get("text", ""), "blocks": body.get("blocks") or []}, "")
        elif not body.get("delete_original"):
            place.ephemeral.append({**body, "ts": self.next_ts(), "user": found["user"]})
        self.notify()
        return web.json_response({"ok": True})


async def _params(request: web.Request) -> Json:
    """The arguments of a call: query, form or JSON. Raises ValueError for JSON that is none."""
    params: Json = dict(request.query)
    if request.content_type == "application/json":
        body = json.loads(await request.text() or "{}")
        if not isinstance(body, dict):
            raise ValueError("not an object")
        return params | body
    for key, value in (await request.post()).items():
        params[key] = value
        if key in _OBJECTS and isinstance(value, str):
            try:
                params[key] = json.loads(value)
            except ValueError:
                params[key] = value
    return params


def _cut(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
