"""Webhook mode: the fake Bot API delivers over HTTP to the channel's own route."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from channels.base import Inbound
from channels.telegram.channel import TelegramChannel
from tests.fakes.llm import Say, ScriptedModel, Seen, free_port
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.fakes.telegram_webhook import SECRET as HEADER
from tests.harness import bridge as whole_bridge
from tests.harness import openai_at
from tests.integration.telegram_support import Bridge, shorten_pauses

SECRET = "s3cret_-"


@pytest.fixture
async def fake() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as server:
        server.local = True
        yield server


@pytest.fixture
def bridge(tmp_path: Path) -> Bridge:
    return Bridge(tmp_path)


@asynccontextmanager
async def gateway(
    fake: FakeTelegram, bridge: Bridge, name: str = "one", **settings: Any
) -> AsyncIterator[tuple[TelegramChannel, str]]:
    """A channel in webhook mode behind an HTTP server of its own; the address of its route."""
    app = web.Application()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    handlers: dict[str, Any] = {}

    async def forward(request: web.Request) -> web.StreamResponse:
        response: web.StreamResponse = await handlers["it"](request)
        return response

    app.router.add_post("/channels/tg/webhook", forward)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    bridge.public_url = root if bridge.public_url == "" else bridge.public_url
    settings = {"mode": "webhook", "webhook_secret": SECRET, **settings}
    channel = bridge.make(fake.url, gateway=name, **settings)
    (route,) = channel.routes()
    assert (route.method, route.path) == ("POST", "/channels/tg/webhook")
    handlers["it"] = route.handler
    await channel.start(bridge.receive)
    try:
        yield channel, f"{root}/channels/tg/webhook"
    finally:
        await channel.stop()
        await runner.cleanup()


def update(number: int, text: str = "hi", chat: int = 5) -> dict[str, Any]:
    user = {"id": chat, "is_bot": False, "first_name": "Ann"}
    place = {"id": chat, "type": "private", "first_name": "Ann"}
    message = {"message_id": number, "date": 1, "chat": place, "from": user, "text": text}
    return {"update_id": number, "message": message}


async def post(url: str, body: Any, secret: str | None = SECRET) -> int:
    headers = {HEADER: secret} if secret is not None else {}
    data = body if isinstance(body, bytes) else None
    async with aiohttp.ClientSession() as client:
        async with client.post(url, data=data, json=None if data else body, headers=headers) as response:
            return response.status


async def test_telegram_is_told_the_address_and_delivers_to_it(fake: FakeTelegram, bridge: Bridge) -> None:
    async with gateway(fake, bridge) as (channel, url):
        fake.say(5, "hello")
        await fake.wait_for(lambda: bridge.texts == ["hello"])
        await fake.wait_for(lambda: channel.health().ok)
        (call,) = fake.called("setWebhook")
        assert call.params == {
            "url": url,
            "secret_token": SECRET,
            "max_connections": "100",
            "allowed_updates": ["message", "callback_query", "my_chat_member"],
            "drop_pending_updates": False,
        }
        assert not fake.called("getUpdates")
        await fake.wait_for(lambda: not fake.updates)
    assert fake.webhook == url  # other gateways, or the next start, go on with it


@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + "x", "é"])
async def test_a_delivery_without_the_secret_is_401_and_not_read(
    fake: FakeTelegram, bridge: Bridge, secret: str | None
) -> None:
    async with gateway(fake, bridge) as (channel, url):
        await fake.wait_for(lambda: channel.health().ok)
        assert await post(url, update(1), secret) == 401
        assert bridge.got == []
        assert await post(url, update(1)) == 200
        assert bridge.texts == ["hi"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"message": {}}', 400),
        (b"[" * 50_000, 400),
        (b"\xff\xfe", 400),
        (b" " * (1024 * 1024 + 1), 413),
        (b'{"update_id": 7, "message": {"message_id": 1}}', 200),
        (b'{"update_id": 8, "something_new": {}}', 200),
    ],
)
async def test_what_is_no_update_is_refused_and_an_odd_update_is_passed_over(
    fake: FakeTelegram, bridge: Bridge, body: bytes, status: int
) -> None:
    async with gateway(fake, bridge) as (channel, url):
        await fake.wait_for(lambda: channel.health().ok)
        assert await post(url, body) == status
        assert bridge.got == []


async def test_an_update_is_acknowledged_only_when_it_is_stored(fake: FakeTelegram, bridge: Bridge) -> None:
    times = 0

    def refuse(_: Inbound) -> bool:
        nonlocal times
        times += 1
        return times <= 2

    bridge.refuse = refuse
    async with gateway(fake, bridge):
        for text in ("one", "two"):
            fake.say(5, text)
        await fake.wait_for(lambda: not fake.updates)
        assert bridge.texts == ["one", "two"]
        assert fake.hook is not None
        assert fake.hook.statuses == [503, 503, 200, 200]


async def test_a_chat_that_is_slow_to_be_stored_holds_no_other_back(
    fake: FakeTelegram, bridge: Bridge
) -> None:
    go = asyncio.Event()
    take = bridge.receive

    async def receive(inbound: Inbound) -> None:
        if inbound.address.chat == "5":
            await go.wait()
        await take(inbound)

    bridge.receive = receive  # type: ignore[method-assign]
    async with gateway(fake, bridge):
        for chat in (5, 6, 7):
            for n in range(3):
                fake.say(chat, f"{chat}.{n}")
        await fake.wait_for(lambda: len(bridge.got) == 6)
        go.set()
        await fake.wait_for(lambda: not fake.updates)
        assert [text for text in bridge.texts if text.startswith("5")] == ["5.0", "5.1", "5.2"]


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_duplicates_and_any_order_among_chats_leave_each_chat_in_order(
    fake: FakeTelegram, bridge: Bridge, seed: int
) -> None:
    noise = random.Random(seed)
    bridge.refuse = lambda _: noise.random() < 0.2
    fake.noise = noise
    async with gateway(fake, bridge):
        for n in range(6):
            for chat in range(1, 31):
                fake.say(chat, f"{n}")
        await fake.wait_for(lambda: not fake.updates, 30)
    for chat in range(1, 31):
        seen = {i.id: i.text for i in bridge.got if i.address.chat == str(chat)}  # as the bridge does
        assert list(seen.values()) == [str(n) for n in range(6)]
    assert len(bridge.got) > 180  # there were duplicates


async def test_any_number_of_gateways_serve_one_bot(fake: FakeTelegram, bridge: Bridge) -> None:
    bridge.public_url = "https://bot.example.org"
    fake.local = False  # nothing is delivered by itself: the balancer is this test
    async with gateway(fake, bridge, "one") as (one, first), gateway(fake, bridge, "two") as (two, second):
        await fake.wait_for(lambda: one.health().ok and two.health().ok)
        assert {c.params["url"] for c in fake.called("setWebhook")} == {
            "https://bot.example.org/channels/tg/webhook"
        }
        assert await asyncio.gather(*(post(url, update(n)) for n, url in enumerate([first, second] * 4))) == (
            [200] * 8
        )
        assert len(bridge.got) == 8
        await one.pause()
        assert [await post(first, update(9)), await post(second, update(9))] == [503, 200]


async def test_before_the_bot_knows_itself_deliveries_wait_at_telegram(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    fault = fake.fail("getMe", 502, html=True, times=10**6)
    async with gateway(fake, bridge) as (channel, url):
        await fake.wait_for(lambda: len(fake.called("getMe")) > 2)
        assert not channel.health().ok
        assert await post(url, update(1)) == 503
        fault.times = 0
        await fake.wait_for(lambda: channel.health().ok)
        assert await post(url, update(1)) == 200


async def test_without_a_public_address_the_cure_is_told_and_a_webhook_set_by_hand_serves(
    fake: FakeTelegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr("channels.telegram.webhook._RECHECK", 0.05)
    bridge = Bridge(tmp_path)
    channel = bridge.make(fake.url, mode="webhook", webhook_secret=SECRET)
    await channel.start(bridge.receive)
    try:
        await fake.wait_for(lambda: "public address" in channel.health().reason)
        assert not channel.health().ok
        assert "server.public_url" in channel.health().cure
        assert not fake.called("setWebhook")
        fake.webhook = "https://bot.example.org/somewhere/channels/tg/webhook"
        await fake.wait_for(lambda: channel.health().ok)
    finally:
        await channel.stop()


async def test_telegrams_refusal_of_the_address_is_shown_and_tried_again(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr("channels.telegram.webhook._REFUSED_PAUSE", 0.05)
    fake.local = False  # then TLS is demanded
    async with gateway(fake, bridge) as (channel, _url):
        await fake.wait_for(lambda: "HTTPS URL must be provided" in channel.health().reason)
        await fake.wait_for(lambda: not channel.health().ok)
        assert "server.public_url" in channel.health().cure
        fake.local = True
        await fake.wait_for(lambda: channel.health().ok)


async def test_what_telegram_cannot_deliver_makes_the_channel_unhealthy_until_it_can(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    monkeypatch.setattr("channels.telegram.webhook._RECHECK", 0.05)
    async with gateway(fake, bridge) as (channel, url):
        await fake.wait_for(lambda: channel.health().ok)
        assert fake.hook is not None
        assert fake.deliveries is not None
        await fake.deliveries.stop()  # the way is cut off
        fake.deliveries = None
        fake.hook.error, fake.hook.error_date = "SSL error", int(time.time())
        fake.push({"message": update(3)["message"]})
        await fake.wait_for(lambda: "SSL error" in channel.health().reason and not channel.health().ok)
        assert url in channel.health().cure
        fake.hook.error_date -= 5
        assert await post(url, update(3)) == 200
        await fake.wait_for(lambda: channel.health().ok)


async def test_a_webhook_that_somebody_changed_is_set_anew(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.telegram.webhook._RECHECK", 0.05)
    async with gateway(fake, bridge) as (channel, url):
        await fake.wait_for(lambda: channel.health().ok)
        fake.webhook = ""
        await fake.wait_for(lambda: fake.webhook == url)


async def test_after_webhook_mode_polling_removes_the_webhook_and_goes_on(
    fake: FakeTelegram, bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_pauses(monkeypatch)
    async with gateway(fake, bridge) as (channel, _url):
        await fake.wait_for(lambda: channel.health().ok)
    fake.say(5, "in between")
    channel = await bridge.open(fake.url)
    await fake.wait_for(lambda: bridge.texts == ["in between"])
    assert (fake.webhook, await bridge.state.get("webhook")) == ("", None)
    await bridge.close()


async def test_the_whole_bridge_answers_noisy_deliveries_once_and_in_order_over_a_restart(
    fake: FakeTelegram, tmp_path: Path
) -> None:
    def echo(seen: Seen) -> Say:
        """Says again all that came since the last answer."""
        messages = seen.body["messages"]
        last = max((n for n, m in enumerate(messages) if m["role"] == "assistant"), default=-1)
        words = [word for m in messages[last + 1 :] for word in re.findall(r"word\d", str(m["content"]))]
        return Say(" ".join(words))

    fake.noise = random.Random(1)
    port = free_port()
    root = f"http://127.0.0.1:{port}"
    chats = range(1, 21)
    async with ScriptedModel(echo).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "server": {"port": port, "public_url": root},
            "channels": {
                "telegram": {
                    "token": TOKEN,
                    "base_url": fake.url,
                    "mode": "webhook",
                    "webhook_secret": SECRET,
                }
            },
            "access": {"telegram": {"direct": "open"}},
        }

        def say(word: str) -> None:
            for chat in chats:
                fake.say(chat, word)

        async with whole_bridge(tmp_path, settings):
            for n in range(2):
                say(f"word{n}")
            await fake.wait_for(lambda: "word0" in fake.chats[7].text)
        say("word2")
        async with whole_bridge(tmp_path, settings):
            say("word3")
            await fake.wait_for(lambda: all("word3" in fake.chats[chat].text for chat in chats), 30)
            await fake.wait_for(lambda: not fake.updates)
            for chat in chats:
                assert " ".join(fake.chats[chat].texts).split() == [f"word{n}" for n in range(4)]
