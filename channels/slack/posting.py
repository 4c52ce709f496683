"""Whole messages: posted, replaced, shown to one person; in a plainer or shorter form where Slack wants that.

chat.postMessage has no key against repeating. So each message carries `metadata` with the reply's id and the
chunk's number; after a call whose outcome is unknown we look for it, and post again only if it is not there.
With several gateways each message is claimed in the notes before it is posted: one that another process began
is looked for as well.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from channels.base import (
    ChannelState,
    Chunk,
    Gone,
    Health,
    Lost,
    NotSent,
    Rejected,
    ReplyRef,
    SendError,
    Unknown,
)
from channels.slack.api import Api, ApiError, no_outcome
from channels.slack.blocks import MAX_TEXT, payload, text_chunks
from channels.slack.bounded import Recent
from channels.slack.errors import ACCOUNT, FORM, send_error
from channels.slack.inbound import Identity
from channels.slack.mrkdwn_in import dicts
from channels.slack.pacing import Pace

log = logging.getLogger("causeway.slack")

V = TypeVar("V")

EVENT = "causeway_reply"
#: `Inbound.id` of a slash command begins so: its answer is for the person who gave it.
COMMAND = "cmd-"
#: Seconds after an unknown outcome before each look for the message.
LOOKS = (0.5, 3.0)
_LOOK_TIMEOUT = 10.0
_SKEW = 10.0  # seconds between Slack's clock and ours
#: So long (seconds) it is known that a message was begun.
_BEGUN = 3600.0
_SHORTEST = 400
_REMEMBERED = 2000
_RESPONSE_LIFE = 29 * 60.0  # Slack: 30 minutes, 5 uses
_RESPONSE_USES = 5
_TS = re.compile(r"\d+\.\d+")
#: No unfurling of what a model links, and no second reading of the text for names.
_QUIET = {"unfurl_links": False, "unfurl_media": False, "link_names": False}


@dataclass(slots=True)
class Response:
    """Where the answer to a slash command may go when the bot is not in the channel."""

    url: str
    until: float
    uses: int = _RESPONSE_USES


class Poster:
    """Calls that show whole messages. `born`: when this process began (Unix seconds). `shared`: notes of all
    gateways, where there are several. `trouble` is what is wrong with the account, as the last call said."""

    def __init__(
        self,
        api: Api,
        me: Identity,
        pace: Pace,
        clock: Callable[[], float],
        born: float,
        shared: ChannelState | None = None,
    ) -> None:
        self._api, self._me, self._pace, self._clock, self._born = api, me, pace, clock, born
        self._shared = shared
        self.trouble: Health | None = None
        self._begun: Recent[tuple[str, str], str] = Recent(_REMEMBERED)  # claimed for the call under way
        self._unsure: Recent[tuple[str, str], bool] = Recent(_REMEMBERED)
        self._pieces: Recent[tuple[str, str], list[str]] = Recent(_REMEMBERED)
        self._responses: Recent[str, Response] = Recent(_REMEMBERED)

    # -- posting -----------------------------------------------------------------------------------------

    async def post(self, ref: ReplyRef, key: str, chunk: Chunk, **body: Any) -> str:
        """A new message; returns its ts. `key` tells the messages of a reply apart; `body`: shown in
        place of the chunk's own payload. Raises SendError."""
        known = (ref.id, key) in self._begun or await self._first(ref, key)
        if not known and (found := await self._seen(ref, key)):
            return found
        try:
            return await self._post(ref, key, chunk, body)
        except SendError:
            holder = self._begun.get((ref.id, key))
            if holder and self._shared is not None and (ref.id, key) not in self._unsure:
                # It is not there: nobody need look for it.
                await self._shared.release(_claim(ref, key), holder)
            raise
        finally:
            self._begun.pop((ref.id, key), None)

    async def _post(self, ref: ReplyRef, key: str, chunk: Chunk, body: dict[str, Any]) -> str:
        shared = {"metadata": metadata(ref, key), "thread_ts": ref.address.thread, **_QUIET}

        async def send(form: dict[str, Any]) -> str:
            if (ref.id, key) in self._unsure and (found := await self._settled(ref, key)):
                await self._update(ref, key, found, form)  # it may have grown since
                return found
            await self._pace.turn(ref.address.chat)
            try:
                answer = await self.call("chat.postMessage", ref.address.chat, **shared, **form)
            except ApiError as error:
                if error.taken != "maybe":
                    raise
                return await self._settle(ref, key, error)
            self._unsure.pop((ref.id, key), None)
            return str(answer["ts"])

        try:
            return await self._forms([body] if body else _forms(chunk), send)
        except _TooMuch:
            if body:
                raise
            return await self._post_pieces(ref, key, chunk, 0)

    async def _post_pieces(self, ref: ReplyRef, key: str, chunk: Chunk, start: int) -> str:
        """A message that Slack calls too long goes as several, from number `start` on. Raises SendError."""
        pieces = _shorter(chunk)
        done = self._pieces[ref.id, key] = self._pieces.get((ref.id, key), [])
        while len(done) < len(pieces) - start:
            number = start + len(done)
            done.append(await self.post(ref, f"{key}.{number}", pieces[number]))
        self._pieces.pop((ref.id, key), None)
        return done[0] if done else ""

    async def update(self, ref: ReplyRef, key: str, ts: str, chunk: Chunk) -> None:
        """Replace a message. What it cannot hold follows in the same thread. Raises SendError."""
        send = partial(self._update, ref, key, ts)
        try:
            await self._forms(_forms(chunk), send)
        except _TooMuch:
            await self._forms(_forms(_shorter(chunk)[0]), send)
            await self._post_pieces(ref, key, chunk, 1)

    async def replace(self, ref: ReplyRef, ts: str, body: dict[str, Any]) -> None:
        """Replace a message by these blocks and text. Raises SendError."""
        await self._forms([body], partial(self._update, ref, "", ts))

    async def _update(self, ref: ReplyRef, key: str, ts: str, body: dict[str, Any]) -> None:
        params = {"channel": ref.address.chat, "ts": ts, "parse": "none", "link_names": False, **body}
        params["metadata"] = metadata(ref, key) if key else None
        try:
            await self.call("chat.update", **params)
        except ApiError as error:
            if error.error != "streaming_state_conflict":
                raise
            # Left open by a process that ended, or its last call's outcome was unknown.
            await self.end_stream(ref.address.chat, ts)
            await self.call("chat.update", **params)

    async def end_stream(self, chat: str, ts: str) -> None:
        """End a stream that this process does not have. Raises ApiError when it may still be open."""
        try:
            await self.call("chat.stopStream", channel=chat, ts=ts)
        except ApiError as error:
            if error.taken != "refused" or error.error == "ratelimited":
                raise
            log.info("a stream that should be open: %s", error)

    # -- one person --------------------------------------------------------------------------------------

    def remember(self, inbound: str, url: str) -> None:
        """The response address of a slash command, for 29 minutes; of the newest 2,000."""
        if url:
            self._responses[inbound] = Response(url, self._clock() + _RESPONSE_LIFE)

    async def whisper(self, ref: ReplyRef, key: str, chunk: Chunk) -> str:
        """A message that only `ref.person` sees; it cannot be changed later. In a direct chat an ordinary
        one. Raises SendError."""

        async def send(body: dict[str, Any]) -> str:
            person = {"user": ref.person, "thread_ts": ref.address.thread, "link_names": False}
            answer = await self.call("chat.postEphemeral", ref.address.chat, **person, **body)
            return str(answer["message_ts"])

        try:
            if ref.address.kind == "direct":
                return await self.post(ref, key, chunk)
            if not ref.person:
                raise Gone("nobody is named whom this message is for")
            return await self._forms(_forms(chunk), send)
        except (Gone, Rejected):
            response = self._responses.get(ref.to)
            if response is None:
                raise
            return await self._respond(response, chunk)

    async def _respond(self, response: Response, chunk: Chunk) -> str:
        if response.uses <= 0 or self._clock() > response.until:
            raise Rejected("the command's answer comes too late for Slack to show it")
        response.uses -= 1
        body = {"response_type": "ephemeral", "replace_original": False, **payload(chunk)}
        try:
            with no_outcome("answer to a command"):
                async with (
                    asyncio.timeout(_LOOK_TIMEOUT),
                    self._api.session.post(response.url, json=body) as answer,
                ):
                    if answer.status != 200:
                        raise Rejected(f"Slack did not take the command's answer (HTTP {answer.status})")
        except ApiError as error:
            raise send_error(error) from None
        return "response"

    # -- calls -------------------------------------------------------------------------------------------

    async def call(self, method: str, chat: str = "", /, **params: Any) -> dict[str, Any]:
        """One call, whose refusals leave their mark: a channel at rest, an account in trouble."""
        if chat:
            params["channel"] = chat
        try:
            answer = await self._api.call(method, **params)
        except ApiError as error:
            if error.error == "ratelimited" and chat:
                self._pace.hold(chat, max(error.retry_after, 1.0))
            if error.error in ACCOUNT:
                what = f"missing scope {error.needed}" if error.needed else error.error
                cure = "reinstall the app with the scopes of docs/slack-manifest.yaml and check bot_token"
                self.trouble = Health(False, f"Slack refuses to show messages: {what}", cure)
            raise
        self.trouble = None
        return answer

    async def _forms(
        self, bodies: Sequence[dict[str, Any]], send: Callable[[dict[str, Any]], Awaitable[V]]
    ) -> V:
        """The first of these forms that Slack takes. Raises SendError; Rejected of the last when none is."""
        body, *plainer = bodies
        try:
            return await send(body)
        except ApiError as error:
            if error.error not in FORM:
                raise send_error(error) from None
            if not plainer:
                raise _TooMuch(str(error)) from None
            log.warning("%s; sent plainer", error)
        return await self._forms(plainer, send)

    def doubt(self, ref: ReplyRef, key: str) -> None:
        """Whether this message was shown is not known: look before it is shown (again)."""
        self._unsure[ref.id, key] = True

    async def _settle(self, ref: ReplyRef, key: str, error: ApiError) -> str:
        """Whether a post whose outcome is unknown was shown. Raises NotSent when it was not, else Unknown."""
        self.doubt(ref, key)
        for pause in LOOKS:
            await asyncio.sleep(pause)
            if found := await self._settled(ref, key):
                return found
        raise NotSent(f"{error}; Slack does not have the message")

    async def _first(self, ref: ReplyRef, key: str) -> bool:
        """Claim a message. False: it was begun before, by whatever process, and is perhaps shown."""
        if self._shared is None:
            return True
        holder = secrets.token_hex(8)
        if not await self._shared.claim(_claim(ref, key), holder, _BEGUN):
            return False
        self._begun[ref.id, key] = holder
        return True

    async def take_up(self, ref: ReplyRef, key: str, chunk: Chunk) -> str:
        """Go on in a message that is there though nobody wrote it down: the last process ended too early, or
        a call's outcome is unknown. Returns its ts, "" when there is none. Raises SendError."""
        self._begun.pop((ref.id, key), None)
        first = await self._first(ref, key)
        if (ref.id, key) in self._unsure:
            found = await self._settled(ref, key)
        elif first and not (_TS.fullmatch(ref.to) and float(ref.to) < self._born + _SKEW):
            return ""
        else:
            found = await self._seen(ref, key)
        return await self.adopt(ref, key, found, chunk) if found else ""

    async def adopt(self, ref: ReplyRef, key: str, ts: str, chunk: Chunk) -> str:
        """Let a message show `chunk`; returns its `ts`, or "" when it is gone. Raises SendError."""
        try:
            await self.update(ref, key, ts, chunk)
        except Lost:
            return ""
        return ts

    async def _settled(self, ref: ReplyRef, key: str) -> str:
        """The ts of a message whose outcome was unknown, or "" when it is not there. Raises SendError."""
        try:
            return await self._look(ref, key)
        except ApiError as error:
            log.info("an unknown outcome is not settled: %s", error)
            # Later we can look again, unless we are not allowed to.
            if error.error == "ratelimited":
                raise send_error(error) from None
            raise (Unknown if error.taken == "refused" else NotSent)(str(error)) from None

    async def _seen(self, ref: ReplyRef, key: str) -> str:
        """The ts of a message that another process may have posted, or ""."""
        try:
            return await self._look(ref, key)
        except ApiError as error:
            log.info("whether a message was begun by another process is not known: %s", error)
            return ""

    async def _look(self, ref: ReplyRef, key: str) -> str:
        """The ts of this message, or "". Raises ApiError.

        A stream gets its metadata at its end only. In a thread one reply follows the other, so a message of
        ours without metadata after the question is this reply's stream, left open.
        """
        thread = ref.address.thread
        method = "conversations.replies" if thread else "conversations.history"
        found = await self._api.call(
            method,
            _LOOK_TIMEOUT,
            channel=ref.address.chat,
            ts=thread,
            oldest=ref.to if _TS.fullmatch(ref.to) else None,
            limit=200,
            include_all_metadata=True,
        )
        messages = dicts(found.get("messages"))
        payloads = [(m.get("metadata") or {}).get("event_payload") or {} for m in messages]
        wanted = metadata(ref, key)["event_payload"]
        match = next((m for m, payload in zip(messages, payloads, strict=True) if payload == wanted), None)
        if match is None and thread and (key == "0" or any(p.get("id") == ref.id for p in payloads)):
            ours = (m for m in messages if m.get("user") == self._me.user and not m.get("files"))
            match = next((m for m in ours if not m.get("metadata")), None)
        if match is None:
            return ""
        self._unsure.pop((ref.id, key), None)
        return str(match["ts"])


def _claim(ref: ReplyRef, key: str) -> str:
    return f"post:{ref.id}:{key}"


class _TooMuch(Rejected):
    """Refused in every form: shorter pieces may be taken."""


def metadata(ref: ReplyRef, key: str) -> dict[str, Any]:
    return {"event_type": EVENT, "event_payload": {"id": ref.id, "n": key}}


def _forms(chunk: Chunk) -> list[dict[str, Any]]:
    forms = [payload(chunk), payload(chunk, plain=True)]
    return forms[:1] if forms[0] == forms[1] else forms


def _shorter(chunk: Chunk) -> list[Chunk]:
    """The same text in shorter chunks. Raises Rejected when it is short already."""
    text = chunk.text + str(chunk.data.get("close") or "")
    limit = min(len(text), MAX_TEXT) * 2 // 3
    if limit < _SHORTEST:
        raise Rejected("Slack refuses this message in every form")
    return text_chunks(text, limit)
