"""OAuth at a remote server with the SDK's provider: log in, send the token, renew it.

The SDK's provider wants to be a client's `auth`, and then holds a lock while a request is under way: one
slow call would hold up all others, and a call would wait for a person. So its flow is run here apart from
the requests, for a login and for a renewal, and requests only carry the token (`BearerAuth`).

Imports the SDK; load it lazily.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Literal

import httpx2
from mcp.client.auth import (
    AuthorizationCodeResult,
    OAuthClientProvider,
    OAuthFlowError,
    OAuthRegistrationError,
    OAuthTokenError,
    TokenStorage,
)
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, BaseModel, ConfigDict, ValidationError

from agent.tools.mcp.alone import knock
from agent.tools.mcp.config import OAuthClient
from agent.tools.mcp.logins import CALLBACK_PATH, LoginFailed, Logins
from agent.tools.mcp.remote import RenewalFailed, challenge_of

log = logging.getLogger("causeway.mcp")

# The SDK logs answers of token endpoints, tokens included. A level that somebody set stays.
if logging.getLogger("mcp.client.auth").level == logging.NOTSET:
    logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)

_EARLY = 10.0  # seconds before its end in which a token is renewed rather than sent
_RENEWAL_LIMIT = 45.0
_LARGEST_ANSWER = 1024 * 1024
_TIMEOUT = httpx2.Timeout(20.0, connect=10.0)
#: What the SDK and its HTTP library raise about a server that is away or answers nonsense.
_UNUSABLE = (httpx2.HTTPError, httpx2.InvalidURL, ValueError)

Challenge = tuple[int, str]  # status and WWW-Authenticate of an answer that asks for a login


def provider_for(
    url: str,
    storage: TokenStorage,
    redirect_handler: Callable[[str], Awaitable[None]] | None = None,
    callback_handler: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
    *,
    redirect_uri: str = f"http://127.0.0.1{CALLBACK_PATH}",
    client_metadata_url: str | None = None,
) -> OAuthClientProvider:
    """The SDK's provider as we use it: registered by itself as a public or confidential client, with PKCE and
    renewal. `redirect_handler` is given the address for the person's browser, `callback_handler` waits for
    what the browser brought back. `client_metadata_url`: a client id that is the address of a document."""
    metadata = OAuthClientMetadata(client_name="Causeway", redirect_uris=[AnyUrl(redirect_uri)])
    return OAuthClientProvider(
        url, metadata, storage, redirect_handler, callback_handler, client_metadata_url=client_metadata_url
    )


class Grant(BaseModel):
    """What a login gave, as it is stored: the client that was registered, its tokens, and whose they are."""

    model_config = ConfigDict(frozen=True)

    v: Literal[1]
    client: OAuthClientInformationFull
    tokens: OAuthToken
    expires_at: float | None = None  # Unix time
    server: OAuthMetadata | None = None
    resource: ProtectedResourceMetadata | None = None
    issuer: str | None = None

    @classmethod
    def of(cls, provider: OAuthClientProvider) -> Grant | None:
        context = provider.context
        client, server = context.client_info, context.oauth_metadata
        if client is None or context.current_tokens is None:
            return None
        return cls(
            v=1,
            client=client,
            tokens=context.current_tokens,
            expires_at=context.token_expiry_time,
            server=server,
            resource=context.protected_resource_metadata,
            issuer=str(server.issuer) if server else client.issuer,
        )

    @classmethod
    def from_json(cls, record: Any) -> Grant | None:
        """None for what is no record, or one of another version."""
        try:
            return cls.model_validate(record)
        except ValidationError:
            return None

    def secrets(self) -> list[str]:
        given = (self.tokens.access_token, self.tokens.refresh_token, self.client.client_secret)
        return [secret for secret in given if secret]


class _Held:
    """The SDK's storage for one run of its flow: what it begins with. What it ends with is in its context."""

    def __init__(self, grant: Grant | None, client: OAuthClientInformationFull | None = None) -> None:
        self._grant = grant
        self._client = grant.client if grant else client

    async def get_tokens(self) -> OAuthToken | None:
        return self._grant.tokens if self._grant else None

    async def set_tokens(self, tokens: OAuthToken) -> None:
        pass

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        pass


def _by_hand(client: OAuthClient, redirect_uri: str) -> OAuthClientInformationFull:
    """A client that its entry names, as the SDK knows those that it registered. A secret is sent the way that
    RFC 8414 presumes where nothing else is said."""
    return OAuthClientInformationFull(
        client_id=client.id,
        client_secret=client.secret or None,
        token_endpoint_auth_method="client_secret_basic" if client.secret else "none",
        redirect_uris=[AnyUrl(redirect_uri)],
        issuer=client.issuer or None,
    )


