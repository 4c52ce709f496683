"""A fake WeCom: the API server of one company with its applications, and the platform that calls back.

It refuses what WeCom refuses (WW 90236, 90253, 90313), drops in silence what WeCom drops (90454), and seals
callbacks with wechatpy's own crypto. Times can be shrunk by `pace`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal
from xml.etree import ElementTree

import aiohttp
from aiohttp import web
from wechatpy.enterprise.crypto import WeChatCrypto  # type: ignore[import-untyped]

CORP = "ww0123456789abcdef"
KEY = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
OTHER_KEY = "ZYXWVUTSRQPONMLKJIHGFEDCBA9876543210zyxwvuA"
MIB = 1024 * 1024
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20
AMR = b"#!AMR\n" + b"0" * 20
_TASK = re.compile(r"[0-9A-Za-z_\-@]{1,128}")

#: What happens to a call: `slow`, `cut` and `gateway` take it but hide that; an int is an errcode.
Fault = int | Literal["", "slow", "cut", "gateway", "down"]


@dataclass
class Agent:
    id: int = 1000002
    secret: str = "agent-secret-0123456789"
    token: str = "callbackToken"
    aes_key: str = KEY
    name: str = "助手"
    closed: int = 0


@dataclass
class Message:
    """One message as the member sees it."""

    agent: int
    kind: str
    text: str
    at: float
    body: dict[str, Any] = field(default_factory=dict)


@dataclass
class Media:
    kind: str
    name: str
    content: bytes


class Refusal(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class FakeWecom:
    def __init__(self, *, pace: float = 1.0, clock: Callable[[], float] = time.time) -> None:
        self.pace = pace
        self.clock = clock
        self.agents = {1000002: Agent()}
        self.members = {"ZhangSan": "张三", "LiSi": "李四"}
        self.hidden: set[str] = set()  # members that the application may not read
        self.trusted = True  # is the caller's address among 企业可信IP
        self.polite = False  # name an unknown member in invaliduser instead of refusing with 81013
        self.calls: Counter[str] = Counter()
        self.shown: dict[str, list[Message]] = defaultdict(list)
        self.dropped: Counter[str] = Counter()
        self.copies = 0  # repeated requests that the duplicate check kept from the member
        self.media: dict[str, Media] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.updates: list[dict[str, Any]] = []
        self.tasks: dict[str, str] = {}  # task_id -> the member's card
        self.delay = 0.0
        self.deliveries: list[int | str] = []  # each callback's status, or "timeout"
        self.target = ""
        self.url = ""
        self._codes: dict[str, str] = {}  # response_code -> task_id, good once
        self._token_of: dict[int, tuple[str, float]] = {}
        self._token_life = 7200.0
        self._dead: set[str] = set()
        self._sent: dict[str, float] = {}  # request -> when it was taken
        self._times: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._seq = itertools.count(1)
        self._changed = asyncio.Event()

    @property
    def agent(self) -> Agent:
        return next(iter(self.agents.values()))

    async def __aenter__(self) -> FakeWecom:
        app = web.Application(client_max_size=40 * MIB)
        app.router.add_route("*", "/cgi-bin/{call:.+}", self._api)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[union-attr]
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def wait_for(self, condition: Callable[[], object], seconds: float = 20.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                waiting = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait({waiting}, timeout=0.05)
                waiting.cancel()

    def texts(self, member: str) -> list[str]:
        """What the member read, without the invisible endings."""
        return [message.text.strip("\u200b\u200c") for message in self.shown[member]]

    def settings(self, agent: Agent | None = None, **more: Any) -> dict[str, Any]:
        """The configuration of a channel for an application here."""
        agent = agent or self.agent
        return {
            "corp_id": CORP,
            "agent_id": agent.id,
            "secret": agent.secret,
            "token": agent.token,
            "aes_key": agent.aes_key,
            "base_url": self.url,
            **more,
        }

    def expire_tokens(self) -> None:
        """Every token given out so far is refused from now on."""
        self._dead.update(token for token, _ in self._token_of.values())
        self._token_of.clear()

    # -- the platform calls back -------------------------------------------------------------------------

    def seal(
        self, xml: str, *, agent: Agent | None = None, corp: str = CORP, key: str = "", at: int = 0
    ) -> tuple[dict[str, str], str]:
        """(query, body) of a callback."""
        agent = agent or self.agent
        crypto = WeChatCrypto(agent.token, key or agent.aes_key, corp)
        sealed = _fields(crypto.encrypt_message(xml, f"n{next(self._seq)}", str(at or int(self.clock()))))
        query = {
            "msg_signature": sealed["MsgSignature"],
            "timestamp": sealed["TimeStamp"],
            "nonce": sealed["Nonce"],
        }
        body = (
            f"<xml><ToUserName><![CDATA[{corp}]]></ToUserName>"
            f"<AgentID><![CDATA[{agent.id}]]></AgentID><Encrypt><![CDATA[{sealed['Encrypt']}]]></Encrypt></xml>"
        )
        return query, body

    def fields(self, member: str, kind: str, agent: Agent | None = None, **more: Any) -> str:
        """The XML inside: a message or an event. MsgId is given where the platform gives one."""
        given: dict[str, object] = {
            "ToUserName": CORP,
            "FromUserName": member,
            "CreateTime": int(self.clock()),
            "MsgType": kind,
            **({"MsgId": 7_000_000_000_000_000 + next(self._seq)} if kind != "event" else {}),
            "AgentID": (agent or self.agent).id,
            **more,
        }
        inside = "".join(
            f"<{name}>{value}</{name}>" if isinstance(value, int) else f"<{name}><![CDATA[{value}]]></{name}>"
            for name, value in given.items()
        )
        return f"<xml>{inside}</xml>"

    async def deliver(self, xml: str, agent: Agent | None = None, target: str = "") -> bool:
        """Call back as WeCom does: five seconds, three times at most. Returns whether it was taken."""
        for _ in range(3):
            query, body = self.seal(xml, agent=agent)
            status = await self.request("POST", query, body, target=target)
            self.deliveries.append(status)
            if status == 200:
                return True
        return False

    async def say(self, member: str, text: str, **more: Any) -> bool:
        return await self.deliver(self.fields(member, "text", Content=text, **more))

    async def event(self, member: str, event: str, **more: Any) -> bool:
        return await self.deliver(self.fields(member, "event", Event=event, **more))

    async def press(self, member: str, key: str, number: int = -1, **more: Any) -> str:
        """Press a button of the member's newest card; returns the new response code."""
        card = [m for m in self.shown[member] if m.kind == "template_card"][number].body
        task = card["task_id"]
        assert key in [button["key"] for button in card["button_list"]], "no such button on the card"
        code = f"press-{next(self._seq)}"
        self._codes[code] = task
        extra = {"EventKey": key, "TaskId": task, "CardType": card["card_type"], "ResponseCode": code}
        await self.event(member, "template_card_event", **extra, **more)
        return code

    async def request(
        self, method: str, query: dict[str, str], body: str = "", target: str = ""
    ) -> int | str:
        timeout = aiohttp.ClientTimeout(total=5.0 * self.pace)
        try:
            async with self._session.request(
                method,
                target or self.target,
                params=query,
                data=body.encode() if body else None,
                timeout=timeout,
            ) as response:
                got = await response.read()
                if method == "POST" and response.status == 200:
                    assert got == b"", "a reply in the response must be sealed; none is expected here"
                return response.status
        except TimeoutError:
            return "timeout"

    async def verify_url(self, *, corp: str = CORP, key: str = "") -> tuple[int, bytes]:
        """What the console does on 保存: (status, body). The body must be `echo-1234` and nothing else."""
        crypto = WeChatCrypto(self.agent.token, key or self.agent.aes_key, corp)
        sealed = _fields(crypto.encrypt_message("echo-1234", "nonce", str(int(self.clock()))))
        query = {
            "msg_signature": sealed["MsgSignature"],
            "timestamp": sealed["TimeStamp"],
            "nonce": sealed["Nonce"],
            "echostr": sealed["Encrypt"],
        }
        async with self._session.get(self.target, params=query) as response:
            return response.status, await response.read()

    # -- the API -----------------------------------------------------------------------------------------

    async def _api(self, request: web.Request) -> web.StreamResponse:
        call = request.match_info["call"]
        self.calls[call] += 1
        fault = self.faults[call].popleft() if self.faults[call] else None
        try:
            if self.delay:
                await asyncio.sleep(self.delay)
            if fault == "down":
                request.transport.close()  # type: ignore[union-attr]
                return web.Response()
            if isinstance(fault, int):
                raise Refusal(
                    fault, f"fault, hint: [1655882753557010848204971], from ip: 203.0.113.9, more {fault}"
                )
            answer = await self._dispatch(call, request)
        except Refusal as error:
            answer = {"errcode": error.code, "errmsg": str(error)}
        finally:
            self._changed.set()
        if isinstance(answer, web.StreamResponse):
            return answer
        if fault == "slow":
            await asyncio.sleep(1.0)
        if fault == "cut":
            request.transport.close()  # type: ignore[union-attr]
        if fault == "gateway":
            return web.Response(status=502, text="<html>Bad Gateway</html>")
        return web.json_response({"errcode": 0, "errmsg": "ok", **answer})

    async def _dispatch(self, call: str, request: web.Request) -> Any:
        if call == "gettoken":
            return self._gettoken(request.query)
        agent = self._authorised(request.query.get("access_token", ""))
        if not self.trusted:
            raise Refusal(
                60020,
                "not allow to access from your ip, hint: [1655882753557010848204971], from ip: 203.0.113.9, "
                "more info at https://open.work.weixin.qq.com/devtool/query?e=60020",
            )
        if call == "message/send":
            return self._send(agent, await _body(request))
        if call == "message/update_template_card":
            return self._update(agent, await _body(request))
        if call == "media/upload":
            return await self._upload(request)
        if call == "media/get":
            return self._get_media(request.query.get("media_id", ""))
        if call == "user/get":
            return self._user(request.query.get("userid", ""))
        if call == "agent/get":
            return self._agent(agent, request.query.get("agentid", ""))
        raise AssertionError(f"WeCom has no {call} here")

    def _gettoken(self, query: Any) -> dict[str, Any]:
        if query.get("corpid") != CORP:
            raise Refusal(40013, "invalid corpid, hint: [1], from ip: 203.0.113.9")
        for agent in self.agents.values():
            if agent.secret == query.get("corpsecret"):
                token, until = self._token_of.get(agent.id, ("", 0.0))
                if self.clock() >= until:
                    token, until = f"token-{next(self._seq)}", self.clock() + self._token_life
                    self._token_of[agent.id] = (token, until)
                return {"access_token": token, "expires_in": int(until - self.clock())}
        raise Refusal(40001, "invalid credential, hint: [1], from ip: 203.0.113.9")

    def _authorised(self, token: str) -> Agent:
        for agent_id, (good, until) in self._token_of.items():
            if good == token and self.clock() < until:
                return self.agents[agent_id]
        raise Refusal(42001 if token in self._dead else 40014, "invalid access_token")

    def _send(self, agent: Agent, body: dict[str, Any]) -> dict[str, Any]:
        if body.get("agentid") != agent.id:
            raise Refusal(301002, "agentid does not belong to the access_token")
        if agent.closed:
            raise Refusal(50003, "agent is disabled")
        wanted = str(body.get("touser", "")).split("|")
        known = {member.lower(): member for member in self.members}
        bad = [member.lower() for member in wanted if member.lower() not in known]
        if len(bad) == len(wanted) and not self.polite:
            raise Refusal(81013, "user & party & tag all invalid")
        kind, content, text = _content(body, self)
        answer: dict[str, Any] = {"msgid": f"m{next(self._seq)}"}
        if bad:
            answer["invaliduser"] = "|".join(bad)
        if kind == "template_card":
            if content["task_id"] in self.tasks and not self._is_copy(body):
                raise Refusal(42016, "task_id is used already")
            answer["response_code"] = f"code-{next(self._seq)}"
            self._codes[answer["response_code"]] = content["task_id"]
        if self._is_copy(body):
            self.copies += 1
            return answer
        self._sent[json.dumps(body, sort_keys=True)] = self.clock()
        for member in (known[name.lower()] for name in wanted if name.lower() in known):
            if kind == "template_card":
                self.tasks[content["task_id"]] = member
            self._show(agent, member, Message(agent.id, kind, text, self.clock(), content))
        return answer

    def _is_copy(self, body: dict[str, Any]) -> bool:
        """Is the request's JSON one of the last `duplicate_check_interval` seconds?"""
        if body.get("enable_duplicate_check") != 1:
            return False
        at = self._sent.get(json.dumps(body, sort_keys=True))
        return at is not None and self.clock() - at < body.get("duplicate_check_interval", 1800)

    def _show(self, agent: Agent, member: str, message: Message) -> None:
        times = self._times[agent.id, member]
        now = self.clock()
        if sum(1 for at in times if at > now - 60) >= 30 or sum(1 for at in times if at > now - 3600) >= 1000:
            self.dropped[member] += 1
            return
        times.append(now)
        self.shown[member].append(message)

    def _update(self, agent: Agent, body: dict[str, Any]) -> dict[str, Any]:
        task = self._codes.pop(str(body.get("response_code")), None)
        if task is None:
            raise Refusal(42015, "response_code is used or expired")
        if body.get("agentid") != agent.id or self.tasks[task] not in body.get("userids", ()):
            raise Refusal(40058, "invalid agentid or userids")
        if not body["button"]["replace_name"]:
            raise Refusal(40058, "replace_name is empty")
        self.updates.append({"task": task, **body})
        return {"invaliduser": []}

    async def _upload(self, request: web.Request) -> dict[str, Any]:
        kind = request.query.get("type", "")
        part = await (await request.multipart()).next()
        assert isinstance(part, aiohttp.BodyPartReader)
        if part.name != "media":
            raise Refusal(44001, "empty media data")
        content = bytes(await part.read())
        most = {"image": 10, "voice": 2, "video": 10, "file": 20}.get(kind)
        if most is None:
            raise Refusal(40004, "invalid media type")
        if not 5 < len(content) <= most * MIB:
            raise Refusal(40006, "invalid media size")
        if kind == "image" and not content.startswith((b"\x89PNG", b"\xff\xd8\xff")):
            raise Refusal(40005, "invalid file type")
        if kind == "voice" and not content.startswith(b"#!AMR"):
            raise Refusal(40005, "invalid file type")
        media_id = f"media-{next(self._seq)}"
        # The name is taken from the header as it stands, as WeCom does.
        raw = part.headers["Content-Disposition"].encode("utf-8", "surrogateescape").decode()
        found = re.search(r'filename="([^"]*)"', raw)
        self.media[media_id] = Media(kind, found[1] if found else "", content)
        return {"type": kind, "media_id": media_id, "created_at": str(int(self.clock()))}

    def _get_media(self, media_id: str) -> web.Response:
        media = self.media.get(media_id)
        if media is None:
            raise Refusal(40007, "invalid media_id")
        headers = {"Content-Disposition": f'attachment; filename="{media.name}"'}
        return web.Response(body=media.content, headers=headers)

    def _user(self, member: str) -> dict[str, Any]:
        if member in self.hidden:
            raise Refusal(60011, "no privilege to access/modify contact/party/agent")
        if member not in self.members:
            raise Refusal(60111, "userid not found")
        return {"userid": member, "name": self.members[member]}

    def _agent(self, agent: Agent, given: str) -> dict[str, Any]:
        if given != str(agent.id):
            raise Refusal(301002, "agentid does not belong to the access_token")
        users = [{"userid": member} for member in self.members]
        return {
            "agentid": agent.id,
            "name": agent.name,
            "allow_userinfos": {"user": users},
            "allow_partys": {"partyid": []},
            "allow_tags": {"tagid": []},
            "close": agent.closed,
        }


