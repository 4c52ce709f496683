"""What the bridge gets of a workspace: where the bot listens, sessions, names, files, earlier messages."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from channels.base import Attachment, NotSent, Outbound, Rejected, ReplyRef, TooLarge
from channels.slack.channel import SlackChannel
from tests.fakes.llm import Say, ScriptedModel
from tests.fakes.slack import FakeSlack
from tests.harness import bridge, openai_at
from tests.integration.slack_house import QUICK, House

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 200


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        yield server


@pytest.fixture
async def house(tmp_path: Path, fake: FakeSlack) -> AsyncIterator[House]:
    found = House(tmp_path, fake)
    yield found
    await found.close()


async def settled(fake: FakeSlack) -> None:
    """All that happened so far has reached the bridge or was left out."""
    await fake.wait_for(lambda: all(d.done for d in fake.sockets.deliveries))


# -- where it listens --------------------------------------------------------------------------------


async def test_every_message_of_people_is_passed_on_with_a_true_cue(fake: FakeSlack, house: House) -> None:
    await house.open()
    fake.place("G1", "mpim")
    fake.place("C2", "group")
    mention = f"<@{fake.bot_user}>"
    root = fake.say("C1", "just talk")
    fake.say("C1", "a reply", thread_ts=root)
    fake.say("C1", f"{mention} and you?", thread_ts=root)
    fake.say("DU1", "direct")
    fake.say("G1", "group dm")
    fake.say("C2", f"{mention} private channel")
    await fake.wait_for(lambda: len(house.got) == 6)
    assert {i.text: (i.cue, i.addressed) for i in house.got} == {
        "just talk": ("", False),
        "a reply": ("", False),
        "and you?": ("mention", True),
        "direct": ("direct", True),
        "group dm": ("direct", True),
        "private channel": ("mention", True),
    }


async def test_both_events_of_a_mention_in_a_group_dm_give_the_same_message(
    fake: FakeSlack, house: House
) -> None:
    await house.open()
    place = fake.place("G1", "mpim")
    message = fake.write("G1", f"<@{fake.bot_user}> hello")
    event = {**fake.public(message), "channel": "G1", "event_ts": message["ts"]}
    fake.emit({**event, "type": "app_mention"})  # the one without the chat's kind comes first
    fake.tell(place, message)
    await fake.wait_for(lambda: len(house.deliveries) == 3)
    assert house.deliveries[0] == house.deliveries[1] == house.deliveries[2]
    assert house.got[0].address.thread is None


async def test_in_a_thread_where_it_has_spoken_the_bot_is_meant_without_its_name(
    fake: FakeSlack, house: House
) -> None:
    channel = await house.open()
    root = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: house.got)
    await house.say(channel, house.got[0], "hi")
    fake.say("C1", "and another thing", thread_ts=root)
    fake.say("C1", "<@U9> what do you say?", thread_ts=root, user="U2")
    await fake.wait_for(lambda: len(house.got) == 3)
    more, aside = house.got[1:]
    assert (more.cue, more.addressed, more.address) == ("reply", True, house.got[0].address)
    assert (aside.cue, aside.addressed) == ("", False)


async def test_it_still_takes_part_after_a_restart_and_on_another_gateway(
    fake: FakeSlack, house: House
) -> None:
    first = await house.open()
    root = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: house.got)
    await house.say(first, house.got[0], "hi")
    await first.stop()
    await house.open()
    fake.say("C1", "still there?", thread_ts=root)
    await fake.wait_for(lambda: len(house.got) == 2)
    assert house.got[1].cue == "reply"


async def test_where_only_mentions_count_a_thread_is_no_invitation(fake: FakeSlack, house: House) -> None:
    channel = await house.open(threads="mention")
    root = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: house.got)
    await house.say(channel, house.got[0], "hi")
    fake.say("C1", "and another thing", thread_ts=root)
    await fake.wait_for(lambda: len(house.got) == 2)
    assert not house.got[1].addressed


async def test_a_refusal_for_one_person_alone_is_no_taking_part(fake: FakeSlack, house: House) -> None:
    channel = await house.open()
    root = fake.say("C1", f"<@{fake.bot_user}> hello")
    await fake.wait_for(lambda: house.got)
    ref = ReplyRef("r", house.got[0].address, root, person="U1", private=True)
    await channel.post(ref, 0, channel.render(Outbound("no"))[0], final=True)
    fake.say("C1", "hm", thread_ts=root)
    await fake.wait_for(lambda: len(house.got) == 2)
    assert not house.got[1].addressed


async def test_sl_04_nothing_but_what_people_say_reaches_the_bridge(fake: FakeSlack, house: House) -> None:
    channel = await house.open(edits="correct")
    ts = fake.say("C1", f"<@{fake.bot_user}> see <https://example.org>")
    await fake.wait_for(lambda: house.got)
    answer = await house.say(channel, house.got[0], "see https://example.org")
    fake.unfurl("C1", answer)
    fake.unfurl("C1", ts)
    join = {"type": "message", "subtype": "channel_join", "user": "U2", "text": "<@U2> has joined"}
    fake.emit({**join, "channel": "C1", "channel_type": "channel", "ts": fake.next_ts()})
    fake.delete("C1", ts)
    fake.emit({"type": "reaction_added", "user": "U1", "reaction": "eyes", "item": {}})
    fake.emit({"type": "message", "channel": "C1"})  # nothing that Slack documents
    await settled(fake)
    assert len(house.got) == 1
    assert len(fake.shown("C1").messages) == 1


async def test_an_edit_is_ignored_or_corrects_and_is_told_once(fake: FakeSlack, house: House) -> None:
    await house.open(edits="correct")
    ts = fake.say("DU1", "helo")
    await fake.wait_for(lambda: house.got)
    fake.edit("DU1", ts, "hello")
    await fake.wait_for(lambda: len(house.got) == 2)
    assert (house.got[1].replaces, house.got[1].text) == (ts, "hello")


async def test_other_bots_are_passed_on_as_bots_and_the_bot_itself_never(
    fake: FakeSlack, house: House
) -> None:
    channel = await house.open()
    fake.user("U7", "jira", is_bot=True)
    fake.say("C1", "issue closed", "U7", bot_id="B7", bot_profile={"name": "Jira"})
    await fake.wait_for(lambda: house.got)
    assert (house.got[0].sender.id, house.got[0].sender.is_bot) == ("U7", True)
    await house.say(channel, house.got[0], "ok")
    await settled(fake)
    assert len(house.deliveries) == 1


# -- sessions ----------------------------------------------------------------------------------------


async def test_a_top_level_mention_opens_a_thread_or_is_answered_in_the_channel(
    fake: FakeSlack, house: House
) -> None:
    channel = await house.open(reply_in="channel")
    ts = fake.say("C1", f"<@{fake.bot_user}> one")
    await fake.wait_for(lambda: house.got)
    assert house.got[0].address.thread is None
    await house.say(channel, house.got[0], "in the channel")
    assert fake.thread("C1", ts).texts == []
    await channel.stop()
    channel = await house.open()
    ts = fake.say("C1", f"<@{fake.bot_user}> two")
    await fake.wait_for(lambda: len(house.got) == 2)
    assert house.got[1].address.thread == ts
    await house.say(channel, house.got[1], "in a thread")
    assert fake.thread("C1", ts).texts == ["in a thread"]


async def test_the_assistants_threads_are_sessions_whatever_holds_for_the_chat(
    fake: FakeSlack, house: House
) -> None:
    await house.open()
    thread = fake.start_assistant("U1")
    await fake.wait_for(lambda: fake.direct("U1").prompts)
    fake.say("DU1", "in the assistant", thread_ts=thread)
    root = fake.say("DU1", "in the chat")
    fake.say("DU1", "below it", thread_ts=root)
    await fake.wait_for(lambda: len(house.got) == 3)
    assert {i.text: i.address.thread for i in house.got} == {
        "in the assistant": thread,
        "in the chat": None,
        "below it": None,
    }


async def test_a_thread_joined_late_is_told_from_its_beginning(fake: FakeSlack, house: House) -> None:
    channel = await house.open()
    fake.user("U2", "Bob")
    root = fake.write("C1", "the &lt;plan&gt;", "U1")["ts"]
    fake.write("C1", "<@U2> thinks so", "U2", root)
    for n in range(30):
        fake.write("C1", f"more {n}", "U2", root)
    fake.post_as_bot(fake.places["C1"], {"text": "I said this"}, root)
    fake.say("C1", f"<@{fake.bot_user}> sum up", "U1", root)
    fake.write("C1", "later", "U2", root)
    await fake.wait_for(lambda: house.texts == ["sum up"])
    known = await channel.earlier(house.got[0], 50)
    assert [(m.role, m.text, m.name) for m in known[:2]] == [
        ("user", "the <plan>", "name-U1"),
        ("user", "@Bob thinks so", "Bob"),
    ]
    assert (known[-1].role, known[-1].text) == ("assistant", "I said this")
    assert len(known) == 33
    some = await channel.earlier(house.got[0], 5)
    assert [m.text for m in some] == ["the <plan>", "more 27", "more 28", "more 29", "I said this"]


async def test_an_app_with_few_rights_to_history_seeds_what_it_gets_and_then_nothing(
    fake: FakeSlack, house: House
) -> None:
    fake.limited_history = True
    channel = await house.open()
    root = fake.write("C1", "start")["ts"]
    for n in range(30):
        fake.write("C1", f"more {n}", "U1", root)
    fake.say("C1", f"<@{fake.bot_user}> sum up", "U1", root)
    await fake.wait_for(lambda: house.got)
    assert [m.text for m in await channel.earlier(house.got[0], 50)] == [
        "start",
        *(f"more {n}" for n in range(14)),
    ]
    assert await channel.earlier(house.got[0], 50) == ()


async def test_a_message_that_opens_its_thread_has_nothing_before_it(fake: FakeSlack, house: House) -> None:
    channel = await house.open()
    fake.say("C1", f"<@{fake.bot_user}> hello")
    fake.say("DU1", "hello")
    await fake.wait_for(lambda: len(house.got) == 2)
    for inbound in house.got:
        assert await channel.earlier(inbound, 50) == ()
    assert not fake.called("conversations.replies")


# -- names -------------------------------------------------------------------------------------------


async def test_ids_are_named_asked_once_and_again_when_somebody_is_renamed(
    fake: FakeSlack, house: House
) -> None:
    await house.open()
    fake.user("U1", "Ann", locale="zh-CN")
    fake.user("U2", "Bob")
    fake.place("C9").name = "general"
    for _ in range(3):
        fake.say("DU1", "ask <@U2> in <#C9>")
    await fake.wait_for(lambda: len(house.got) == 3)
    assert {i.text for i in house.got} == {"ask @Bob in #general"}
    assert (house.got[0].sender.name, house.got[0].sender.language) == ("Ann", "zh-CN")
    assert len(fake.called("users.info")) == 2
    fake.user("U2", "Robert")
    fake.emit({"type": "user_change", "user": {"id": "U2"}})
    fake.say("DU1", "ask <@U2>")
    await fake.wait_for(lambda: len(house.got) == 4)
    assert house.texts[3] == "ask @Robert"


async def test_a_message_does_not_wait_for_names_that_do_not_come(
    fake: FakeSlack, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.slack.people.PATIENCE", 0.1)
    await house.open()
    fake.delay("users.info", 5.0, times=9)
    began = time.monotonic()
    fake.say("DU1", "ask <@U2>")
    await fake.wait_for(lambda: house.got)
    assert time.monotonic() - began < 2.0
    assert (house.got[0].text, house.got[0].sender.id) == ("ask @U2", "U1")


async def test_names_that_may_not_be_asked_cost_one_question(fake: FakeSlack, house: House) -> None:
    fake.scopes.discard("users:read")
    await house.open()
    for n in range(5):
        fake.say("DU1", f"hello {n}")
    await fake.wait_for(lambda: len(house.got) == 5)
    assert len(fake.called("users.info")) == 1


# -- files -------------------------------------------------------------------------------------------


async def arrived(fake: FakeSlack, house: House, *files: dict[str, Any]) -> tuple[Attachment, ...]:
    fake.say("DU1", "look", files=list(files))
    await fake.wait_for(lambda: house.got)
    return house.got[-1].attachments


async def test_a_picture_is_fetched_with_the_bots_token(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    (picture,) = await arrived(fake, house, fake.file(PNG, "a.png", "image/png"))
    assert (picture.kind, picture.name, picture.size) == ("image", "a.png", len(PNG))
    await channel.fetch(picture, tmp_path / "a.png", 1000)
    assert (tmp_path / "a.png").read_bytes() == PNG
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []


async def test_a_file_that_slack_only_names_is_looked_up(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    stored = fake.file(PNG, "a.png", "image/png")
    (file,) = await arrived(
        fake, house, {"id": stored["id"], "mode": "file_access", "file_access": "check_file_info"}
    )
    await channel.fetch(file, tmp_path / "a.png", 1000)
    assert (tmp_path / "a.png").read_bytes() == PNG


async def test_a_login_page_instead_of_the_file_is_recognised(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    (file,) = await arrived(fake, house, fake.file(PNG, "a.png", "image/png"))
    fake.scopes.discard("files:read")
    with pytest.raises(Rejected, match="files:read"):
        await channel.fetch(file, tmp_path / "a.png", 10_000)
    assert list(tmp_path.glob("a.png*")) == []


async def test_a_web_page_that_is_the_file_is_no_login_page(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    (file,) = await arrived(fake, house, fake.file(b"<html>mine</html>", "a.html", "text/html"))
    await channel.fetch(file, tmp_path / "a.html", 1000)
    assert (tmp_path / "a.html").read_bytes() == b"<html>mine</html>"


async def test_a_file_over_the_limit_is_said_to_be_too_large(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    told, hidden = await arrived(
        fake, house, fake.file(PNG, "a.png", "image/png"), fake.file(PNG, "b.png", "image/png", size=-1)
    )
    for file in (told, hidden):
        with pytest.raises(TooLarge):
            await channel.fetch(file, tmp_path / "x", 100)
    assert list(tmp_path.glob("x*")) == []


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ({"id": "F1", "mode": "tombstone"}, "deleted"),
        ({"id": "F1", "mode": "hidden_by_limit"}, "storage limit"),
        ({"id": "F1", "mode": "external", "url_private": "https://drive.example.org/x"}, "outside Slack"),
        ({"id": "F1", "file_access": "access_denied"}, "another organisation"),
        ({"id": "F404", "file_access": "check_file_info"}, "not there"),
    ],
)
async def test_a_file_that_cannot_be_had_says_why(
    fake: FakeSlack, house: House, tmp_path: Path, file: dict[str, Any], words: str
) -> None:
    channel = await house.open()
    (attachment,) = await arrived(fake, house, file)
    with pytest.raises(Rejected, match=words):
        await channel.fetch(attachment, tmp_path / "x", 1000)
    assert not fake.called("download")


class Elsewhere:
    """Another server, which must never see the token."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str]] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.seen.append(dict(request.headers))
        return web.Response(body=PNG)