class Access:
    """The login at one server's address: for all its sessions, so that a token is renewed once for all."""

    def __init__(self, url: str, logins: Logins) -> None:
        self.url = url
        self._origin = _origin(httpx2.URL(url))
        self._logins = logins
        self._grant: Grant | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._challenge: Challenge | None = None  # of the last answer that asked for a login, or for more

    async def load(self) -> None:
        """Take up what is stored, unless we have something."""
        if self._grant is None:
            grant = Grant.from_json(await self._logins.store.load(self.url))
            if self._grant is None:
                self._take(grant)

    def covers(self, url: httpx2.URL) -> bool:
        """Whether the token may be sent there: to the server that it is for and nowhere else."""
        return _origin(url) == self._origin

    async def bearer(self) -> str | None:
        """The token to send now. Raises RenewalFailed when it is over and cannot be renewed now."""
        grant = self._grant
        if grant is None:
            return None
        if grant.expires_at is not None and self._logins.clock() >= grant.expires_at - _EARLY:
            return await self.renew(grant.tokens.access_token)
        return grant.tokens.access_token

    async def renew(self, used: str) -> str | None:
        """A token other than the one that was refused; None when only a person can get one. However many
        ask, one renewal runs, and nobody's cancelling breaks it off. Raises RenewalFailed."""
        if self._grant is not None and self._grant.tokens.access_token == used:
            if self._renewing is None:
                self._renewing = self._logins.spawn(self._renew(self._grant), "token renewal")
                self._renewing.add_done_callback(self._renewed)
            await asyncio.shield(self._renewing)
        return self._grant.tokens.access_token if self._grant else None

    def _renewed(self, task: asyncio.Task[None]) -> None:
        self._renewing = None

    def note(self, response: httpx2.Response) -> None:
        """Remember how the server asks for a login."""
        self._challenge = challenge_of(response) or self._challenge

    async def _renew(self, grant: Grant) -> None:
        if not grant.tokens.refresh_token:
            self._grant = None
            return
        provider = provider_for(self.url, _Held(grant))
        provider.context.oauth_metadata = grant.server
        provider.context.protected_resource_metadata = grant.resource
        provider.context.token_expiry_time = 1.0  # long over: the flow begins with a renewal
        try:
            async with asyncio.timeout(_RENEWAL_LIMIT):
                await self._run(provider, None)
        except (*_UNUSABLE, TimeoutError, OAuthFlowError, LoginFailed) as fault:
            raise RenewalFailed(f"its token could not be renewed now ({type(fault).__name__})") from None
        renewed = Grant.of(provider)
        if renewed is None:
            log.warning("a token of an MCP server was not renewed; somebody has to log in again")
        await self._keep(renewed)

    async def log_in(
        self,
        redirect_uri: str,
        redirect: Callable[[str], Awaitable[None]],
        callback: Callable[[], Awaitable[Mapping[str, str]]],
        *,
        sse: bool = False,
        client_document: str = "",
        client: OAuthClient | None = None,
    ) -> None:
        """Have a person log in, and keep what that gives. `redirect` is given the address for the browser;
        `callback` waits for the parameters that come back; `client_document` is where a description of us is
        published, for servers that take its address for a client id. Raises LoginFailed."""
        challenge = self._challenge
        # More rights are asked for by the client that has some; for a login afresh a new one is registered,
        # so that one that the other side forgot cannot be in the way for ever.
        held = self._grant if challenge is not None and challenge[0] == 403 else None
        if held is not None and AnyUrl(redirect_uri) not in (held.client.redirect_uris or ()):
            held = None

        async def show(link: str) -> None:
            self._check_target(httpx2.URL(link))
            await redirect(link)

        async def result() -> AuthorizationCodeResult:
            answer = await callback()
            if "code" not in answer:
                why = _word(answer.get("error")) or "no reason given"
                raise LoginFailed(f"the login was declined ({why}).")
            return AuthorizationCodeResult.model_validate(dict(answer))

        provider = provider_for(
            self.url,
            _Held(held, _by_hand(client, redirect_uri) if client else None),
            show,
            result,
            redirect_uri=redirect_uri,
            client_metadata_url=client_document or None,
        )
        try:
            await self._run(provider, challenge or await self._ask_for_challenge(sse))
        except OAuthFlowError as fault:
            raise LoginFailed(f"the login cannot be trusted or completed: {str(fault)[:300]}.") from None
        except _UNUSABLE as fault:
            kind = type(fault).__name__
            raise LoginFailed(f"the authorization server cannot be used ({kind}); try again later.") from None
        grant = Grant.of(provider)
        if grant is None:
            raise LoginFailed("the authorization server gave no token.")
        self._challenge = None
        await self._keep(grant)

    async def _run(self, provider: OAuthClientProvider, challenge: Challenge | None) -> None:
        """Run a provider's flow up to the request that it is for, which is not sent; then, with a challenge,
        through what the flow does about that."""
        headers = {"MCP-Protocol-Version": LATEST_PROTOCOL_VERSION}
        aim = httpx2.Request("POST", self.url, headers=headers, content=b"")
        async with (
            httpx2.AsyncClient(timeout=_TIMEOUT) as client,
            aclosing(provider.async_auth_flow(aim)) as flow,
        ):
            step = await self._until(flow, await anext(flow), aim, client)
            if challenge is not None:
                status, header = challenge
                refusal = httpx2.Response(status, headers={"WWW-Authenticate": header}, request=step)
                await self._until(flow, await flow.asend(refusal), aim, client)

    async def _until(
        self,
        flow: AsyncGenerator[httpx2.Request, httpx2.Response],
        step: httpx2.Request,
        aim: httpx2.Request,
        client: httpx2.AsyncClient,
    ) -> httpx2.Request:
        while step is not aim:
            self._check_target(step.url)
            answer = await _fetch(client, step)
            if step.method == "POST" and (answer.status_code >= 500 or answer.status_code == 429):
                # The SDK takes it for a refusal, and would throw a good login away.
                raise OAuthFlowError(f"the authorization server has trouble (HTTP {answer.status_code})")
            try:
                step = await flow.asend(answer)
            except OAuthRegistrationError:
                raise LoginFailed(
                    f"the authorization server registers no clients by itself ({_why(answer)}); register "
                    'one there by hand and give it to the entry in mcp.json as "oauth": {"client_id": ..., '
                    '"client_secret": ...}, or a token as a header "Authorization".'
                ) from None
            except OAuthTokenError:  # its words may hold a token
                why = _why(answer)
                raise LoginFailed(f"the authorization server gave no token ({why}); try again.") from None
        return step

    async def _ask_for_challenge(self, sse: bool) -> Challenge:
        """Ask the server without a token, so that it says how to get one."""
        async with httpx2.AsyncClient(timeout=_TIMEOUT) as client, knock(client, self.url, sse) as answer:
            challenge = challenge_of(answer)
            if challenge is None:
                raise LoginFailed(f"the server does not ask for a login (HTTP {answer.status_code}).")
            return challenge

    def _check_target(self, url: httpx2.URL) -> None:
        """Secrets go over https, to the server's own origin, or stay on this machine as the server does."""
        if url.scheme == "https" or self.covers(url):
            return
        if _is_loopback(url.host) and _is_loopback(self._origin[1]):
            return
        raise OAuthFlowError(f"{url.scheme}://{url.host} is not an https address")

    def _take(self, grant: Grant | None) -> None:
        for secret in grant.secrets() if grant else ():
            self._logins.on_secret(secret)
        self._grant = grant

    async def _keep(self, grant: Grant | None) -> None:
        """Use a login from now on, and store it; None ends it."""
        self._take(grant)
        try:
            await self._logins.store.save(
                self.url, grant.model_dump(mode="json", exclude_none=True) if grant else None
            )
        except Exception as fault:  # noqa: BLE001 - whatever the store raises: the token itself is good
            log.error("a login cannot be stored and will be lost at the next start (%s)", fault)


