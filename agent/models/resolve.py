"""From configuration to a model: which one, with which key, at which address."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import aiohttp
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from agent.models.anthropic import AnthropicModel
from agent.models.base import Model
from agent.models.demo import DemoModel
from agent.models.failover import FailoverModel
from agent.models.openai import DEFAULT_BASE_URL, OpenAIModel
from agent.models.transcription import TranscriptionSettings

log = logging.getLogger("causeway.models")

#: Taken when no name is given; what the SDKs' own examples use in late 2026.
DEFAULT_OPENAI = "gpt-5.5"
DEFAULT_ANTHROPIC = "claude-sonnet-5-5"
OLLAMA = "http://127.0.0.1:11434"
#: Seconds that a look for a local Ollama may take, and a question for the models of a configured server.
PROBE_OLLAMA = 0.3
PROBE_MODELS = 5.0
#: Bytes of a list of models that are read.
LARGEST_LIST = 4 * 1024 * 1024


class Price(BaseModel):
    """What a million tokens of a model cost. `cached`: for those that the provider had cached."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(default=0.0, ge=0)
    output: float = Field(default=0.0, ge=0)
    cached: float | None = Field(default=None, ge=0)


class ModelSettings(BaseModel):
    """The `model:` part of config.yaml.

    `timeout` is the longest silence of a model in seconds. A failed call that may succeed later is tried
    again up to `max_attempts` times in all, within `retry_budget` seconds.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: Literal["auto", "openai", "anthropic", "demo"] = "auto"
    name: str = ""
    base_url: str = ""
    api_key: SecretStr | None = None
    max_tokens: int | None = Field(default=None, ge=1, le=1_000_000)
    timeout: float = Field(default=120.0, gt=0, le=3600)
    retry_budget: float = Field(default=60.0, ge=0, le=3600)
    max_attempts: int = Field(default=4, ge=1, le=20)
    #: Asked in this order when this model is down or its key is refused. Their own retry settings do not
    #: count: the first model's do.
    fallbacks: tuple[ModelSettings, ...] = Field(default=(), max_length=5)
    #: Where voice messages are written down; without it the agent is told that there is one.
    transcription: TranscriptionSettings | None = None
    #: What a million tokens cost, by model name, for `/usage`; in any one currency.
    prices: dict[str, Price] = Field(default_factory=dict)


class ModelSetupError(ValueError):
    """The settings do not lead to a model; the message says what to change."""


async def resolve(settings: ModelSettings, environ: Mapping[str, str], *, ollama: str = OLLAMA) -> Model:
    """The model that the settings and the environment name. Raises ModelSetupError.

    `auto` takes, in this order: what `base_url`, `api_key` or `name` point to, OPENAI_API_KEY (or
    OPENAI_BASE_URL), ANTHROPIC_API_KEY, an Ollama at `ollama`, the demo. OPENAI_BASE_URL and
    ANTHROPIC_BASE_URL stand in for a missing `base_url`.
    """
    models = [await _resolve_one(settings, environ, ollama)]
    for number, fallback in enumerate(settings.fallbacks):
        try:
            models.append(await resolve(fallback, environ, ollama=ollama))
        except ModelSetupError as error:
            raise ModelSetupError(f"model.fallbacks[{number}]: {error}") from None
    return FailoverModel(models) if settings.fallbacks else models[0]


async def _resolve_one(settings: ModelSettings, environ: Mapping[str, str], ollama: str) -> Model:
    provider = settings.provider
    if provider == "auto":
        provider = choose(settings, environ)
        if provider == "demo" and (local := await _ollama(ollama, settings)) is not None:
            return local
    if provider == "demo":
        log.info("Model: the embedded demo. Set OPENAI_API_KEY or ANTHROPIC_API_KEY for a real one.")
        return DemoModel()
    return await (_openai if provider == "openai" else _anthropic)(settings, environ)


def choose(settings: ModelSettings, environ: Mapping[str, str]) -> Literal["openai", "anthropic", "demo"]:
    """What `auto` means before a local server is looked for; "demo" when nothing is configured."""
    openai = bool(_value(environ, "OPENAI_API_KEY") or _value(environ, "OPENAI_BASE_URL"))
    anthropic = bool(_value(environ, "ANTHROPIC_API_KEY"))
    if settings.base_url:
        parts = urlsplit(settings.base_url)
        return "anthropic" if "anthropic" in (parts.hostname or "") + parts.path else "openai"
    if key := _key(settings, {}, ""):  # of the settings alone
        return "anthropic" if key.startswith("sk-ant-") else "openai"
    if openai and anthropic:
        return "anthropic" if settings.name.lower().startswith("claude") else "openai"
    return "openai" if openai else "anthropic" if anthropic else "demo"


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _key(settings: ModelSettings, environ: Mapping[str, str], name: str) -> str:
    own = settings.api_key.get_secret_value().strip() if settings.api_key else ""
    return own or _value(environ, name)


def _url(settings: ModelSettings, environ: Mapping[str, str], name: str) -> str:
    url = settings.base_url.strip() or _value(environ, name)
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname):
        where = "model.base_url" if settings.base_url else name
        raise ModelSetupError(f"{where} is no web address: write it like https://host/v1")
    return url


async def _openai(settings: ModelSettings, environ: Mapping[str, str]) -> Model:
    key = _key(settings, environ, "OPENAI_API_KEY")
    url = _url(settings, environ, "OPENAI_BASE_URL") or DEFAULT_BASE_URL
    official = (urlsplit(url).hostname or "") == "api.openai.com"
    if official and not key:
        raise ModelSetupError(
            "The provider openai needs a key: set OPENAI_API_KEY in the environment or model.api_key in "
            "the configuration. A local server needs only model.base_url."
        )
    name = settings.name or (DEFAULT_OPENAI if official else await _first_model(url, key))
    return _made(OpenAIModel, name, key, url, settings)


async def _anthropic(settings: ModelSettings, environ: Mapping[str, str]) -> Model:
    key = _key(settings, environ, "ANTHROPIC_API_KEY")
    if not key:
        raise ModelSetupError(
            "The provider anthropic needs a key: set ANTHROPIC_API_KEY in the environment or model.api_key "
            "in the configuration."
        )
    url = _url(settings, environ, "ANTHROPIC_BASE_URL")
    return _made(AnthropicModel, settings.name or DEFAULT_ANTHROPIC, key, url, settings)


def _made(
    kind: type[OpenAIModel] | type[AnthropicModel], name: str, key: str, url: str, settings: ModelSettings
) -> Model:
    try:
        model = kind(
            name,
            api_key=key,
            base_url=url or None,
            max_tokens=settings.max_tokens,
            timeout=settings.timeout,
        )
    except ValueError as error:
        raise ModelSetupError(str(error)) from None
    log.info("Model: %s at %s", name, urlsplit(url).hostname or "the provider's own address")
    return model


async def _ollama(root: str, settings: ModelSettings) -> Model | None:
    """The first model of a local Ollama, or the named one; None when none answers or it has no model."""
    names = await _listed(f"{root}/api/tags", {}, PROBE_OLLAMA, "models", "name")
    if not names:
        return None
    return _made(OpenAIModel, settings.name or names[0], "", f"{root}/v1", settings)


async def _first_model(url: str, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    names = await _listed(f"{url.rstrip('/')}/models", headers, PROBE_MODELS, "data", "id")
    if not names:
        raise ModelSetupError(
            f"model.name is not set, and the server at {urlsplit(url).hostname} does not say which models it "
            "has. Set model.name."
        )
    return names[0]


async def _listed(url: str, headers: Mapping[str, str], seconds: float, key: str, name: str) -> list[str]:
    """The names in the list under `key` of the JSON at an address; none when there is none in that time."""
    try:
        async with (
            asyncio.timeout(seconds),
            aiohttp.ClientSession(trust_env=False) as session,
            session.get(url, headers=headers, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                return []
            body = bytearray()
            async for chunk in answer.content.iter_chunked(65_536):
                body += chunk
                if len(body) > LARGEST_LIST:
                    return []
            found = json.loads(body)[key]
            return [str(one[name]) for one in found if isinstance(one, dict) and one.get(name)]
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, LookupError):
        # Nothing there, or nothing that we understand: the caller says what follows.
        return []
