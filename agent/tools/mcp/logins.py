"""Logins at remote servers (OAuth): who waits for which callback, and where the tokens are kept.

The protocol itself is in `auth`, which needs the SDK and is loaded at the first use.
"""

from __future__ import annotations

import asyncio
import hmac
import importlib
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import parse_qs, urlsplit

from agent.tools.mcp.config import ServerSpec
from agent.tools.mcp.faults import McpFault

if TYPE_CHECKING:
    from agent.tools.mcp.auth import Access

log = logging.getLogger("causeway.mcp")

CALLBACK_PATH = "/mcp/callback"
_LIMIT = 600.0  # seconds an admin has from the link to the callback
_LINK_LIMIT = 60.0  # seconds until there is a link: discovery and registration
_EXCHANGE_LIMIT = 60.0  # seconds from the callback to the tokens
_MOST_ACCESSES = 256
_LONGEST_VALUE = 4096  # of a parameter of the callback

Outcome = Literal["done", "failed", "unknown"]


class LoginFailed(McpFault):
    """No login came about. The message says why and what to do, and holds no credential."""


class TokenStore(Protocol):
    """Keeps what a login gave, as plain JSON with a version number, by the server's address.

    The record names the issuer that gave it, and is used for that issuer and that address alone. It holds
    secrets: nobody but the bridge's user may read it.
    """

    async def load(self, server: str) -> Any:
        """The record, or None."""
        ...

    async def save(self, server: str, record: dict[str, Any] | None) -> None:
        """Replace the record; None removes it."""
        ...


def has_own_credentials(spec: ServerSpec) -> bool:
    """Whether the entry logs in by a header of its own; then no other login is tried."""
    return any(name.lower() == "authorization" for name, _ in spec.headers)


def login_cure(spec: ServerSpec, logins: Logins | None) -> str:
    """What an admin does when this server refuses us."""
    if has_own_credentials(spec):
        return "renew the Authorization header of its entry in mcp.json"
    if logins is not None:
        return f"an admin logs in with /mcp login {spec.name}"
    return 'give it a header such as "Authorization": "Bearer ${TOKEN}" in mcp.json'


@dataclass(slots=True)
class _Flow:
    """A login under way. `state` is what the callback has to bring; empty before and after it may."""

    link: asyncio.Future[str] = field(default_factory=asyncio.Future)
    answer: asyncio.Future[Mapping[str, str]] = field(default_factory=asyncio.Future)
    task: asyncio.Task[None] = field(init=False)
    state: str = ""


