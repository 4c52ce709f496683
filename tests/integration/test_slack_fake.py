"""The fake Slack itself: it refuses what Slack refuses, slack_bolt's own client is content with it, and
`emulate`, a Slack that nobody here wrote, answers the same where it covers the call."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from channels.slack.api import Api, ApiError
from tests.fakes.llm import NODE, free_port, require
from tests.fakes.slack import FakeSlack
from tests.fakes.slack_judge import pings, visible

EMULATE = NODE / "node_modules/emulate/dist/index.js"


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        yield server


@pytest.fixture
async def api(fake: FakeSlack) -> AsyncIterator[Api]:
    client = await Api.connect(fake.bot_token, fake.url)
    yield client
    await client.close()


async def refused(work: Awaitable[Any]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await work
    return caught.value


def section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text}}


def button(id: str, label: str = "Yes", **more: Any) -> dict[str, Any]:
    text = {"type": "plain_text", "text": label}
    return {"type": "button", "action_id": id, "text": text, "value": id, **more}


# -- messages ----------------------------------------------------------------------------------------


async def test_a_long_text_is_cut_when_posted_and_refused_when_updated(fake: FakeSlack, api: Api) -> None:
    fake.place("C1")
    posted = await api.call("chat.postMessage", channel="C1", text="x" * 50_000)
    assert len(fake.shown("C1").text) == 40_000
    update = api.call("chat.update", channel="C1", ts=posted["ts"], text="x" * 4001)
    assert (await refused(update)).error == "msg_too_long"
    await api.call("chat.update", channel="C1", ts=posted["ts"], text="x" * 4000)
    assert len(fake.shown("C1").text) == 4000


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ([{"type": "markdown", "text": "x" * 12_001}], "invalid_blocks"),
        (
            [{"type": "markdown", "text": "x" * 6001}, {"type": "markdown", "text": "y" * 6000}],
            "invalid_blocks",
        ),
        ([{"type": "markdown", "text": ""}], "invalid_blocks"),
        ([section("x" * 3001)], "invalid_blocks"),
        ([section("")], "invalid_blocks"),
        ([{"type": "divider"}] * 51, "invalid_blocks"),
        ([section("x" * 2900)] * 5, "msg_blocks_too_long"),
        ([{"type": "header", "text": {"type": "plain_text", "text": "x" * 151}}], "invalid_blocks"),
        ([{"type": "actions", "elements": [button(str(n)) for n in range(26)]}], "invalid_blocks"),
        ([{"type": "actions", "elements": [button("a"), button("a")]}], "invalid_blocks"),
        ([{"type": "actions", "elements": [button("a", "x" * 76)]}], "invalid_blocks"),
        ([{"type": "actions", "elements": [button("a", value="x" * 2001)]}], "invalid_blocks"),
        ([{"type": "actions", "elements": [button("a", style="green")]}], "invalid_blocks"),
        ([{"type": "novelty"}], "invalid_blocks"),
        ("no list", "invalid_blocks_format"),
        ([{"type": "divider"}] * 50, ""),
        ([{"type": "markdown", "text": "x" * 12_000}], ""),
        ([{"type": "actions", "elements": [button(str(n), "x" * 75) for n in range(25)]}], ""),
    ],
)
async def test_blocks_are_judged_by_slacks_limits(fake: FakeSlack, api: Api, blocks: Any, error: str) -> None:
    fake.place("C1")
    call = api.call("chat.postMessage", channel="C1", text="t", blocks=blocks)
    if error:
        assert (await refused(call)).error == error
        assert not fake.shown("C1").messages
    else:
        await call


@pytest.mark.parametrize(
    ("params", "error"),
    [
        ({"channel": "C404", "text": "x"}, "channel_not_found"),
        ({"channel": "C2", "text": "x"}, "not_in_channel"),
        ({"channel": "C3", "text": "x"}, "is_archived"),
        ({"channel": "C1"}, "no_text"),
        ({"channel": "C1", "text": "x", "markdown_text": "y"}, "markdown_text_conflict"),
        ({"channel": "C1", "markdown_text": "y" * 12_001}, "msg_too_long"),
        ({"channel": "C1", "text": "x", "thread_ts": "0"}, "invalid_thread_ts"),
        ({"channel": "C1", "text": "x", "thread_ts": 1.5}, "invalid_thread_ts"),
        ({"channel": "C1", "text": "x", "thread_ts": "1.000001"}, "thread_not_found"),
    ],
)
async def test_a_post_is_refused_with_slacks_own_words(
    fake: FakeSlack, api: Api, params: dict[str, Any], error: str
) -> None:
    for id in ("C1", "C2", "C3"):
        fake.place(id)
    fake.places["C2"].members.clear()
    fake.places["C3"].archived = True
    assert (await refused(api.call("chat.postMessage", **params))).error == error


async def test_a_reply_to_a_reply_is_refused(fake: FakeSlack, api: Api) -> None:
    root = fake.write("C1", "root")["ts"]
    reply = fake.write("C1", "reply", "U1", root)["ts"]
    call = api.call("chat.postMessage", channel="C1", text="x", thread_ts=reply)
    assert (await refused(call)).error == "cannot_reply_to_message"


async def test_only_the_bots_own_message_can_be_updated_and_only_while_it_is_there(
    fake: FakeSlack, api: Api
) -> None:
    persons = fake.write("C1", "mine")["ts"]
    own = (await api.call("chat.postMessage", channel="C1", text="x", blocks=[section("b")]))["ts"]
    assert visible(fake.shown("C1").messages[0]) == "b"
    assert (
        await refused(api.call("chat.update", channel="C1", ts=persons, text="y"))
    ).error == "cant_update_message"
    await api.call("chat.update", channel="C1", ts=own, text="only text")
    assert fake.shown("C1").texts == ["only text"]  # the blocks went with it
    whispered = await api.call("chat.postEphemeral", channel="C1", user="U1", text="psst")
    late = api.call("chat.update", channel="C1", ts=whispered["message_ts"], text="y")
    assert (await refused(late)).error == "message_not_found"
    fake.edit_window = 60
    fake.advance(61)
    assert (
        await refused(api.call("chat.update", channel="C1", ts=own, text="y"))
    ).error == "edit_window_closed"


async def test_pings_in_what_the_bot_shows_are_seen(fake: FakeSlack, api: Api) -> None:
    fake.place("C1")
    for text in ("<!channel>", "<!here|here>", "<!subteam^S1>", "<@U1>", "&lt;!channel&gt;", "plain"):
        await api.call("chat.postMessage", channel="C1", text=text)
    assert len(fake.shown("C1").pings) == 4
    assert pings({"text": "", "blocks": [{"type": "markdown", "text": "a <!everyone> b"}]})


# -- streams -----------------------------------------------------------------------------------------


async def started(fake: FakeSlack, api: Api, **more: Any) -> tuple[str, str]:
    root = fake.write("C1", "question")["ts"]
    recipient = {"recipient_user_id": "U1", "recipient_team_id": fake.team}
    answer = await api.call("chat.startStream", **{"channel": "C1", "thread_ts": root, **recipient, **more})
    return root, str(answer["ts"])


async def test_a_stream_grows_and_ends(fake: FakeSlack, api: Api) -> None:
    root, ts = await started(fake, api, markdown_text="one")
    task = {"type": "task_update", "id": "t1", "title": "Search", "status": "in_progress", "details": "a"}
    await api.call(
        "chat.appendStream", channel="C1", ts=ts, chunks=[task, {"type": "markdown_text", "text": "\ntwo"}]
    )
    await api.call(
        "chat.appendStream", channel="C1", ts=ts, chunks=[{**task, "status": "complete", "details": "b"}]
    )
    busy = api.call("chat.update", channel="C1", ts=ts, text="x")
    assert (await refused(busy)).error == "streaming_state_conflict"
    await api.call("chat.stopStream", channel="C1", ts=ts, markdown_text=" three")
    assert fake.thread("C1", root).texts == ["one\ntwothree"]  # the blank at the joint is lost
    (message,) = fake.thread("C1", root).messages
    assert message["_tasks"]["t1"] == {"title": "Search", "status": "complete", "details": "ab"}
    late = api.call("chat.appendStream", channel="C1", ts=ts, markdown_text="x")
    assert (await refused(late)).error == "message_not_in_streaming_state"
    await api.call("chat.update", channel="C1", ts=ts, text="whole")


async def test_a_stream_lives_five_minutes_and_appending_does_not_extend_it(
    fake: FakeSlack, api: Api
) -> None:
    _, ts = await started(fake, api)
    fake.advance(200)
    await api.call("chat.appendStream", channel="C1", ts=ts, markdown_text="a")
    fake.advance(107)
    for method in ("chat.appendStream", "chat.stopStream"):
        late = api.call(method, channel="C1", ts=ts, markdown_text="b")
        assert (await refused(late)).error == "message_not_in_streaming_state"


async def test_a_stream_that_its_reader_stopped_takes_nothing_more(fake: FakeSlack, api: Api) -> None:
    _, ts = await started(fake, api)
    fake.stop_stream("C1", ts)
    assert (
        await refused(api.call("chat.appendStream", channel="C1", ts=ts, markdown_text="b"))
    ).error == "stopped_by_user"


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"recipient_user_id": None}, "missing_recipient_user_id"),
        ({"recipient_team_id": None}, "missing_recipient_team_id"),
        ({"recipient_team_id": "T9"}, "team_not_found"),
        ({"thread_ts": "nonsense"}, "invalid_thread_ts"),
        ({"markdown_text": "x" * 12_001}, "msg_too_long"),
        (
            {"chunks": [{"type": "task_update", "id": "t", "title": "x" * 257, "status": "complete"}]},
            "invalid_chunks",
        ),
        ({"chunks": [{"type": "task_update", "id": "t", "title": "x", "status": "done"}]}, "invalid_chunks"),
    ],
)
async def test_a_stream_is_refused_with_slacks_own_words(
    fake: FakeSlack, api: Api, more: dict[str, Any], error: str
) -> None:
    assert (await refused(started(fake, api, **more))).error == error


# -- rights, rates, faults ---------------------------------------------------------------------------


async def test_a_missing_scope_is_named_with_what_there_is(fake: FakeSlack, api: Api) -> None:
    fake.place("C1")
    await api.call("auth.test")
    assert "chat:write" in api.scopes
    fake.scopes.discard("chat:write")
    error = await refused(api.call("chat.postMessage", channel="C1", text="x"))
    assert (error.error, error.needed) == ("missing_scope", "chat:write")
    assert "im:history" in error.provided


async def test_tokens_are_told_apart(fake: FakeSlack, api: Api) -> None:
    assert (await refused(api.call("apps.connections.open"))).error == "not_allowed_token_type"
    assert (await refused(api.call("auth.test", _token=fake.app_token))).error == "not_allowed_token_type"
    assert (await refused(api.call("auth.test", _token="xoxb-wrong"))).error == "invalid_auth"
    assert (await api.call("apps.connections.open", _token=fake.app_token))["url"].startswith("ws://")


async def test_a_channel_takes_so_many_posts_and_others_go_on(fake: FakeSlack, api: Api) -> None:
    fake.place("C1")
    fake.place("C2")
    fake.pace = (1.0, 2)
    for _ in range(2):
        await api.call("chat.postMessage", channel="C1", text="x")
    error = await refused(api.call("chat.postMessage", channel="C1", text="x"))
    assert (error.error, error.taken) == ("ratelimited", "refused")
    assert 0 < error.retry_after <= 1
    await api.call("chat.postMessage", channel="C2", text="x")
    fake.advance(1)
    await api.call("chat.postMessage", channel="C1", text="x")


@pytest.mark.parametrize(
    ("fault", "taken", "shown"),
    [
        ({"cut": "before"}, "maybe", 0),
        ({"cut": "after"}, "maybe", 1),
        ({"status": 503}, "refused", 0),
        ({"status": 504}, "maybe", 0),
        ({"error": "fatal_error"}, "maybe", 0),
        ({"error": "is_archived"}, "refused", 0),
    ],
)
async def test_what_an_outcome_means_is_told_and_no_call_is_repeated(
    fake: FakeSlack, api: Api, fault: dict[str, Any], taken: str, shown: int
) -> None:
    fake.place("C1")
    await api.call("auth.test")  # a connection that was kept open makes a repeat likely
    fake.fail("chat.postMessage", **fault)
    error = await refused(api.call("chat.postMessage", channel="C1", text="x"))
    assert (error.taken, len(fake.shown("C1").messages)) == (taken, shown)
    assert len(fake.called("chat.postMessage")) == 1


async def test_a_late_answer_is_unknown_and_no_server_is_certain(fake: FakeSlack, api: Api) -> None:
    fake.place("C1")
    fake.delay("chat.postMessage", 5.0)
    late = api.call("chat.postMessage", 0.1, channel="C1", text="x")
    assert (await refused(late)).taken == "maybe"
    nowhere = await Api.connect(fake.bot_token, f"http://127.0.0.1:{free_port()}")
    assert (await refused(nowhere.call("auth.test"))).taken == "no"
    await nowhere.close()


async def test_errors_hold_no_token(fake: FakeSlack, api: Api) -> None:
    fake.fail("auth.test", "invalid_auth")
    error = await refused(api.call("auth.test"))
    assert fake.bot_token not in repr(error) + str(error)


# -- files, views, triggers --------------------------------------------------------------------------


async def test_a_file_goes_up_in_three_steps(fake: FakeSlack, api: Api, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello")
    root = fake.write("C1", "root")["ts"]
    place = await api.call("files.getUploadURLExternal", filename="a.txt", length=5)
    early = api.call("files.completeUploadExternal", files=[{"id": place["file_id"]}], channel_id="C1")
    assert (await refused(early)).error == "file_not_found"
    await api.upload(place["upload_url"], path)
    files = [{"id": place["file_id"], "title": "a"}]
    await api.call(
        "files.completeUploadExternal", files=files, channel_id="C1", thread_ts=root, initial_comment="{see}"
    )
    (message,) = fake.thread("C1", root).messages
    assert (message["text"], message["files"][0]["name"]) == ("{see}", "a.txt")
    (sent,) = fake.called("upload")
    assert "Authorization" not in sent.params["headers"]
    assert (await refused(api.call("files.upload", content="x"))).error == "method_deprecated"


async def test_a_trigger_opens_one_dialog_within_three_seconds(fake: FakeSlack, api: Api) -> None:
    view = {"type": "modal", "title": {"type": "plain_text", "text": "Ask"}, "blocks": [section("x")]}
    used, old = fake.new_trigger(), fake.new_trigger()
    await api.call("views.open", trigger_id=used, view=view)
    assert (await refused(api.call("views.open", trigger_id=used, view=view))).error == "invalid_trigger_id"
    fake.advance(4)
    assert (await refused(api.call("views.open", trigger_id=old, view=view))).error == "expired_trigger_id"


# -- slack_bolt's own client is content with it ------------------------------------------------------


async def test_bolts_own_socket_client_is_served(fake: FakeSlack) -> None:
    from slack_bolt.adapter.socket_mode.aiohttp import AsyncSocketModeHandler
    from slack_bolt.async_app import AsyncApp
    from slack_sdk.web.async_client import AsyncWebClient

    app = AsyncApp(client=AsyncWebClient(fake.bot_token, base_url=f"{fake.url}/api/"))

    @app.event("message")
    async def hear(message: dict[str, Any], say: Callable[..., Awaitable[Any]]) -> None:
        if message["text"] == "ping":
            await say("pong")

    @app.command("/causeway")
    async def command(ack: Callable[..., Awaitable[Any]]) -> None:
        await ack("done")

    fake.echo = False
    handler = AsyncSocketModeHandler(app, fake.app_token)
    await handler.connect_async()
    fake.say("DU1", "ping")
    await fake.wait_for(lambda: fake.shown("DU1").texts == ["pong"])
    delivery = fake.command("DU1", "help")
    await fake.wait_for(lambda: delivery.done)
    assert delivery.response == {"text": "done"}
    await handler.close_async()


async def test_bolts_own_verifier_accepts_the_fakes_signatures(fake: FakeSlack) -> None:
    from slack_sdk.signature import SignatureVerifier

    body = json.dumps({"text": "é 你"}).encode()
    assert SignatureVerifier(fake.signing_secret).is_valid_request(body, fake.sockets.sign(body))
    assert not SignatureVerifier("another").is_valid_request(body, fake.sockets.sign(body))


# -- a second opinion --------------------------------------------------------------------------------


@dataclass
class Workspace:
    """A Slack with a bot, a person and a public channel that the bot is in."""

    api: Api
    channel: str
    person: str


@pytest.fixture
async def ours(fake: FakeSlack, api: Api) -> Workspace:
    fake.user("U1", "ann")
    fake.place("C1", members=["U1"])
    return Workspace(api, "C1", "U1")


@pytest.fixture
async def theirs(tmp_path: Path) -> AsyncIterator[Workspace]:
    require(EMULATE.is_file(), "emulate is not installed: npm ci in tests/node")
    seed = {
        "slack": {
            "users": [{"name": "ann", "real_name": "Ann", "email": "ann@example.org"}],
            "channels": [{"name": "house"}],
            "oauth_apps": [
                {
                    "client_id": "1.2",
                    "client_secret": "s",
                    "name": "Causeway",
                    "bot_name": "causeway",
                    "redirect_uris": ["http://127.0.0.1/x"],
                    "scopes": ["chat:write"],
                }
            ],
            "tokens": [{"token": "xoxb-test", "user": "causeway"}],
        }
    }
    path = tmp_path / "seed.yaml"
    path.write_text(yaml.safe_dump(seed), encoding="utf-8")
    port = free_port()
    root = f"http://127.0.0.1:{port}"
    process = await asyncio.create_subprocess_exec(
        *(
            "node",
            str(EMULATE),
            "start",
            "-p",
            str(port),
            "-s",
            "slack",
            "--base-url",
            root,
            "--seed",
            str(path),
        ),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        start_new_session=True,
    )
    api = await Api.connect("xoxb-test", root)
    try:
        async with asyncio.timeout(20):
            while not await _is_up(root):
                await asyncio.sleep(0.05)
        people = (await api.call("users.list"))["members"]
        channels = (await api.call("conversations.list"))["channels"]
        channel = next(c["id"] for c in channels if c["name"] == "house")
        await api.call("conversations.join", channel=channel)
        yield Workspace(api, channel, next(p["id"] for p in people if p["name"] == "ann"))
    finally:
        await api.close()
        os.killpg(process.pid, signal.SIGTERM)
        await process.wait()


async def _is_up(root: str) -> bool:
    try:
        async with aiohttp.ClientSession() as client, client.post(f"{root}/api/api.test"):
            return True
    except aiohttp.ClientError:
        return False


async def _word(work: Awaitable[dict[str, Any]]) -> str:
    try:
        await work
    except ApiError as error:
        return error.error
    return "ok"


async def journey(slack: Workspace, folder: Path) -> list[Any]:
    """Calls of the kinds that the channel makes, and what a person could tell of their outcome."""
    api, told = slack.api, []
    here = {"channel": slack.channel}
    me = await api.call("auth.test")
    told.append(sorted(me.keys() & {"user_id", "bot_id", "team_id", "team", "user"}))
    root = (await api.call("chat.postMessage", **here, text="root", blocks=[section("*root*")]))["ts"]
    reply = await api.call("chat.postMessage", **here, text="a &lt; b", thread_ts=root)
    await api.call("chat.update", **here, ts=reply["ts"], text="changed")
    replies = await api.call("conversations.replies", **here, ts=root, limit=10)
    told.append([(m["text"], m.get("thread_ts") == root) for m in replies["messages"][1:]])
    told.append([m["user"] == me["user_id"] for m in replies["messages"]])
    told.append("message_ts" in await api.call("chat.postEphemeral", **here, user=slack.person, text="psst"))
    told.append((await api.call("users.info", user=slack.person))["user"]["name"])
    spot = {**here, "timestamp": root, "name": "eyes"}
    told += [await _word(api.call("reactions.add", **spot)), await _word(api.call("reactions.add", **spot))]
    told.append(await _word(api.call("reactions.remove", **spot)))
    direct = (await api.call("conversations.open", users=slack.person))["channel"]["id"]
    told += [direct[0], (await api.call("conversations.open", users=slack.person))["channel"]["id"] == direct]
    told.append((await api.call("conversations.info", **here))["channel"]["is_member"])
    path = folder / "a.txt"
    path.write_bytes(b"hello")
    place = await api.call("files.getUploadURLExternal", filename="a.txt", length=5)
    await api.upload(place["upload_url"], path)
    files = [{"id": place["file_id"], "title": "a"}]
    await api.call("files.completeUploadExternal", files=files, channel_id=slack.channel, thread_ts=root)
    thread = (await api.call("conversations.replies", **here, ts=root))["messages"]
    told.append([f["name"] for m in thread for f in m.get("files") or ()])
    return told


async def words(slack: Workspace) -> dict[str, str]:
    """Slack's word for calls that cannot be. A thread that is not there is left out: `emulate` answers with
    an empty one, Slack with `thread_not_found` (bolt-js issue 2307)."""
    api, here = slack.api, {"channel": slack.channel}
    view = {"type": "modal", "title": {"type": "plain_text", "text": "Ask"}, "blocks": [section("x")]}
    return {
        "channel": await _word(api.call("chat.postMessage", channel="C404", text="x")),
        "text": await _word(api.call("chat.postMessage", **here)),
        "update": await _word(api.call("chat.update", **here, ts="1.000001", text="x")),
        "user": await _word(api.call("users.info", user="U404")),
        "reaction": await _word(api.call("reactions.add", **here, timestamp="1.000001", name="eyes")),
        "trigger": await _word(api.call("views.open", trigger_id="no", view=view)),
    }


async def test_a_slack_nobody_here_wrote_answers_our_calls_as_the_fake_does(
    ours: Workspace, theirs: Workspace, tmp_path: Path
) -> None:
    assert await journey(ours, tmp_path) == await journey(theirs, tmp_path)
    assert await words(ours) == await words(theirs)
