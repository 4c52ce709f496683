"""What `doctor` and `init` find out about an official account."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from channels.base import Channel, Env, Finding
from channels.wechat.api import Api, ApiError, close_quietly, import_slow_parts
from channels.wechat.config import WechatConfig, refuse_unusable
from channels.wechat.crypto import Envelope
from channels.wechat.service import NO_RIGHT, cure

_DEADLINE = 10.0
_IP = re.compile(r"(?<![\d.])(\d{1,3}(?:\.\d{1,3}){3})(?![\d.])")


async def check(
    channel: Channel, config: WechatConfig, env: Env, new_api: Callable[[], Api], language: str
) -> list[Finding]:
    """Findings in the order in which a person would mend things. Disturbs nothing: stable_token gives out the
    token that is valid already."""

    def say(key: str, **values: object) -> str:
        return env.text(f"wechat.check.{key}", language, **values)

    try:
        refuse_unusable(config, channel.name)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the settings is what is asked for
        fault = str(error).removeprefix(f"channels.{channel.name}.")
        return [Finding("error", say("setting", name=channel.name, fault=fault), say("setting.cure"))]
    await asyncio.to_thread(import_slow_parts)
    found = [] if config.keys else [Finding("warning", say("plain"), say("plain.cure"))]
    path = f"/channels/{channel.name}/callback"
    found += await _address(env.public_url, path, config, env, say)
    api = new_api()
    try:
        found += await _account(api, config, say)
    finally:
        await close_quietly(api)
    return found


async def _address(
    public: str, path: str, config: WechatConfig, env: Env, say: Callable[..., str]
) -> list[Finding]:
    if not public:
        return [Finding("warning", say("nourl", path=path), say("nourl.cure"))]
    url = public + path
    found = [Finding("ok", say("url", url=url))]
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    host = parts.hostname or ""
    if port not in (80, 443):
        found.append(Finding("error", say("port", port=port), say("port.cure")))
    if _private(host):
        found.append(Finding("error", say("private", host=host), say("private.cure")))
    reason = await asyncio.to_thread(_visit, url, config, env.clock())
    if reason:
        found.append(Finding("warning", say("unreached", reason=reason), say("unreached.cure")))
    else:
        found.append(Finding("ok", say("reached")))
    return found


def _private(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return host == "localhost" or "." not in host or host.endswith((".local", ".lan", ".internal"))


def _visit(url: str, config: WechatConfig, now: float) -> str:
    """Do the platform's URL check ourselves; returns what went wrong. Runs in a thread."""
    import requests

    envelope = Envelope(config.token.get_secret_value().strip(), (), "")
    echo, nonce, timestamp = secrets.token_hex(8), secrets.token_hex(4), str(int(now))
    query = {"timestamp": timestamp, "nonce": nonce, "echostr": echo}
    query["signature"] = envelope.sign(timestamp, nonce)
    try:
        answer = requests.get(url, params=query, timeout=_DEADLINE, allow_redirects=False)
    except requests.RequestException as error:
        return type(error).__name__
    if answer.status_code != 200:
        return f"HTTP {answer.status_code}"
    return "" if answer.text == echo else "it answers with something else"


async def _account(api: Api, config: WechatConfig, say: Callable[..., str]) -> list[Finding]:
    try:
        async with asyncio.timeout(3 * _DEADLINE):
            await api.service_accounts()
            error = None
    except ApiError as failed:
        error = failed
    except TimeoutError:
        return [Finding("error", say("token.failed", reason="the platform did not answer in time"))]
    if error is not None and (found := _account_fault(error, say)):
        return [found]
    findings = [Finding("ok", say("token"))]
    findings.append(_rights(error, config, say))
    if ping := await _ping(api, say):
        findings.append(ping)
    return findings


def _account_fault(error: ApiError, say: Callable[..., str]) -> Finding | None:
    """What keeps the account from calling at all."""
    if error.code == 40164:
        found = _IP.search(error.reason)
        ip = found[1] if found else "?"
        return Finding("error", say("ip", ip=ip), say("ip.cure", ip=ip))
    if error.code == 89503:
        return Finding("error", say("admin"), say("admin.cure"))
    if error.taken != "refused" or error.what == "stable_token":
        return Finding("error", say("token.failed", reason=str(error)), cure(error.code))
    return None


def _rights(error: ApiError | None, config: WechatConfig, say: Callable[..., str]) -> Finding:
    if error is None:
        return Finding("ok", say("service"))
    if error.code != NO_RIGHT:
        return Finding("warning", say("rights", reason=str(error)), cure(error.code))
    if config.mode == "customer_service":
        return Finding("error", say("forced"), say("forced.cure"))
    return Finding("ok", say("passive"))


async def _ping(api: Api, say: Callable[..., str]) -> Finding | None:
    """The platform's own look at the host of the callback URL that is set in its console."""
    try:
        async with asyncio.timeout(4 * _DEADLINE):
            seen: dict[str, Any] = await api.callback_check()
    except (ApiError, TimeoutError):
        return None  # not every account may ask; the other findings stand
    losses = [str(ping.get("package_loss", "")) for ping in seen.get("ping") or () if isinstance(ping, dict)]
    losses = [loss for loss in losses if loss]
    if not losses:
        return None
    worst = max(losses, key=lambda loss: float(loss.rstrip("%") or 0) if loss.rstrip("%").isdigit() else 0.0)
    if worst == "0%":
        return Finding("ok", say("pinged", loss=worst))
    return Finding("warning", say("unpinged", loss=worst), say("unpinged.cure"))
