"""What Slack tells the app, by socket or by signed request, brought to where it belongs.

slack_bolt's AsyncApp dispatches, with `process_before_response`: Slack is answered when the listener has
returned, so a message is acknowledged when it is in the inbox. The signature is checked here and not by Bolt,
which logs the body of a refused request and knows no replays.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias
from urllib.parse import parse_qsl

from aiohttp import web

from channels.base import Env
from channels.slack.api import Api
from channels.slack.inbound import Identity
from channels.webhook import read_body

if TYPE_CHECKING:
    from slack_bolt.async_app import AsyncApp

log = logging.getLogger("causeway.slack")

Data: TypeAlias = dict[str, Any]

#: Slack's own limit for the age of a request (seconds); a signature is remembered twice as long, since its
#: clock may be ahead of ours by as much.
STALE = 300
_REPLAY = 2.0 * STALE
#: Slack waits 3 s for an answer to a button or a command; later the work goes on behind an empty one.
_ANSWER_IN = 2.5
#: A message that the inbox does not take in this time counts as not taken (seconds).
_TAKE = 30.0
#: Refused requests are logged at most so often (seconds).
_QUIET = 60.0
_SIGNATURE = re.compile(r"v0=[0-9a-f]{64}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")
_ANY = re.compile(r"(?s).*")


class Listener(Protocol):
    """Where things go. Raising means: not taken."""

    async def message(self, event: Data) -> None: ...

    async def notice(self, event: Data) -> None:
        """Any other event."""
        ...

    async def interaction(self, payload: Data) -> Data | None: ...

    async def command(self, form: Data) -> Data | None: ...


class NotTaken(Exception):
    """An event could not be taken; Slack sends it again."""


class Lanes:
    """One at a time for each key, in the order in which they came."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def lane(self, key: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(key, (asyncio.Lock(), 0))
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)


