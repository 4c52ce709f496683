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
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import parse_qsl

from aiohttp import web

from channels.base import Env
from channels.slack.api import Api
from channels.slack.bounded import Owned
from channels.slack.inbound import Identity
from channels.slack.mrkdwn_in import dicts
from channels.webhook import read_body

if TYPE_CHECKING:
    from slack_bolt.async_app import AsyncApp

    from channels.slack.receiving import Receiver

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


class NotTaken(Exception):
    """An event could not be taken; Slack sends it again."""


class Events:
    """Dispatch for one app. Made by `connect`."""

    def __init__(self, app: AsyncApp, env: Env, me: Identity, verify: Callable[..., bool]) -> None:
        self._app, self._env, self._me, self._verify = app, env, me, verify
        self._listener: Receiver
        self._late = Owned()
        self._refused, self._said = 0, 0.0
        self.open = False
        app.event(_ANY)(self._event)
        for register in (app.action, app.shortcut, app.view, app.view_closed, app.options, app.command):
            register(_ANY)(self._answer)

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
        if not secret:  # nothing is authentic
            return cls(app, env, me, lambda *_: False)
        return cls(app, env, me, verifier(secret, SimpleNamespace(now=env.clock)).is_valid)

    def bind(self, listener: Receiver) -> None:
        """Where things go from now on. What it raises means: not taken."""
        self._listener = listener
        self.open = True

    async def close(self) -> None:
        """Wait for nothing more: what is still under way is ended."""
        self.open = False
        await self._late.end()

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
        teams = {payload.get("team_id"), payload.get("context_team_id")}
        teams |= {team.get("id") for team in dicts([payload.get("team")])}
        teams |= {one.get("team_id") for one in dicts(payload.get("authorizations"))}
        teams -= {None, ""}
        if teams and self._me.team and self._me.team not in teams:
            log.warning(
                "an event of another workspace (%s) came to this app's socket or address; give each "
                "workspace an app of its own from the same manifest",
                ", ".join(sorted(map(str, teams))),
            )
            return False
        return True

    async def _event(self, event: Data) -> None:
        if event["type"] in ("message", "app_mention"):
            async with asyncio.timeout(_TAKE):
                await self._listener.message(event)
        else:
            await self._listener.notice(event)

    async def _answer(self, body: Data, ack: Callable[..., Awaitable[Any]]) -> None:
        """Answer with what the listener gives, or with nothing when it takes too long; it goes on then."""
        listener = self._listener.command if "command" in body else self._listener.interaction
        task = self._late.start(listener(body), "a button, command or dialog of Slack")
        done, _ = await asyncio.wait({task}, timeout=_ANSWER_IN)
        answer = task.result() if done and not task.cancelled() and task.exception() is None else None
        await (ack(answer) if answer else ack())

    # -- HTTP --------------------------------------------------------------------------------------------

    async def serve(self, request: web.Request) -> web.Response:
        """Events, interactions and slash commands; all signed."""
        raw = await read_body(request)
        is_form = request.content_type == "application/x-www-form-urlencoded"
        form = dict(parse_qsl(raw.decode("utf-8", "replace"))) if is_form else {}
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


def _load() -> tuple[Any, Any, Any]:
    """Runs in a thread: the imports."""
    from slack_bolt.async_app import AsyncApp
    from slack_bolt.authorization import AuthorizeResult
    from slack_sdk.signature import SignatureVerifier

    return AsyncApp, AuthorizeResult, SignatureVerifier
