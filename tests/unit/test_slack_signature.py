"""Only Slack can speak as Slack: what is not signed, stale, forged or replayed never gets in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from aiohttp import ClientSession, web

from channels.slack.api import Api
from channels.slack.events import Events
from channels.slack.inbound import Identity
from tests.fakes.channel_env import MemoryState, memory_env
from tests.fakes.slack_socket import signature

SECRET = "fake-signing-secret-0123456789"
NOW = 1_700_000_000.0
EVENT = {
    "type": "event_callback",
    "team_id": "T0",
    "event": {"type": "message", "text": "hi", "ts": "1.000001"},
}


class Listener:
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.fail = False

    async def message(self, event: dict[str, Any]) -> None:
        if self.fail:
            raise RuntimeError("the store is full")
        self.got.append(event)

    async def notice(self, event: dict[str, Any]) -> None:
        self.got.append(event)

    async def interaction(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        self.got.append(payload)
        return {"response_action": "clear"} if payload["type"] == "view_submission" else None

    async def command(self, form: dict[str, Any]) -> dict[str, Any] | None:
        self.got.append(form)
        return None


class Door:
    """The route of the Events API behind a real server."""

    def __init__(self, url: str, client: ClientSession, listener: Listener, events: Events) -> None:
        self.url, self.client, self.listener, self.events = url, client, listener, events

    async def post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str]:
        async with self.client.post(self.url, data=body, headers=headers) as response:
            return response.status, await response.text()


def signed(
    body: bytes, at: float = NOW, secret: str = SECRET, kind: str = "application/json"
) -> dict[str, str]:
    timestamp = str(int(at))
    return {
        "Content-Type": kind,
        "X-Slack-Request-Timestamp": timestamp,
        "X-Slack-Signature": signature(secret, timestamp, body),
    }


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    from dataclasses import replace

    env = replace(memory_env(tmp_path, MemoryState()), clock=lambda: NOW)
    api = await Api.connect("xoxb-1", "http://127.0.0.1:1")
    events = await Events.connect(api, env, Identity("U0BOT", "B0BOT", "T0"), SECRET, "slack")
    listener = Listener()
    events.bind(listener)
    app = web.Application()
    app.router.add_post("/channels/slack/events", events.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/channels/slack/events"
    async with ClientSession() as client:
        yield Door(url, client, listener, events)
    await events.close()
    await runner.cleanup()
    await api.close()


BODY = json.dumps(EVENT).encode()


async def test_a_signed_event_gets_in(door: Door) -> None:
    assert (await door.post(BODY, signed(BODY)))[0] == 200
    assert [e["text"] for e in door.listener.got] == ["hi"]


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in signed(BODY).items() if key != name}


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json"},
        without("X-Slack-Signature"),
        without("X-Slack-Request-Timestamp"),
        signed(BODY, secret="another"),
        signed(BODY + b" "),
        signed(BODY, NOW - 301),
        signed(BODY, NOW + 301),
        {**signed(BODY), "X-Slack-Request-Timestamp": str(int(NOW) + 1)},
        {**signed(BODY), "X-Slack-Request-Timestamp": "now"},
        {**signed(BODY), "X-Slack-Request-Timestamp": "1" * 400},
        {**signed(BODY), "X-Slack-Signature": ""},
        {**signed(BODY), "X-Slack-Signature": "v0="},
        {**signed(BODY), "X-Slack-Signature": "v0=é"},
        {**signed(BODY), "X-Slack-Signature": "v1" + signed(BODY)["X-Slack-Signature"][2:]},
        {**signed(BODY), "X-Slack-Signature": signed(BODY)["X-Slack-Signature"].upper()},
        {**signed(BODY, secret="another"), "X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_timeout"},
    ],
)
async def test_unsigned_stale_and_forged_requests_are_refused(door: Door, headers: dict[str, str]) -> None:
    status, _ = await door.post(BODY, headers)
    assert status == 401
    assert door.listener.got == []


async def test_a_body_that_is_no_text_is_refused_or_useless(door: Door) -> None:
    body = b"\xff\xfe{}"
    assert (await door.post(body, signed(body)))[0] in (400, 401)
    assert door.listener.got == []


@pytest.mark.parametrize("kind", ["event", "button", "command"])
async def test_a_replayed_request_is_refused(door: Door, kind: str) -> None:
    form = "application/x-www-form-urlencoded"
    press = {"type": "block_actions", "actions": [{"type": "button", "action_id": "a", "block_id": "b"}]}
    body, headers = {
        "event": (BODY, signed(BODY)),
        "button": (urlencode({"payload": json.dumps(press)}).encode(), {}),
        "command": (b"command=%2Fcauseway&text=hi&team_id=T0", {}),
    }[kind]
    headers = headers or signed(body, kind=form)
    assert (await door.post(body, headers))[0] == 200
    first = len(door.listener.got)
    assert first == 1
    for _ in range(2):
        assert (await door.post(body, headers))[0] == 401
    assert len(door.listener.got) == first


async def test_what_was_not_taken_may_come_again_with_the_same_signature(door: Door) -> None:
    door.listener.fail = True
    assert (await door.post(BODY, signed(BODY)))[0] == 500
    door.listener.fail = False
    again = {**signed(BODY), "X-Slack-Retry-Num": "1", "X-Slack-Retry-Reason": "http_error"}
    assert (await door.post(BODY, again))[0] == 200
    assert len(door.listener.got) == 1


async def test_slack_can_verify_the_address_before_the_bot_is_signed_in(door: Door) -> None:
    door.events.open = False
    body = json.dumps({"type": "url_verification", "challenge": "abc", "token": "t"}).encode()
    status, text = await door.post(body, signed(body))
    assert (status, json.loads(text)) == (200, {"challenge": "abc"})
    assert (await door.post(body, {"Content-Type": "application/json"}))[0] == 401


async def test_an_event_before_the_bot_is_signed_in_is_asked_for_again(door: Door) -> None:
    door.events.open = False
    assert (await door.post(BODY, signed(BODY)))[0] == 503
    door.events.open = True
    assert (await door.post(BODY, signed(BODY)))[0] == 200


async def test_a_check_of_the_certificate_is_answered_and_lets_nothing_in(door: Door) -> None:
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert (await door.post(b"ssl_check=1&token=x", headers))[0] == 200
    assert (await door.post(b"ssl_check=1&command=%2Fcauseway&text=x", headers))[0] == 401
    assert (await door.post(b"ssl_check=1&payload=%7B%7D", headers))[0] == 401
    assert door.listener.got == []


@pytest.mark.parametrize("body", [b"", b"[]", b"nothing", b"7", b'"x"'])
async def test_a_signed_body_that_is_nothing_of_slacks_is_a_bad_request(door: Door, body: bytes) -> None:
    assert (await door.post(body, signed(body)))[0] == 400


async def test_a_body_without_end_is_cut_off(door: Door) -> None:
    body = b"x" * (1024 * 1024 + 1)
    assert (await door.post(body, signed(body)))[0] == 413


async def test_an_event_for_another_workspace_is_not_taken(door: Door) -> None:
    body = json.dumps({**EVENT, "team_id": "T9"}).encode()
    assert (await door.post(body, signed(body)))[0] == 503
    shared = {**EVENT, "team_id": "T9", "authorizations": [{"team_id": "T0"}]}
    body = json.dumps(shared).encode()
    assert (await door.post(body, signed(body)))[0] == 200


async def test_without_a_secret_nothing_is_authentic(door: Door, tmp_path: Path) -> None:
    api = await Api.connect("xoxb-1", "http://127.0.0.1:1")
    events = await Events.connect(api, memory_env(tmp_path), Identity("U0BOT"), "", "slack")
    assert not events._verify(BODY, str(int(NOW)), signature("", str(int(NOW)), BODY))
    await api.close()


async def test_a_dialogs_answer_goes_back_to_slack(door: Door) -> None:
    view = {"type": "modal", "callback_id": "x"}
    body = urlencode({"payload": json.dumps({"type": "view_submission", "view": view})}).encode()
    status, text = await door.post(body, signed(body, kind="application/x-www-form-urlencoded"))
    assert (status, json.loads(text)) == (200, {"response_action": "clear"})


async def test_kinds_that_nobody_knows_are_taken_and_ignored(door: Door) -> None:
    for payload in ({"type": "app_rate_limited", "team_id": "T0"}, {"type": "novelty"}):
        body = json.dumps(payload).encode()
        assert (await door.post(body, signed(body)))[0] == 200
    assert door.listener.got == []