@pytest.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    server = Elsewhere()
    app = web.Application()
    app.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


async def test_the_token_goes_to_slacks_hosts_alone(
    fake: FakeSlack, house: House, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    channel = await house.open()
    aside = fake.file(PNG, "a.png", "image/png")
    for key in ("url_private", "url_private_download"):
        aside[key] = f"{elsewhere.url}/a.png"
    moved = fake.file(PNG, "b.png", "image/png")
    fake.fail("download", status=302, location=f"{elsewhere.url}/b.png")
    for file in await arrived(fake, house, aside, moved):
        with pytest.raises(Rejected, match="not Slack's"):
            await channel.fetch(file, tmp_path / "x", 1000)
    assert elsewhere.seen == []


async def test_a_redirect_within_slack_is_followed(fake: FakeSlack, house: House, tmp_path: Path) -> None:
    channel = await house.open()
    file = fake.file(PNG, "a.png", "image/png")
    fake.fail("download", status=302, location=file["url_private"])
    (attachment,) = await arrived(fake, house, file)
    await channel.fetch(attachment, tmp_path / "a.png", 1000)
    assert (tmp_path / "a.png").read_bytes() == PNG


async def test_a_download_that_fails_for_now_may_be_tried_again(
    fake: FakeSlack, house: House, tmp_path: Path
) -> None:
    channel = await house.open()
    (file,) = await arrived(fake, house, fake.file(PNG, "a.png", "image/png"))
    fake.fail("download", status=503)
    with pytest.raises(NotSent):
        await channel.fetch(file, tmp_path / "a.png", 1000)
    await channel.fetch(file, tmp_path / "a.png", 1000)
    with pytest.raises(Rejected):
        await channel.fetch(Attachment("file", "nonsense"), tmp_path / "x", 1000)


# -- interplay ---------------------------------------------------------------------------------------


async def test_a_channel_that_is_stopped_says_so(fake: FakeSlack, house: House, tmp_path: Path) -> None:
    channel: SlackChannel = house.make()
    assert not channel.health().ok
    with pytest.raises(NotSent):
        await channel.fetch(Attachment("file", "{}"), tmp_path / "x", 10)
    await channel.stop()


async def test_quick_messages_keep_their_order(fake: FakeSlack, house: House) -> None:
    await house.open()
    fake.delay("users.info", 0.2)
    sent = [f"message {n}" for n in range(20)]
    for text in sent:
        fake.say("DU1", text)
    await fake.wait_for(lambda: len(house.got) == 20)
    assert house.texts == sent


# -- on the whole bridge -----------------------------------------------------------------------------


def settings(fake: FakeSlack, model: ScriptedModel) -> dict[str, Any]:
    slack = {"bot_token": fake.bot_token, "app_token": fake.app_token, "base_url": fake.url}
    return {
        "model": openai_at(model.openai_url),
        "channels": {"slack": slack},
        "access": {"slack": {"allow": ["U1"], "groups": "allowlist"}},
    }


async def test_sl_01_a_mention_that_comes_as_two_events_is_one_turn(fake: FakeSlack, tmp_path: Path) -> None:
    async with ScriptedModel([Say("Here I am.")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)):
            message = fake.write("C1", f"<@{fake.bot_user}> hello")
            first, second = fake.tell(fake.places["C1"], message)
            assert first.payload["event_id"] != second.payload["event_id"]
            await fake.wait_for(lambda: fake.thread("C1", message["ts"]).texts == ["Here I am."])
            await settled(fake)
            fake.emit(second.payload["event"])  # and once more, late
            await settled(fake)
        assert fake.shown("C1").texts == ["Here I am."]
        assert len(model.seen) == 1


async def test_sl_04_a_preview_under_the_bots_own_answer_starts_nothing(
    fake: FakeSlack, tmp_path: Path
) -> None:
    async with ScriptedModel([Say("See https://example.org")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)):
            fake.say("DU1", "where?")
            await fake.wait_for(lambda: fake.shown("DU1").texts == ["See https://example.org"])
            await settled(fake)
            fake.unfurl("DU1", fake.shown("DU1").messages[0]["ts"])
            await settled(fake)
        assert len(model.seen) == 1
        assert len(fake.called("chat.postMessage")) == 1


async def test_sl_07_what_waited_in_a_silent_socket_is_answered_once(
    fake: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.slack.socket.Timing", lambda: QUICK)
    fake.sockets.ping_every, fake.sockets.ack_timeout = 0.05, 0.2
    fake.sockets.retry_pauses = (0.1,) * 30
    async with ScriptedModel([Say("Here I am.")]).running() as model:
        async with bridge(tmp_path, settings(fake, model)):
            await fake.wait_for(lambda: fake.sockets.live)
            fake.sockets.live[0].silent = True
            fake.say("DU1", "anybody there?")
            await fake.wait_for(lambda: fake.shown("DU1").texts == ["Here I am."])
            await settled(fake)
        assert len(model.seen) == 1
