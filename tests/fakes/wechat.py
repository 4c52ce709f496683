"""A WeChat official account platform for tests: it delivers messages and cuts connections as WeChat does, and
answers the API with the errors that WeChat documents. Wechatpy's crypto is its side of the envelope.

Its clock is the event loop's: in an `IdleLoop` its seconds pass at once when nothing is being done.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.sax.saxutils import escape

import aiohttp
from aiohttp import web
from wechatpy.crypto import WeChatCrypto
from wechatpy.utils import WeChatSigner

APP_ID, SECRET, TOKEN, ACCOUNT = "wx0123456789abcdef", "app-secret", "callback-token", "gh_account"
AES_KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFA"
OTHER_KEY = "ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210zyxwvuA"
NOTICE = "该公众号提供的服务出现故障，请稍后再试"
ROUND, ROUNDS = 5.0, 3
TEXT_BYTES = 2048
QUOTA, WINDOW = 5, 48 * 3600.0


@dataclass(slots=True)
class Attempt:
    """One request of a delivery: seconds until it ended, and how ("cut", "refused", or the HTTP status)."""

    seconds: float
    end: str
    text: str = ""


@dataclass(slots=True)
class Chat:
    """One person's chat. `shown` is what they read, in order; `typing` counts signs."""

    shown: list[str] = field(default_factory=list)
    passive: int = 0
    sent: int = 0
    left: int = 0
    until: float = 0.0
    typing: int = 0
    attempts: list[Attempt] = field(default_factory=list)


