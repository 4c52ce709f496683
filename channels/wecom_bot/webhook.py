"""The callback URL: verifies, opens, hands on, and seals the answer (100719, 101033).

Whatever is not signed with our token, not encrypted with our key or not of now is answered 403 and nothing
else. A request that comes twice brings nothing twice: messages are recognised by their id, events by theirs,
and a message's stream has one id however often it is asked for.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from channels.webhook import read_body
from channels.wechat.crypto import Envelope, Refused
from channels.wecom_bot.api import Data, read_json

log = logging.getLogger("causeway.wecom_bot")

_LARGEST = 1024 * 1024
Answer = Callable[[Data], Awaitable[Data | None]]


@dataclass(frozen=True, slots=True)
class Callback:
    """Answers WeCom's requests. `message`, `event` and `poll` get the opened body and return what to answer;
    what they raise is told to WeCom as 503, so that it asks again."""

    envelope: Envelope
    message: Answer
    event: Answer
    poll: Answer

    async def verify(self, request: web.Request) -> web.Response:
        """The check that the console makes when the URL is saved: the decrypted echo, bare."""
        try:
            opened = self.envelope.open(request.query.get("echostr", ""), request.query)
            echo = opened.text.decode()
        except (Refused, UnicodeDecodeError) as error:
            return _refused(request, error)
        return web.Response(text=echo)

    async def receive(self, request: web.Request) -> web.Response:
        raw = await read_body(request, _LARGEST)
        try:
            sealed = read_json(raw).get("encrypt")
            if not isinstance(sealed, str):
                raise Refused("there is no encrypted body")
            opened = self.envelope.open(sealed, request.query)
            body = read_json(opened.text)
        except (Refused, ValueError, RecursionError) as error:
            return _refused(request, error)
        kind = body.get("msgtype")
        handle = self.poll if kind == "stream" else self.event if kind == "event" else self.message
        try:
            answer = await handle(body)
        except Exception:
            # Not stored, or a body of a shape that nobody documents: refuse it softly, never with a 500.
            log.exception("WeCom AI bot: a callback of kind %r could not be handled", str(kind)[:20])
            return web.Response(status=503)
        if answer is None:
            return web.Response()
        nonce = request.query.get("nonce", "")
        if "msg_item" in (answer.get("stream") or {}):  # pictures make megabytes: not on the event loop
            sealed_answer = await asyncio.to_thread(self._seal, answer, opened.key, nonce)
        else:
            sealed_answer = self._seal(answer, opened.key, nonce)
        return web.Response(body=sealed_answer, content_type="application/json")

    def _seal(self, answer: Data, key: int, nonce: str) -> bytes:
        text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace")
        sealed = self.envelope.seal(text, key, nonce=nonce)
        packed = {
            "encrypt": sealed.encrypt,
            "msgsignature": sealed.signature,
            "timestamp": int(sealed.timestamp),
            "nonce": sealed.nonce,
        }
        return json.dumps(packed).encode()


def _refused(request: web.Request, error: Exception) -> web.Response:
    reason = str(error) if isinstance(error, Refused) else f"not readable ({type(error).__name__})"
    log.warning("WeCom AI bot: a request from %s was refused: %s", request.remote, reason)
    return web.Response(status=403)