class BearerAuth(httpx2.Auth):
    """Sends a login's token along, and renews it when the server does not take it any more."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        access = self._access
        token = await access.bearer() if access.covers(request.url) else None
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401 and token:
            renewed = await access.renew(token)
            if renewed and renewed != token:
                request.headers["Authorization"] = f"Bearer {renewed}"
                response = yield request
        access.note(response)


async def _fetch(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """An answer of bounded size. Redirects are left to the SDK's flow."""
    response = await client.send(request, stream=True, follow_redirects=False)
    try:
        body = bytearray()
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _LARGEST_ANSWER:
                raise OAuthFlowError(f"an answer of {request.url.host} has more than 1 MiB")
    finally:
        await response.aclose()
    about_body = ("content-encoding", "content-length", "transfer-encoding")
    kept = {name: value for name, value in response.headers.items() if name not in about_body}
    whole = httpx2.Response(response.status_code, headers=kept, content=bytes(body), request=request)
    whole.next_request = response.next_request
    return whole


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _why(answer: httpx2.Response) -> str:
    """The HTTP status, and the error's name as the protocol spells it; the rest may hold anything."""
    try:
        error = json.loads(answer.content).get("error", "")
    except (ValueError, AttributeError):
        error = ""
    word = _word(error)
    return f"HTTP {answer.status_code}, {word}" if word else f"HTTP {answer.status_code}"


def _word(error: Any) -> str:
    fits = isinstance(error, str) and error.replace("_", "").isalnum() and error.isascii() and len(error) < 50
    return error if fits else ""
