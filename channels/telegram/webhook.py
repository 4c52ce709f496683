"""Receiving by webhook: Telegram posts each update to a route of the bridge's own HTTP server.

A delivery is answered with 200 only after `handle` returned; anything else makes Telegram repeat it with
growing pauses until the update is a day old (telegram-bot-api, WebhookActor). Any number of gateways may
serve one address: what comes twice is recognised by the bridge.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

from aiohttp import web

from channels.base import ChannelState, Health
from channels.telegram.api import Api, ApiError
from channels.telegram.condition import Condition, Trouble, diagnose
from channels.telegram.lanes import Busy, Lanes, lane_of
from channels.telegram.polling import WEBHOOK_NOTE, Data, Handle
from channels.webhook import read_body, same

log = logging.getLogger("causeway.telegram")

SECRET_HEADER = "X-Telegram-Bot-Api-Secret-Token"  # noqa: S105 - a header's name
#: Deliveries that Telegram makes side by side (1 to 100).
CONNECTIONS = 100
#: Seconds for reading a delivery, and for taking it in: Telegram itself waits about a minute.
_READ_DEADLINE, _HANDLE_DEADLINE = 15.0, 50.0
#: Deliveries under way at most; beyond it they are refused with 503 and come again.
_MOST = 1000
#: Seconds between two looks at what Telegram says about the webhook; a fault older than `_FRESH` is over.
_RECHECK, _FRESH = 60.0, 300.0
_WARN_EVERY = 60.0
_REFUSED_PAUSE = 30.0


def path(name: str) -> str:
    return f"/channels/{name}/webhook"


class Webhook:
    """`take` answers deliveries; `run` tells Telegram the address and watches over it until cancelled."""

    def __init__(
        self,
        name: str,
        api: Api,
        state: ChannelState,
        clock: Callable[[], float],
        public_url: str,
        secret: str,
        allowed: Sequence[str],
        prepare: Callable[[], Awaitable[None]],
        handle: Handle,
    ) -> None:
        self._name = name
        self._api = api
        self._state = state
        self._clock = clock
        self._url = f"{public_url}{path(name)}" if public_url else ""
        self._secret = secret
        self._allowed = list(allowed)
        self._prepare = prepare
        self._handle = handle
        self._condition = Condition("look at the webhook")
        self._lanes = Lanes(_MOST)
        self._prepared = False
        self._registered = False
        self._open = True
        self._last_delivery = 0.0  # by the clock, to compare with Telegram's dates
        self._warned = -_WARN_EVERY

    @property
    def health(self) -> Health:
        return self._condition.health

    def close(self) -> None:
        """Take no more deliveries: Telegram keeps them, or another gateway takes them."""
        self._open = False

    # -- deliveries --------------------------------------------------------------------------------------

    async def take(self, request: web.Request) -> web.Response:
        if not same(request.headers.get(SECRET_HEADER, ""), self._secret):
            self._warn("a delivery without the right secret was refused (401)")
            return web.Response(status=401)
        if not (self._open and self._prepared):
            return web.Response(status=503)
        try:
            async with asyncio.timeout(_READ_DEADLINE):
                update = json.loads(await read_body(request))
        except TimeoutError:
            return web.Response(status=408)
        except (ValueError, RecursionError):
            update = None
        if not isinstance(update, dict) or not isinstance(update.get("update_id"), int):
            self._warn("a delivery that is no update was refused (400)")
            return web.Response(status=400)
        return web.Response(status=200 if await self._taken(update) else 503)

    async def _taken(self, update: Data) -> bool:
        try:
            async with asyncio.timeout(_HANDLE_DEADLINE), self._lanes.turn(lane_of(update)):
                await self._handle(update)
        except Busy as busy:
            self._warn(f"too much at once: {busy}; Telegram will repeat it")
            return False
        except Exception:
            # The store refused it, or a fault of ours: not acknowledged, it comes again.
            log.exception("update %d could not be taken; Telegram will repeat it", update["update_id"])
            return False
        self._last_delivery = self._clock()
        return True

    def _warn(self, words: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._warned >= _WARN_EVERY:  # anybody can make us log here
            self._warned = now
            log.warning("webhook of %s: %s", self._name, words)

    # -- the address -------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            try:
                if not self._prepared:
                    await self._prepare()
                    self._prepared = True
                trouble = await self._look()
            except ApiError as error:
                trouble = self._diagnose(error)
            except Exception as error:
                # A store that cannot be written, an answer that nobody foresaw: looked at again.
                log.exception("the webhook of %s could not be looked after", self._name)
                trouble = Trouble(Health(False, f"unexpected: {type(error).__name__}", "see the log"))
            if trouble is None:
                self._condition.succeeded()
                await asyncio.sleep(_RECHECK)
            else:
                self._condition.failed(trouble)
                await asyncio.sleep(self._condition.pause())

    async def _look(self) -> Trouble | None:
        """Set the webhook where it is not as it should be; return what there is to complain about."""
        info: Data = await self._api.call("getWebhookInfo")
        current = str(info.get("url") or "")
        if not self._url:
            return None if urlsplit(current).path.endswith(path(self._name)) else self._no_address()
        if not self._registered or current != self._url:
            await self._register(current)
            return None
        return self._deliveries(info)

    async def _register(self, current: str) -> None:
        if self._registered:
            log.warning("the webhook of %s was changed by somebody else; it is set anew", self._name)
        await self._api.call(
            "setWebhook",
            url=self._url,
            secret_token=self._secret,
            max_connections=CONNECTIONS,
            allowed_updates=self._allowed,
            drop_pending_updates=False,
        )
        self._registered = True
        await self._state.put(WEBHOOK_NOTE, self._url)
        if current != self._url:
            log.info("Telegram delivers to %s now", self._url)

    def _deliveries(self, info: Data) -> Trouble | None:
        """Telegram's last failure, unless a delivery came since."""
        failed_at = float(info.get("last_error_date") or 0)
        if not info.get("pending_update_count") or failed_at <= self._last_delivery:
            return None
        if self._clock() - failed_at > _FRESH:
            return None
        reason = str(info.get("last_error_message") or "no reason given")
        cure = (
            f"see that {self._url} reaches this server from outside, with a valid certificate; "
            "401 means another webhook_secret, 404 another server"
        )
        return Trouble(Health(False, f"Telegram cannot deliver: {reason}", cure), rest=_RECHECK / 6)

    def _no_address(self) -> Trouble:
        cure = (
            "set server.public_url to the https address under which Telegram reaches this server "
            f"(port 443, 80, 88 or 8443), or set channels.{self._name}.mode: polling"
        )
        health = Health(False, "the server's public address is not known", cure)
        return Trouble(health, rest=_RECHECK / 6, grave=True)

    def _diagnose(self, error: ApiError) -> Trouble:
        if error.code == 400:
            cure = "server.public_url must be an https address on port 443, 80, 88 or 8443 with a public name"
            health = Health(False, f"Telegram refuses the webhook: {error.reason}", cure)
            return Trouble(health, rest=_REFUSED_PAUSE, grave=True)
        return diagnose(error, self._name)