class Events:
    """Dispatch for one app. Made by `connect`."""

    def __init__(
        self, app: AsyncApp, env: Env, me: Identity, secret: str, verify: Callable[..., bool]
    ) -> None:
        self._app = app
        self._env = env
        self._me = me
        self._secret = secret
        self._verify = verify
        self._listener: Listener | None = None
        self._late: set[asyncio.Task[Any]] = set()
        self._refused, self._said = 0, 0.0
        self.open = False

    @classmethod
    async def connect(cls, api: Api, env: Env, me: Identity, secret: str, name: str) -> Events:
        """Load Bolt in a thread (a fifth of a second)."""
        app_class, result, verifier = await asyncio.to_thread(_load)

        async def authorize(**_: object) -> Any:
            # One workspace: Bolt need not ask Slack who we are for every event.
            return result(enterprise_id=None, team_id=me.team, bot_user_id=me.user, bot_id=me.bot)

        app = app_class(
            name=name,
            logger=logging.getLogger("slack_bolt"),
            client=type(api.client)(base_url=api.client.base_url, session=api.session),
            signing_secret=secret or "unused",
            authorize=authorize,
            process_before_response=True,
            request_verification_enabled=False,
            ignoring_self_events_enabled=False,
            attaching_function_token_enabled=False,
            attaching_conversation_kwargs_enabled=False,
        )
        verify = verifier(secret, _Clock(env.clock)).is_valid if secret else _never
        events = cls(app, env, me, secret, verify)
        events._listen()
        return events

    def bind(self, listener: Listener) -> None:
        self._listener = listener
        self.open = True

    async def close(self) -> None:
        """Wait for nothing more: what is still under way is ended."""
        self.open = False
        late = list(self._late)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    # -- dispatch ----------------------------------------------------------------------------------------

    async def envelope(self, envelope: Data) -> Data | None:
        """Take an envelope of Socket Mode; return the payload to answer with. Raises NotTaken."""
        payload = envelope.get("payload")
        if envelope.get("retry_attempt"):
            log.info("Slack repeats an event (%s)", envelope.get("retry_reason") or "no reason given")
        if not isinstance(payload, dict):
            log.warning("an envelope of type %r without a payload is ignored", envelope.get("type"))
            return None
        status, body = await self.dispatch(payload)
        if not 200 <= status < 300:
            raise NotTaken(f"status {status}")
        return body

    async def dispatch(self, payload: Data) -> tuple[int, Data | None]:
        """Hand a payload to Bolt; (HTTP status, JSON to answer with)."""
        from slack_bolt.request.async_request import AsyncBoltRequest

        if payload.get("type") == "app_rate_limited":
            log.warning("Slack holds back events: more than 30,000 came in an hour for one workspace")
            return 200, None
        if payload.get("type") != "url_verification" and not self._ours(payload):
            return 503, None
        if app := payload.get("api_app_id"):
            self._me.app = str(app)
        response = await self._app.async_dispatch(AsyncBoltRequest(mode="socket_mode", body=payload))
        if response.status == 404:
            log.info("Slack sent a %s, which nothing here is for", payload.get("type"))
            return 200, None
        text = str(response.body or "")
        body = (json.loads(text) if text.startswith("{") else {"text": text}) if text else None
        return response.status, body

    def _ours(self, payload: Data) -> bool:
        """Whether we can take it: we know who we are, and it is for this workspace."""
        if not self.open or not self._me.user:
            return False
        team = payload.get("team")
        teams = {payload.get("team_id"), payload.get("context_team_id")}
        teams |= {team.get("id")} if isinstance(team, dict) else set()
        authorizations = payload.get("authorizations")
        if isinstance(authorizations, list):
            teams |= {a.get("team_id") for a in authorizations if isinstance(a, dict)}
        teams -= {None, ""}
        if teams and self._me.team and self._me.team not in teams:
            log.warning(
                "an event of another workspace (%s) came to this app's socket or address; give each "
                "workspace an app of its own from the same manifest",
                ", ".join(sorted(map(str, teams))),
            )
            return False
        return True

    def _listen(self) -> None:
        app = self._app

        async def event(body: Data) -> None:
            await self._event(body["event"])

        async def interaction(body: Data, ack: Callable[..., Awaitable[Any]]) -> None:
            await self._in_time(self._bound().interaction(body), ack)

        async def command(body: Data, ack: Callable[..., Awaitable[Any]]) -> None:
            await self._in_time(self._bound().command(body), ack)

        app.event(_ANY)(event)
        for register in (app.action, app.shortcut, app.view, app.view_closed, app.options):
            register(_ANY)(interaction)
        app.command(_ANY)(command)

    def _bound(self) -> Listener:
        if self._listener is None:
            raise NotTaken("the channel is not running")
        return self._listener

    async def _event(self, event: Data) -> None:
        if event.get("type") in ("message", "app_mention"):
            async with asyncio.timeout(_TAKE):
                await self._bound().message(event)
        else:
            await self._bound().notice(event)

    async def _in_time(self, work: Any, ack: Callable[..., Awaitable[Any]]) -> None:
        """Answer with what `work` gives, or with nothing when it takes too long; it goes on then."""
        task: asyncio.Task[Data | None] = asyncio.create_task(work, name="slack interaction")
        self._late.add(task)
        task.add_done_callback(self._ended)
        done, _ = await asyncio.wait({task}, timeout=_ANSWER_IN)
        answer = task.result() if done and task.exception() is None else None
        await (ack(answer) if answer else ack())

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a button, command or dialog failed", exc_info=error)

    # -- HTTP --------------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.Response:
        """Events, interactions and slash commands; all signed."""
        raw = await read_body(request)
        form = dict(parse_qsl(raw.decode("utf-8", "replace"))) if _is_form(request) else {}
        if form.get("ssl_check") == "1" and "command" not in form and "payload" not in form:
            return web.Response()
        if not self._authentic(request, raw):
            return web.Response(status=401, text="the signature is missing, wrong or too old\n")
        claim, holder = f"signature:{request.headers['X-Slack-Signature']}", uuid.uuid4().hex
        if not await self._env.state.claim(claim, holder, _REPLAY):
            log.warning("a request with a signature that was used before is refused")
            return web.Response(status=401, text="this request was made before\n")
        taken = False
        try:
            response = await self._take(request, raw, form)
            taken = response.status < 500
        finally:
            if not taken:  # Slack may send the very same request again, within the same second
                await self._env.state.release(claim, holder)
        return response

    async def _take(self, request: web.Request, raw: bytes, form: Data) -> web.Response:
        try:
            payload = json.loads(form["payload"]) if "payload" in form else form or json.loads(raw)
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            return web.Response(status=400, text="this is not what Slack sends\n")
        if number := request.headers.get("X-Slack-Retry-Num"):
            reason = request.headers.get("X-Slack-Retry-Reason", "")
            log.info("Slack repeats a request (%.8s, %.32s)", number, reason)
        status, body = await self.dispatch(payload)
        if status == 200 and body is not None:
            return web.json_response(body)
        return web.Response(status=status)

    def _authentic(self, request: web.Request, raw: bytes) -> bool:
        """Slack's signature over the raw body, not older than `STALE`; compared in constant time."""
        timestamp = request.headers.get("X-Slack-Request-Timestamp", "")
        signature = request.headers.get("X-Slack-Signature", "")
        if not _TIMESTAMP.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
            reason = "is not signed"
        elif abs(self._env.clock() - int(timestamp)) > STALE:
            reason = "is too old (or this machine's clock is wrong)"
        else:
            try:
                if self._verify(raw, timestamp, signature):
                    return True
            except UnicodeDecodeError:
                log.debug("a request's body is no UTF-8")
            reason = "has a wrong signature (or signing_secret is not this app's)"
        self._refused += 1
        if abs(self._env.clock() - self._said) >= _QUIET:  # a flood must not fill the log
            log.warning("%d requests refused; the last, from %s, %s", self._refused, request.remote, reason)
            self._refused, self._said = 0, self._env.clock()
        return False


def _is_form(request: web.Request) -> bool:
    return request.content_type == "application/x-www-form-urlencoded"


class _Clock:
    """Slack's verifier asks a clock object."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.now = clock


def _never(*_: object) -> bool:
    """Without a signing secret nothing is authentic."""
    return False


def _load() -> tuple[Any, Any, Any]:
    """Runs in a thread: the imports."""
    from slack_bolt.async_app import AsyncApp
    from slack_bolt.authorization import AuthorizeResult
    from slack_sdk.signature import SignatureVerifier

    return AsyncApp, AuthorizeResult, SignatureVerifier