class FakeWechat:
    """`mode`: how callbacks travel. `service`: the account has the customer-service permission."""

    def __init__(
        self,
        *,
        mode: Literal["plain", "compatible", "safe"] = "plain",
        format: Literal["xml", "json"] = "xml",
        service: bool = False,
    ) -> None:
        self.mode, self.format, self.service = mode, format, service
        self.callback = ""  # where callbacks go
        self.aes_key = AES_KEY
        self.app_id = APP_ID
        self.chats: dict[str, Chat] = {}
        self.calls: list[tuple[str, Any]] = []
        self.errors: list[tuple[str, int]] = []  # the next call of a path gets this code
        self.always: dict[str, tuple[int, str]] = {}
        self.token_lasts = 7200.0
        self.gates: dict[str, asyncio.Event] = {}  # a call of that path waits for it
        self.media: dict[str, bytes] = {}
        self.url = ""
        self._ids = itertools.count(10_000_000_000_000_001)
        self._tokens: dict[str, float] = {}
        self._current = ""
        self._began = time.time()
        self._zero: float | None = None
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    def now(self) -> float:
        """The platform's clock."""
        loop = asyncio.get_running_loop().time()
        if self._zero is None:
            self._zero = loop
        return self._began + loop - self._zero

    async def __aenter__(self) -> FakeWechat:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._api)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        assert self._runner is not None
        await self._client.close()
        await self._runner.cleanup()

    def chat(self, user: str) -> Chat:
        return self.chats.setdefault(user, Chat())

    def called(self, path: str) -> list[Any]:
        return [data for name, data in self.calls if name == path]

    # -- pushing ----------------------------------------------------------------------------------------

    def message(self, user: str, text: str) -> dict[str, Any]:
        return self.fields(user, "text", Content=text)

    def fields(self, user: str, kind: str, **more: Any) -> dict[str, Any]:
        base: dict[str, Any] = {
            "ToUserName": ACCOUNT,
            "FromUserName": user,
            "CreateTime": int(self.now()),
            "MsgType": kind,
        }
        if kind != "event":
            base["MsgId"] = next(self._ids)
        return {**base, **more}

    async def say(self, user: str, text: str) -> Chat:
        """Deliver a text message to the end: an answer, `success`, or three failures and the notice."""
        return await self.push(self.message(user, text))

    async def push(self, fields: Mapping[str, Any]) -> Chat:
        chat = self.chat(str(fields["FromUserName"]))
        event = fields["MsgType"] == "event"
        chat.left, chat.until = (3 if event else QUOTA), self.now() + (60 if event else WINDOW)
        for _ in range(ROUNDS):
            began = self.now()
            attempt = await self.attempt(fields)
            chat.attempts.append(attempt)
            if attempt.end == "200":
                if attempt.text:
                    chat.shown.append(attempt.text)
                    chat.passive += 1
                return chat
            # A server that is away is asked again no sooner than a silent one.
            await asyncio.sleep(max(0.0, ROUND - (self.now() - began)))
        chat.shown.append(NOTICE)
        return chat

    async def attempt(self, fields: Mapping[str, Any]) -> Attempt:
        """One request; the connection is cut after five seconds."""
        assert self._client is not None
        query, body = self.sealed(fields)
        began = self.now()
        try:
            async with asyncio.timeout(ROUND):
                async with self._client.post(self.callback, params=query, data=body) as answer:
                    text = await answer.text()
                    if answer.status != 200:
                        return Attempt(self._since(began), str(answer.status))
        except TimeoutError:
            return Attempt(self._since(began), "cut")
        except aiohttp.ClientError:
            return Attempt(self._since(began), "refused")
        try:
            return Attempt(self._since(began), "200", self.read_reply(text, fields, query))
        except Exception as error:  # whatever is wrong with a reply, WeChat cannot read it
            return Attempt(self._since(began), f"bad reply: {error!r}")

    def _since(self, began: float) -> float:
        return self.now() - began

    def sealed(self, fields: Mapping[str, Any]) -> tuple[dict[str, str], bytes]:
        """The query and the body of a request."""
        timestamp, nonce = str(int(self.now())), secrets.token_hex(5)
        query = {"timestamp": timestamp, "nonce": nonce, "openid": str(fields["FromUserName"])}
        query["signature"] = sign(TOKEN, timestamp, nonce)
        plain = json.dumps(fields, ensure_ascii=False) if self.format == "json" else as_xml(fields)
        if self.mode == "plain":
            return query, plain.encode()
        crypto = WeChatCrypto(TOKEN, self.aes_key, self.app_id)
        envelope = ET.fromstring(crypto.encrypt_message(plain, nonce, timestamp))
        encrypted = envelope.findtext("Encrypt") or ""
        query |= {"encrypt_type": "aes", "msg_signature": sign(TOKEN, timestamp, nonce, encrypted)}
        outer = dict(fields) if self.mode == "compatible" else {"ToUserName": ACCOUNT}
        outer["Encrypt"] = encrypted
        return query, (json.dumps(outer) if self.format == "json" else as_xml(outer)).encode()

    def read_reply(self, body: str, fields: Mapping[str, Any], query: Mapping[str, str]) -> str:
        """The text of a passive reply; "" for none. Raises for what WeChat refuses."""
        if body in ("", "success"):
            return ""
        found = json.loads(body) if self.format == "json" else from_xml(body)
        if self.mode == "safe" or "Encrypt" in found:
            crypto = WeChatCrypto(TOKEN, self.aes_key, self.app_id)
            plain = crypto.decrypt_message(
                {"Encrypt": found["Encrypt"]}, found["MsgSignature"], str(found["TimeStamp"]), found["Nonce"]
            )
            found = json.loads(plain) if self.format == "json" else from_xml(plain)
        assert found["ToUserName"] == fields["FromUserName"]
        assert found["FromUserName"] == fields["ToUserName"]
        assert int(found["CreateTime"]) > 0
        assert found["MsgType"] == "text"
        text = str(found["Content"])
        assert 0 < len(text.encode()) <= TEXT_BYTES, "Content is empty or too long"
        return text

    # -- the API ----------------------------------------------------------------------------------------

    def expire_tokens(self) -> None:
        """Every token so far is refused from now on, though its time is not over."""
        self._tokens = dict.fromkeys(self._tokens, 0.0)
        self._current = ""

    def _issue(self, force: bool) -> dict[str, Any]:
        if force or not self._current or self._tokens[self._current] <= self.now():
            self.expire_tokens()  # a new token ends every older one
            self._current = f"tok_{secrets.token_hex(60)}"
            self._tokens[self._current] = self.now() + self.token_lasts
        return {"access_token": self._current, "expires_in": int(self._tokens[self._current] - self.now())}

    async def _api(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/cgi-bin/").strip("/")
        if path.startswith("picture/"):
            return web.Response(body=self.media[path], content_type="image/jpeg")
        kind = request.headers.get("Content-Type", "")
        data: Any = dict(request.query)
        if kind.startswith("multipart/"):
            part = (await request.post())["media"]
            assert isinstance(part, web.FileField)
            data = {"type": request.query["type"], "name": part.filename, "data": part.file.read()}
        elif request.can_read_body:
            raw = await request.read()
            assert b"\\u" not in raw, "WeChat shows escaped characters literally"
            data = json.loads(raw)
        self.calls.append((path, data))
        if path in self.gates:
            await self.gates[path].wait()
        return self._answer(path, data, request)

    def _answer(self, path: str, data: Any, request: web.Request) -> web.StreamResponse:
        if path in self.always:
            code, words = self.always[path]
            return _error(code, words)
        for n, (name, code) in enumerate(self.errors):
            if name == path:
                del self.errors[n]
                return _error(code, "injected")
        if path == "stable_token":
            good = (data["appid"], data["secret"]) == (APP_ID, SECRET)
            return web.json_response(self._issue(bool(data.get("force_refresh")))) if good else _error(40125)
        token = request.query.get("access_token", "")
        if token not in self._tokens:
            return _error(40001, "invalid credential, access_token is invalid or not latest")
        if self._tokens[token] <= self.now():
            return _error(42001 if self._tokens[token] else 40001)
        handler: Callable[[Any], web.Response] | None = {
            "message/custom/send": self._send,
            "message/custom/typing": self._typing,
            "customservice/getkflist": lambda _: self._service_only() or web.json_response({"kf_list": []}),
            "media/upload": self._upload,
            "media/get": self._get_media,
            "callback/check": lambda _: web.json_response({"dns": [], "ping": [{"package_loss": "0%"}]}),
        }.get(path)
        return handler(data) if handler else _error(-1, f"no such path {path}")

    def _service_only(self) -> web.Response | None:
        return None if self.service else _error(48001, "api unauthorized")

    def _send(self, data: Any) -> web.Response:
        chat = self.chats.get(data["touser"])
        kind = data["msgtype"]
        text = data["text"]["content"] if kind == "text" else f"<{kind} {data[kind]['media_id']}>"
        if refusal := self._service_only():
            return refusal
        if chat is None:
            return _error(40003)
        if len(text.encode()) > TEXT_BYTES:
            return _error(45002)
        if self.now() > chat.until:
            return _error(45015)
        if chat.left <= 0:
            return _error(45047)
        if kind != "text" and data[kind]["media_id"] not in self.media:
            return _error(40007)
        chat.left -= 1
        chat.sent += 1
        chat.shown.append(text)
        return _error(0, "ok")

    def _typing(self, data: Any) -> web.Response:
        if refusal := self._service_only():
            return refusal
        chat = self.chats.get(data["touser"])
        if chat is None:
            return _error(45080)
        chat.typing += 1
        return _error(0, "ok") if chat.typing == 1 else _error(45081)

    def _upload(self, data: Any) -> web.Response:
        if refusal := self._service_only():
            return refusal
        id = f"{data['type']}-{len(self.media)}"
        self.media[id] = data["data"]
        return web.json_response({"type": data["type"], "media_id": id, "created_at": int(self.now())})

    def _get_media(self, data: Any) -> web.Response:
        found = self.media.get(data["media_id"])
        if found is None:
            return _error(40007, "invalid media_id")
        return web.Response(body=found, content_type="audio/amr")


def _error(code: int, words: str = "refused") -> web.Response:
    return web.json_response({"errcode": code, "errmsg": words})


def sign(*parts: str) -> str:
    signer = WeChatSigner()
    signer.add_data(*parts)
    return str(signer.signature)


def as_xml(fields: Mapping[str, Any]) -> str:
    def tag(name: str, value: Any) -> str:
        if isinstance(value, Mapping):
            return f"<{name}>{''.join(tag(n, v) for n, v in value.items())}</{name}>"
        if isinstance(value, int):
            return f"<{name}>{value}</{name}>"
        return (
            f"<{name}><![CDATA[{value}]]></{name}>"
            if "]]>" not in value
            else f"<{name}>{escape(value)}</{name}>"
        )

    return f"<xml>{''.join(tag(name, value) for name, value in fields.items())}</xml>"


def from_xml(text: str) -> dict[str, str]:
    return {child.tag: child.text or "" for child in ET.fromstring(text)}


class IdleLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer as soon as nothing is left to be done.

    Nobody waits for minutes, and a machine that is busy with other things looks like no slow server. Work in
    threads is waited for (`busy` counts it); time stands still meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.busy = 0
        self._now = time.monotonic()
        self._real_select = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._now

    def _select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return self._real_select(timeout)
        while True:
            found = self._real_select(0.001)
            if found:
                return found
            if not self.busy:
                self._now += timeout
                return found

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        self.busy += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._free)
        return future

    def _free(self, _: object) -> None:
        self.busy -= 1


def settings_for(fake: FakeWechat, **more: Any) -> dict[str, Any]:
    """The channel's settings that fit a fake."""
    settings = {"app_id": APP_ID, "app_secret": SECRET, "token": TOKEN, "base_url": fake.url}
    if fake.mode != "plain":
        settings["aes_key"] = fake.aes_key
    return {**settings, **more}
