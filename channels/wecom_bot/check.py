"""Looks at the settings and at WeCom from outside, for `doctor` and `init`."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence

import aiohttp

from channels.base import Env, Finding
from channels.wechat.crypto import Envelope, key_fault
from channels.wecom_bot.api import SUBSCRIBE, BotError, new_req_id, read_json, result
from channels.wecom_bot.config import WecomBotConfig
from channels.wecom_bot.lease import Lease

_WAIT = 10.0


class Check:
    """One look; `findings` are in the language asked for."""

    def __init__(self, name: str, config: WecomBotConfig, env: Env, language: str) -> None:
        self._name, self._config, self._env, self._language = name, config, env, language

    def _say(self, level: str, key: str, cure: str = "", **values: object) -> Finding:
        def text(key: str) -> str:
            return self._env.text(f"wecom_bot.check.{key}", self._language, name=self._name, **values)

        assert level in ("ok", "warning", "error")
        return Finding(level, text(key), text(cure) if cure else "")  # type: ignore[arg-type]

    def _missing(self, settings: Sequence[str]) -> list[Finding]:
        found = []
        for setting in settings:
            value = getattr(self._config, setting)
            plain = value if isinstance(value, str) else value.get_secret_value()
            if not plain.strip():
                found.append(self._say("error", "missing", "missing_cure", setting=setting))
        return found

    async def findings(self) -> list[Finding]:
        return await (self._socket() if self._config.mode == "socket" else self._webhook())

    # -- long connection ---------------------------------------------------------------------------------

    async def _socket(self) -> list[Finding]:
        if missing := self._missing(("bot_id", "secret")):
            return missing
        if not self._config.ws_url.startswith(("wss://", "ws://")):
            return [self._say("error", "ws_url")]
        # To subscribe would kick a connection that works, so it is tried only while nobody holds the lease.
        lease = Lease(self._env.state, _WAIT * 2)
        if not await lease.hold():
            return [self._say("ok", "running")]
        try:
            return [await self._subscribe()]
        finally:
            await lease.free()

    async def _subscribe(self) -> Finding:
        url = self._config.ws_url
        try:
            async with (
                asyncio.timeout(_WAIT),
                aiohttp.ClientSession(trust_env=True) as http,
                http.ws_connect(url) as ws,
            ):
                body = {"bot_id": self._config.bot_id, "secret": self._config.secret.get_secret_value()}
                req_id = new_req_id(SUBSCRIBE)
                await ws.send_json({"cmd": SUBSCRIBE, "headers": {"req_id": req_id}, "body": body})
                while True:
                    frame = read_json(await ws.receive_str())
                    if (frame.get("headers") or {}).get("req_id") == req_id:
                        result(SUBSCRIBE, frame)
                        return self._say("ok", "subscribed")
        except BotError as error:
            return self._say("error", "refused", "refused_cure", code=error.code)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, TypeError) as error:
            reason = type(error).__name__
            return self._say("error", "unreachable", "unreachable_cure", url=url, reason=reason)

    # -- callback URL ------------------------------------------------------------------------------------

    async def _webhook(self) -> list[Finding]:
        if missing := self._missing(("token", "aes_key")):
            return missing
        for setting in ("aes_key", "previous_aes_key"):
            key = getattr(self._config, setting).get_secret_value().strip()
            if key and key_fault(key):
                return [self._say("error", "aes_key", "missing_cure", setting=setting)]
        if not self._env.public_url:
            return [self._say("error", "no_public", "no_public_cure")]
        url = f"{self._env.public_url}/channels/{self._name}/callback"
        return [self._say("ok", "callback", url=url), await self._knock(url)]

    async def _knock(self, url: str) -> Finding:
        """Ask as the console does when the URL is saved."""
        token, key = (getattr(self._config, s).get_secret_value().strip() for s in ("token", "aes_key"))
        envelope = await asyncio.to_thread(Envelope, token, (key,), "")
        echo = secrets.token_hex(12)
        sealed = envelope.seal(echo.encode(), timestamp=str(int(time.time())))
        query = {
            "msg_signature": sealed.signature,
            "timestamp": sealed.timestamp,
            "nonce": sealed.nonce,
            "echostr": sealed.encrypt,
        }
        try:
            async with (
                asyncio.timeout(_WAIT),
                aiohttp.ClientSession(trust_env=True) as http,
                http.get(url, params=query) as response,
            ):
                if response.status == 200 and await response.text() == echo:
                    return self._say("ok", "answers")
                reason = f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = type(error).__name__
        return self._say("warning", "no_answer", "no_answer_cure", reason=reason)
