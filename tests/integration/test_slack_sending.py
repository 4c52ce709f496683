"""What the Slack channel shows, against the fake: posts, updates, refusals, pace, unknown outcomes, files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from channels.base import (
    Address,
    ChatKind,
    Chunk,
    Flooded,
    Gone,
    Lost,
    NotSent,
    Outbound,
    OutFile,
    Rejected,
    ReplyRef,
    SendError,
    Unknown,
)
from channels.slack.api import Api
from channels.slack.config import SlackConfig
from channels.slack.inbound import Identity
from channels.slack.pacing import PATIENCE, POST_BURST, POSTS
from channels.slack.sending import Sender, render
from tests.fakes.channel_env import MemoryState, memory_env
from tests.fakes.slack import FakeSlack


class Clock:
    """Time that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A sender in front of a fake Slack."""

    def __init__(self, fake: FakeSlack, folder: Path) -> None:
        self.fake, self.folder = fake, folder
        self.state, self.clock = MemoryState(), Clock()
        self.shared = False
        self.open: list[Sender] = []
        self.apis: list[Api] = []

    async def sender(self, rate: float = 1000.0, **settings: Any) -> Sender:
        token, url = self.fake.bot_token, self.fake.url
        config = SlackConfig.model_validate({"bot_token": token, "base_url": url, **settings})
        api = await Api.connect(token, url)
        me = Identity(self.fake.bot_user, self.fake.bot_id, self.fake.team)
        env = memory_env(self.folder, self.state, shared=self.shared)
        sender = Sender(api, config, env, "slack", me, self.clock, rate)
        self.open.append(sender)
        self.apis.append(api)
        return sender

    async def close(self) -> None:
        for sender in self.open:
            await sender.close()
        for api in self.apis:
            await api.close()


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1")
        server.place("C1", members=["U1"])
        yield server


@pytest.fixture
async def desk(fake: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("channels.slack.posting.LOOKS", (0.0, 0.01))
    desk = Desk(fake, tmp_path)
    yield desk
    await desk.close()


def ref(chat: str = "C1", thread: str | None = None, to: str = "", id: str = "r1", **more: Any) -> ReplyRef:
    kind: ChatKind = "direct" if chat.startswith("D") else "group"
    return ReplyRef(id, Address("slack", chat, kind, thread), to, person="U1", **more)


async def show(sender: Sender, to: ReplyRef, text: str, *files: OutFile) -> list[str]:
    chunks = render(Outbound(text, files))
    return [await sender.post(to, n, chunk, final=True) for n, chunk in enumerate(chunks)]


def chunk(text: str) -> Chunk:
    (only,) = render(Outbound(text))
    return only


# -- text ------------------------------------------------------------------------------------------------


async def test_an_answer_goes_into_the_thread_as_a_markdown_block_with_a_fallback(
    fake: FakeSlack, desk: Desk
) -> None:
    root = fake.write("C1", "hi")["ts"]
    await show(await desk.sender(), ref(thread=root), "**Hi** <@U1> & <!channel>\n\n| a |\n|---|\n| 1 |")
    (message,) = fake.thread("C1", root).messages
    assert message["blocks"][0]["type"] == "markdown"
    assert message["text"].startswith("*Hi* &lt;@U1&gt; &amp; &lt;!channel&gt;")
    assert fake.thread("C1", root).pings == []
    (call,) = fake.called("chat.postMessage")
    assert call.params["unfurl_links"] is False
    assert call.params["unfurl_media"] is False


async def test_sl_02_a_long_update_is_whole_in_the_same_thread_and_leaves_no_placeholder(
    fake: FakeSlack, desk: Desk
) -> None:
    root = fake.write("C1", "hi")["ts"]
    sender, to = await desk.sender(streaming="update"), ref(thread=root)
    ts = await sender.post(to, 0, chunk("…"), final=False)
    code = "\n".join(f"value_{n} = {n}" for n in range(320))
    text = f"Intro.\n\n```python\n{code}\n```\n\n" + "word " * 300
    assert len(text) > 6000
    chunks = render(Outbound(text))
    await sender.edit(to, 0, ts, chunks[0], final=True)
    for n, more in enumerate(chunks[1:], 1):
        await sender.post(to, n, more, final=True)
    shown = fake.thread("C1", root)
    assert "…" not in shown.texts
    assert all(piece.count("```") % 2 == 0 for piece in shown.texts)
    assert [f"value_{n} = {n}" for n in range(320)] == [
        line for piece in shown.texts for line in piece.splitlines() if line.startswith("value_")
    ]
    assert shown.text.count("word") == 300


async def test_sl_02_a_message_called_too_long_in_every_form_is_shown_in_pieces(
    fake: FakeSlack, desk: Desk
) -> None:
    root = fake.write("C1", "hi")["ts"]
    sender, to = await desk.sender(), ref(thread=root)
    fake.fail("chat.update", "msg_too_long", times=2)
    ts = await sender.post(to, 0, chunk("…"), final=True)
    text = " ".join(f"w{n}" for n in range(700))
    await sender.edit(to, 0, ts, chunk(text), final=True)
    assert " ".join(fake.thread("C1", root).texts).split() == text.split()
    fake.fail("chat.postMessage", "msg_blocks_too_long", times=2)
    await sender.post(to, 1, chunk(text), final=True)
    assert " ".join(fake.thread("C1", root).texts).split() == text.split() * 2


async def test_pieces_already_shown_are_not_repeated_when_one_of_them_is_refused(
    fake: FakeSlack, desk: Desk
) -> None:
    sender, text = await desk.sender(), " ".join(f"w{n}" for n in range(700))
    fake.fail("chat.postMessage", "msg_too_long", times=2)
    fake.fail("chat.postMessage", "ratelimited", retry_after=2, after=1)
    with pytest.raises(Flooded):
        await sender.post(ref(), 0, chunk(text), final=True)
    desk.clock.now += 10
    fake.fail("chat.postMessage", "msg_too_long", times=2)
    await sender.post(ref(), 0, chunk(text), final=True)
    assert " ".join(fake.shown("C1").texts).split() == text.split()


async def test_a_refused_markdown_block_is_sent_as_mrkdwn(fake: FakeSlack, desk: Desk) -> None:
    fake.fail("chat.postMessage", "invalid_blocks")
    await show(await desk.sender(), ref(), "**bold** and a < b")
    (message,) = fake.shown("C1").messages
    assert not message.get("blocks")
    assert message["text"] == "*bold* and a &lt; b"


# -- failures --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("channel_not_found", Gone),
        ("is_archived", Gone),
        ("not_in_channel", Gone),
        ("token_revoked", NotSent),
        ("account_inactive", NotSent),
        ("missing_scope", NotSent),
        ("service_unavailable", NotSent),
        ("some_new_error", Rejected),
    ],
)
async def test_refusals_say_what_the_bridge_does_next(
    fake: FakeSlack, desk: Desk, error: str, kind: type[SendError]
) -> None:
    fake.fail("chat.postMessage", error, needed="chat:write")
    sender = await desk.sender()
    with pytest.raises(kind) as caught:
        await show(sender, ref(), "hi")
    assert type(caught.value) is kind
    trouble = sender.health()
    assert (trouble is not None) == (error in ("token_revoked", "account_inactive", "missing_scope"))
    await show(sender, ref(), "again")
    assert sender.health() is None


@pytest.mark.parametrize("error", ["message_not_found", "cant_update_message", "edit_window_closed"])
async def test_a_message_that_cannot_be_changed_is_lost(fake: FakeSlack, desk: Desk, error: str) -> None:
    sender = await desk.sender()
    (ts,) = await show(sender, ref(), "hi")
    fake.fail("chat.update", error)
    with pytest.raises(Lost):
        await sender.edit(ref(), 0, ts, chunk("hi there"), final=True)


async def test_a_flooded_channel_rests_and_no_other(fake: FakeSlack, desk: Desk) -> None:
    fake.place("C2")
    sender = await desk.sender()
    fake.fail("chat.postMessage", "ratelimited", retry_after=30, channel="C1")
    with pytest.raises(Flooded) as caught:
        await show(sender, ref(), "one")
    assert caught.value.retry_after == 30
    await show(sender, ref("C2"), "elsewhere")
    with pytest.raises(Flooded) as again:
        await show(sender, ref(id="r2"), "two")
    assert 20 < again.value.retry_after <= 31
    assert len(fake.called("chat.postMessage", "C1")) == 1
    desk.clock.now += 31
    await show(sender, ref(), "one")
    assert fake.shown("C1").texts == ["one"]


async def test_posts_of_one_channel_keep_slacks_pace(fake: FakeSlack, desk: Desk) -> None:
    sender = await desk.sender(rate=POSTS)
    for n in range(POST_BURST):
        await show(sender, ref(id=f"r{n}"), "x")
    sender.pace.hold("C1", PATIENCE + 1)
    with pytest.raises(Flooded) as caught:
        await show(sender, ref(id="r9"), "x")
    desk.clock.now += caught.value.retry_after
    await show(sender, ref(id="r9"), "x")
    assert len(fake.shown("C1").texts) == POST_BURST + 1


@pytest.mark.parametrize("thread", [True, False])
async def test_a_post_whose_answer_is_lost_is_found_again_and_not_repeated(
    fake: FakeSlack, desk: Desk, thread: bool
) -> None:
    root = fake.write("C1", "hi")["ts"]
    fake.cut("chat.postMessage", "after")
    to = ref(thread=root if thread else None, to=root)
    (ts,) = await show(await desk.sender(), to, "once")
    (message,) = fake.shown("C1").messages
    assert message["ts"] == ts


async def test_a_post_that_never_arrived_is_sent_again(fake: FakeSlack, desk: Desk) -> None:
    root = fake.write("C1", "hi")["ts"]
    fake.cut("chat.postMessage", "before")
    sender, to = await desk.sender(), ref(thread=root, to=root)
    with pytest.raises(NotSent):
        await show(sender, to, "once")
    await show(sender, to, "once")
    assert fake.shown("C1").texts == ["once"]


async def test_a_message_that_turns_up_late_is_not_posted_twice(
    fake: FakeSlack, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.slack.posting.LOOKS", ())  # nobody looks before it has turned up
    root = fake.write("C1", "hi")["ts"]
    fake.cut("chat.postMessage", "after")
    sender, to = await desk.sender(), ref(thread=root, to=root)
    with pytest.raises(NotSent):
        await show(sender, to, "once")
    (ts,) = await show(sender, to, "once")
    (message,) = fake.shown("C1").messages
    assert message["ts"] == ts


async def test_a_post_that_a_killed_process_could_not_write_down_is_found_by_the_next(
    fake: FakeSlack, desk: Desk
) -> None:
    root = fake.write("C1", "hi")["ts"]
    to = ref(thread=root, to=root)
    ts = await (await desk.sender(streaming="update")).post(to, 0, chunk("Half an"), final=False)
    second = await desk.sender(streaming="update")
    assert await second.post(to, 0, chunk("Half an answer, and the rest."), final=True) == ts
    assert fake.thread("C1", root).texts == ["Half an answer, and the rest."]
    assert await second.post(to, 1, chunk("More."), final=True) != ts


async def test_messages_of_this_process_are_answered_without_looking_back(
    fake: FakeSlack, desk: Desk
) -> None:
    sender = await desk.sender()
    fake.advance(60)
    root = fake.write("C1", "hi")["ts"]
    await show(sender, ref(thread=root, to=root), "answer")
    assert not fake.called("conversations.replies")


async def test_without_the_right_to_look_the_outcome_stays_unknown(fake: FakeSlack, desk: Desk) -> None:
    fake.scopes -= {"channels:history"}
    fake.cut("chat.postMessage", "after")
    with pytest.raises(Unknown):
        await show(await desk.sender(), ref(), "once")


# -- for one person --------------------------------------------------------------------------------------


async def test_a_private_answer_is_seen_by_its_person_alone(fake: FakeSlack, desk: Desk) -> None:
    sender, to = await desk.sender(), ref(private=True)
    (id,) = await show(sender, to, "You may **not**.")
    (message,) = fake.place("C1").ephemeral
    assert (message["user"], message["text"]) == ("U1", "You may *not*.")
    assert fake.shown("C1").texts == []
    await sender.edit(to, 0, id, chunk("changed"), final=True)
    assert len(fake.place("C1").ephemeral) == 1


async def test_a_private_answer_in_a_direct_chat_is_an_ordinary_one(fake: FakeSlack, desk: Desk) -> None:
    fake.direct("U1")
    await show(await desk.sender(), ref("DU1", private=True), "no")
    assert fake.shown("DU1").texts == ["no"]


# -- files -----------------------------------------------------------------------------------------------


async def test_a_file_goes_into_the_thread_with_its_caption(
    fake: FakeSlack, desk: Desk, tmp_path: Path
) -> None:
    root = fake.write("C1", "hi")["ts"]
    path = tmp_path / "chart.png"
    path.write_bytes(b"png" * 100)
    file = OutFile(str(path), "chart.png", "image/png", "The **chart** <!here>")
    text, id = await show(await desk.sender(), ref(thread=root), "Look", file)
    assert id.startswith("file:")
    assert text
    message = fake.thread("C1", root).messages[-1]
    assert message["text"] == "The *chart* &lt;!here&gt;"
    assert fake.files[message["files"][0]["id"]].data == b"png" * 100


async def test_a_file_that_cannot_be_sent_says_why(fake: FakeSlack, desk: Desk, tmp_path: Path) -> None:
    sender = await desk.sender()
    empty = tmp_path / "empty.txt"
    empty.touch()
    for path in (empty, tmp_path / "missing.txt"):
        with pytest.raises(Rejected, match=path.name):
            await sender.post(ref(), 0, replace(Chunk(""), file=OutFile(str(path), path.name)), final=True)


async def test_a_refused_sharing_is_tried_again_and_shows_the_file_once(
    fake: FakeSlack, desk: Desk, tmp_path: Path
) -> None:
    path = tmp_path / "a.txt"
    path.write_text("data")
    sender, piece = await desk.sender(), Chunk("", file=OutFile(str(path), "a.txt"))
    fake.fail("files.completeUploadExternal", "ratelimited", retry_after=1)
    with pytest.raises(Flooded):
        await sender.post(ref(), 0, piece, final=True)
    desk.clock.now += 5
    await sender.post(ref(), 0, piece, final=True)
    assert len(fake.shown("C1").messages) == 1


async def test_a_message_taken_up_gets_the_reaction_of_the_settings(fake: FakeSlack, desk: Desk) -> None:
    ts = fake.write("C1", "hi")["ts"]
    sender = await desk.sender(acknowledge=":eyes:")
    await sender.acknowledge(ref(to=ts))
    await sender.acknowledge(ref(to=ts))
    message = fake.place("C1").find(ts)
    assert message is not None
    assert message["reactions"] == {"eyes": [fake.bot_user]}
