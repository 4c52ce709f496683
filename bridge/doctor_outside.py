"""Looking from outside at what a bridge depends on: models, and the accounts of channels. For `doctor`, and
for `init` before it writes anything down."""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Literal

from agent.models.base import Completed, Model, ModelError, Request
from agent.models.resolve import ModelSettings, ModelSetupError, resolve
from bridge import texts
from bridge.store import open_store
from bridge.texts import text
from channels.base import ChannelConfig, ChannelError, Env, Finding
from channels.registry import EXTRAS, load

Level = Literal["ok", "warning", "error"]
#: Seconds for a model's answer, and for a channel's check.
PROBE, CHANNEL = 60.0, 45.0


def finding(level: Level, key: str, language: str, values: Mapping[str, object]) -> Finding:
    cure = f"doctor.{key}.cure"
    return Finding(
        level,
        text(f"doctor.{key}", language, **values),
        text(cure, language, **values) if cure in texts.keys() else "",  # noqa: SIM118 (a function)
    )


async def look_at_model(
    settings: ModelSettings, environ: Mapping[str, str], language: str, *, probe: bool
) -> Finding:
    """Whether the settings lead to a model, and with `probe` whether that one answers a tiny question."""
    try:
        # Enough for a model that thinks before it speaks, and little to pay for.
        model = await resolve(settings.model_copy(update={"max_tokens": 512}), environ)
    except ModelSetupError as error:
        return finding("error", "model.setup", language, {"reason": error})
    try:
        if model.name == "demo":
            return finding("warning", "model.demo", language, {})
        if not probe:
            return finding("ok", "model", language, {"name": model.name})
        return await _probed(model, language)
    finally:
        await model.close()


async def _probed(model: Model, language: str) -> Finding:
    from agent.history import User

    began = time.monotonic()
    request = Request("Answer with one word.", [User("doctor", "Say OK.")], (), lambda image: b"")
    try:
        async with asyncio.timeout(PROBE):
            async for delta in model.stream(request):
                if isinstance(delta, Completed):
                    ms = round((time.monotonic() - began) * 1000)
                    return finding("ok", "model.answers", language, {"name": model.name, "ms": ms})
    except ModelError as error:
        key = f"model.{error.kind}" if error.kind in ("unauthorised", "connection") else "model.fails"
        return finding("error", key, language, {"name": model.name, "reason": error.detail[:300]})
    except TimeoutError:
        pass
    return finding("error", "model.silent", language, {"name": model.name, "seconds": round(PROBE)})


async def look_at_channel(
    name: str, settings: ChannelConfig, public_url: str, language: str, groups: Sequence[str] = ()
) -> list[Finding]:
    """What a channel's own check finds, on one that is never started and whose notes are thrown away."""
    kind = settings.type or name
    cls = load(kind)
    if missing := missing_packages(kind):
        values = {"names": ", ".join(missing), "extra": EXTRAS.get(kind, kind)}
        return [finding("error", "packages", language, values)]
    texts.add(cls.texts)
    with tempfile.TemporaryDirectory(prefix="causeway-doctor-") as folder:
        store = open_store("sqlite:///check.db", Path(folder))
        await store.open()
        try:
            env = Env(store.channel_state(name), text, Path(folder), time.time, public_url=public_url)
            async with asyncio.timeout(CHANNEL):
                found = await cls(name, settings, env).check(language)
                if kind == "telegram" and groups and not any(one.level == "error" for one in found):
                    # The contract of channels has no question about single groups.
                    from channels.telegram.check import check_groups

                    found += await check_groups(name, settings, env, groups, language)  # type: ignore[arg-type]
        except TimeoutError:
            return [finding("error", "late", language, {"seconds": round(CHANNEL)})]
        finally:
            await store.close()
    return found or [finding("ok", "channel", language, {})]


def missing_packages(kind: str) -> list[str]:
    """Packages of a channel type's extra that are not installed."""
    try:
        wanted = requires("causeway") or []
    except PackageNotFoundError:  # run from a bare source tree: the channel itself says what it lacks
        return []
    extra = EXTRAS.get(kind, kind)
    names = [
        match[0]
        for line in wanted
        if re.search(rf"extra == ['\"]{extra}['\"]", line)
        and (match := re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line))
    ]
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


async def invite_link(name: str, settings: ChannelConfig, code: str) -> str:
    """A link that opens the chat with the code in it, where the platform has such links."""
    if (settings.type or name) != "telegram":
        return ""
    # The contract of channels has no word for this.
    from channels.telegram.api import Api, ApiError
    from channels.telegram.config import TelegramConfig, account

    assert isinstance(settings, TelegramConfig)
    try:
        bot = account(name, settings)
        api = await Api.connect(bot.token, bot.root, bot.proxy)
    except ChannelError:
        return ""  # the doctor has said so
    try:
        me = await api.call("getMe", 10.0)
        return f"https://t.me/{me['username']}?start={code}"
    except (ApiError, KeyError):
        return ""
    finally:
        await api.close()