class Logins:
    """The logins of a process. Used from one event loop; `stop` ends what is under way."""

    def __init__(
        self,
        store: TokenStore,
        redirect_uri: Callable[[], str],
        *,
        client_document: Callable[[], str] = lambda: "",
        on_secret: Callable[[str], None] = lambda value: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`redirect_uri` gives the address of our callback, `client_document` that of a public description of
        us (https); "" when there is none now. `on_secret` is told each token before anything uses it."""
        self.store = store
        self.on_secret = on_secret
        self.clock = clock
        self.on_login: Callable[[str], None] = lambda url: None
        self._redirect_uri = redirect_uri
        self._client_document = client_document
        self._limit = _LIMIT
        self._accesses: dict[str, Access] = {}
        self._flows: dict[str, _Flow] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def access(self, url: str) -> Access:
        """What the login at this address gives now, shared by all who talk to it."""
        access = self._accesses.pop(url, None)
        if access is None:
            module = await asyncio.to_thread(importlib.import_module, "agent.tools.mcp.auth")
            access = self._accesses.get(url) or module.Access(url, self)
        self._accesses[url] = access
        while len(self._accesses) > _MOST_ACCESSES:
            del self._accesses[next(iter(self._accesses))]
        await access.load()
        return access

    async def begin(self, spec: ServerSpec) -> str:
        """The address where an admin logs in at this server; the same one while a login is under way.

        When the callback has come and the tokens are kept, `on_login` is called with the server's address.
        Raises LoginFailed.
        """
        return await self._link(spec, self._flow(spec))

    async def complete(self, spec: ServerSpec, show: Callable[[str], None]) -> None:
        """A whole login: `show` is given the address, then the tokens are waited for. Raises LoginFailed."""
        flow = self._flow(spec)
        show(await self._link(spec, flow))
        await asyncio.shield(flow.task)

    def _flow(self, spec: ServerSpec) -> _Flow:
        if spec.kind == "stdio":
            raise LoginFailed(f"{spec.name} runs on this machine: it takes its credentials from 'env'.")
        if has_own_credentials(spec):
            how = "the Authorization header of its entry"
            raise LoginFailed(f"{spec.name} logs in by {how}: renew or remove that.")
        flow = self._flows.get(spec.url)
        if flow is None:
            redirect_uri = self._redirect_uri()
            if not redirect_uri:
                cure = f"use `causeway mcp login {spec.name}` in a shell"
                raise LoginFailed(f"No callback can be received here: {cure}.")
            flow = self._flows[spec.url] = _Flow()
            flow.task = self.spawn(self._log_in(spec, flow, redirect_uri), f"login {spec.name}")
            flow.task.add_done_callback(lambda task: self._flows.pop(spec.url, None))
        return flow

    async def _link(self, spec: ServerSpec, flow: _Flow) -> str:
        both: set[asyncio.Future[Any]] = {flow.task, flow.link}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if flow.link.done():
            return flow.link.result()
        await asyncio.shield(flow.task)
        raise LoginFailed(f"{spec.name} lets us in without a login.")

    async def answer(self, query: Mapping[str, str]) -> Outcome:
        """Take what the authorization server sent an admin's browser back with; each state counts once.

        Waits until the tokens are there. "unknown": no login waits for this, or not any more.
        """
        given = query.get("state", "")
        found: _Flow | None = None
        for flow in self._flows.values():  # all of them, so that the time says nothing
            if flow.state and hmac.compare_digest(flow.state.encode(), given.encode("utf-8", "replace")):
                found = flow
        if found is None or found.answer.done():
            return "unknown"
        found.state = ""
        found.answer.set_result({key: value[:_LONGEST_VALUE] for key, value in query.items()})
        await asyncio.wait({found.task}, timeout=_EXCHANGE_LIMIT)
        ended = found.task.done() and not found.task.cancelled()
        return "done" if ended and found.task.exception() is None else "failed"

    async def answer_address(self, address: str) -> Outcome:
        """`answer`, from the address that a browser on another machine could not open."""
        try:
            query = parse_qs(urlsplit(address.strip()).query)
        except ValueError:
            return "unknown"
        return await self.answer({key: values[0] for key, values in query.items()})

    async def stop(self) -> None:
        """End every login that is under way; a renewal of a token has some seconds to finish."""
        for flow in self._flows.values():
            flow.task.cancel()
        if self._tasks:
            _, late = await asyncio.wait(set(self._tasks), timeout=5.0)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task that `stop` awaits and that outlives whoever asked for it."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            if isinstance(fault, McpFault):
                log.warning("MCP %s: %s", task.get_name(), fault)
            else:  # only the kind: the words of a broken answer may hold a token
                log.warning("MCP %s failed (%s)", task.get_name(), type(fault).__name__)

    async def _log_in(self, spec: ServerSpec, flow: _Flow, redirect_uri: str) -> None:
        async def redirect(link: str) -> None:
            flow.state = parse_qs(urlsplit(link).query).get("state", [""])[0]
            flow.link.set_result(link)
            limit.reschedule(asyncio.get_running_loop().time() + self._limit)

        async def callback() -> Mapping[str, str]:
            answer = await flow.answer
            limit.reschedule(asyncio.get_running_loop().time() + _EXCHANGE_LIMIT)
            return answer

        try:
            async with asyncio.timeout(_LINK_LIMIT) as limit:
                access = await self.access(spec.url)
                await access.log_in(
                    redirect_uri,
                    redirect,
                    callback,
                    sse=spec.kind == "sse",
                    client_document=self._client_document(),
                    client=spec.oauth_client,
                )
        except TimeoutError:
            if flow.link.done() and not flow.answer.done():
                cure = f"ask for a new link with /mcp login {spec.name}"
                raise LoginFailed(f"nobody logged in within {self._limit:g} s; {cure}.") from None
            cure = "check that it is reachable and try again"
            raise LoginFailed(f"the authorization server does not answer; {cure}.") from None
        log.info("MCP server %s: logged in", spec.name)
        self.on_login(spec.url)
