"""What `doctor` and `init` find out about a WeCom application: settings, account, rights, the way in."""

from __future__ import annotations

import asyncio
import logging
import secrets

import aiohttp

from channels.base import ChannelError, Env, Finding
from channels.wechat.crypto import Envelope
from channels.wecom.api import Api, ApiError, Data
from channels.wecom.config import WecomConfig, verify

log = logging.getLogger("causeway.wecom")

_TIMEOUT = 8.0
_MAX_ECHO = 4096


def callback_path(name: str) -> str:
    return f"/channels/{name}/callback"


class Check:
    """One check of one instance. Works without a running channel: gettoken changes nothing for others, since
    it gives the token that is good already."""

    def __init__(self, name: str, config: WecomConfig, env: Env, language: str) -> None:
        self._name = name
        self._config = config
        self._env = env
        self._language = language

    async def run(self) -> list[Finding]:
        try:
            verify(self._config, f"channels.{self._name}")
        except ChannelError as error:
            return [self._finding("error", "settings", what=str(error))]
        return [*await self._account(), *await self._way_in()]

    def _finding(self, level: str, key: str, *, cure: bool = False, **values: object) -> Finding:
        what = self._env.text(f"wecom.check.{key}", self._language, **values)
        words = self._env.text(f"wecom.check.{key}_cure", self._language, **values) if cure else ""
        return Finding(level, what, words)  # type: ignore[arg-type]  # only called with the three levels

    # -- the account -------------------------------------------------------------------------------------

    async def _account(self) -> list[Finding]:
        config = self._config
        api = Api(
            config.root,
            config.corp_id.strip(),
            config.secret.get_secret_value().strip(),
            self._env.state,
            self._env.clock,
            timeout=_TIMEOUT,
        )
        try:
            agent = await api.get("agent/get", agentid=config.agent_id)
        except ApiError as error:
            found = [] if error.call == "gettoken" else [self._finding("ok", "token")]
            return [*found, self._trouble(error)]
        finally:
            await api.close()
        return [self._finding("ok", "token"), *self._agent(agent)]

    def _trouble(self, error: ApiError) -> Finding:
        code, config = error.code, self._config
        if error.taken != "refused":
            return self._finding("error", "unreachable", cure=True, url=config.root, reason=error)
        if code == 60020:
            ip = error.ip or "?"
            return self._finding("error", "ip", cure=True, ip=ip)
        if code == 40013:
            return self._finding("error", "corp_id", cure=True, code=code)
        if error.call == "gettoken" and code in (40001, 40091):
            return self._finding("error", "secret", cure=True, code=code)
        if code in (40056, 301002):
            return self._finding("error", "agent_id", cure=True, code=code, agent=config.agent_id)
        return self._finding("error", "other", call=error.call, reason=error)

    def _agent(self, agent: Data) -> list[Finding]:
        if agent.get("close"):
            return [self._finding("error", "closed", cure=True)]
        counts = [
            len((agent.get(field) or {}).get(item) or ())
            for field, item in (
                ("allow_userinfos", "user"),
                ("allow_partys", "partyid"),
                ("allow_tags", "tagid"),
            )
        ]
        if not any(counts):
            return [self._finding("error", "nobody", cure=True)]
        users, departments, tags = counts
        name = agent.get("name", "")
        return [
            self._finding("ok", "agent", name=name, users=users, departments=departments, tags=tags),
        ]

    # -- the way in --------------------------------------------------------------------------------------

    async def _way_in(self) -> list[Finding]:
        path, public = callback_path(self._name), self._env.public_url
        if not public:
            return [self._finding("warning", "no_url", cure=True, path=path)]
        url = public + path
        found = [self._finding("ok", "url", cure=True, url=url)]
        reason = await self._try(url)
        if reason:
            return [*found, self._finding("warning", "not_reached", cure=True, reason=reason)]
        return [*found, self._finding("ok", "reached")]

    async def _try(self, url: str) -> str:
        """Ask the public address what WeCom asks when the URL is saved; why the answer is wrong, or ""."""
        config, said = self._config, secrets.token_hex(8)
        token, corp_id = config.token.get_secret_value().strip(), config.corp_id.strip()
        envelope = await asyncio.to_thread(Envelope, token, config.keys, corp_id, clock=self._env.clock)
        sealed = envelope.seal(said.encode())
        query = {
            "msg_signature": sealed.signature,
            "timestamp": sealed.timestamp,
            "nonce": sealed.nonce,
            "echostr": sealed.encrypt,
        }
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_TIMEOUT)) as session,
                session.get(url, params=query, allow_redirects=False) as response,
            ):
                got = await response.content.read(_MAX_ECHO)
                if response.status != 200:
                    return f"HTTP {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__
        return "" if got == said.encode() else "?"