def _fields(xml: str) -> dict[str, str]:
    return {element.tag: element.text or "" for element in ElementTree.fromstring(xml)}


async def _body(request: web.Request) -> dict[str, Any]:
    raw = (await request.read()).decode()
    if re.search(r"\\u[0-9a-fA-F]{4}", raw):
        raise Refusal(40033, "invalid request characters: \\uXXXX")
    body: dict[str, Any] = json.loads(raw)
    return body


def _content(body: dict[str, Any], fake: FakeWecom) -> tuple[str, dict[str, Any], str]:
    """(kind, what stands under it, the visible text), or a Refusal."""
    kind = str(body.get("msgtype"))
    content = body.get(kind)
    if not isinstance(content, dict):
        raise Refusal(40008, "invalid message type")
    if kind in ("text", "markdown"):
        text = str(content.get("content", ""))
        if not text.strip():
            raise Refusal(44004, "empty content")
        # What is over the limit is cut off without an error.
        return kind, content, text.encode()[:2048].decode("utf-8", "ignore")
    if kind in ("image", "voice", "video", "file"):
        media = fake.media.get(str(content.get("media_id")))
        if media is None or media.kind != kind:
            raise Refusal(40007, "invalid media_id")
        return kind, content, media.name
    if kind == "template_card":
        buttons = content.get("button_list") or []
        if content.get("card_type") != "button_interaction" or not 0 < len(buttons) <= 6:
            raise Refusal(40058, "invalid card")
        if not content.get("main_title", {}).get("title") or not _TASK.fullmatch(str(content.get("task_id"))):
            raise Refusal(40058, "invalid title or task_id")
        if not all(button.get("text") and button.get("key") for button in buttons):
            raise Refusal(40058, "a button without text or key")
        return kind, content, content["main_title"]["title"] + "\n" + str(content.get("sub_title_text", ""))
    raise Refusal(40008, "invalid message type")


@asynccontextmanager
async def served(channel: Any) -> AsyncIterator[str]:
    """A channel's routes on a server of their own; yields the callback URL."""
    app = web.Application()
    app.add_routes(channel.routes())
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield f"http://127.0.0.1:{port}/channels/{channel.name}/callback"
    finally:
        await runner.cleanup()
