"""Streamed answers against the fake: appended, replaced where they must be, whole in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from channels.base import Activity, Chunk, Flooded, Inbound, NotSent, Outbound, ReplyRef, Unknown
from channels.slack.sending import Sender, render
from tests.fakes.channel_env import until
from tests.fakes.slack import FakeSlack
from tests.integration.test_slack_sending import Desk, chunk, ref

TEXT = "## Plan\n\nSome **bold** words, then `code`.\n\n- one\n- two\n\n```py\nx = 1\n```\n\nThe last line."


@pytest.fixture
async def fake() -> AsyncIterator[FakeSlack]:
    async with FakeSlack() as server:
        server.user("U1")
        server.place("C1", members=["U1"])
        yield server


@pytest.fixture
async def desk(fake: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr("channels.slack.posting.LOOKS", (0.0,))
    monkeypatch.setattr("channels.slack.sending._CARDS_APART", 0.0)
    desk = Desk(fake, tmp_path)
    yield desk
    await desk.close()


def question(fake: FakeSlack, id: str = "r1", **more: Any) -> ReplyRef:
    root = fake.write("C1", "hi")["ts"]
    return ref(thread=root, to=root, id=id, **more)


class Live:
    """Drives a sender as the bridge does: growing text, then the whole."""

    def __init__(self, desk: Desk, sender: Sender, to: ReplyRef) -> None:
        self.desk, self.sender, self.to = desk, sender, to
        self.ids: dict[int, str] = {}

    async def show(self, text: str, *, final: bool = False) -> None:
        chunks = render(Outbound(text))
        for n, piece in enumerate(chunks):
            done = final or n < len(chunks) - 1
            self.desk.clock.now += 2
            if self.ids.get(n):
                await self.sender.edit(self.to, n, self.ids[n], piece, final=done)
            else:
                self.ids[n] = await self.sender.post(self.to, n, piece, final=done)

    async def grow(self, text: str, step: int = 7) -> None:
        for end in range(step, len(text), step):
            await self.show(text[:end])


async def test_a_streamed_answer_is_one_message_and_whole(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.grow(TEXT)
    await live.show(TEXT, final=True)
    await live.sender.end(to)
    (message,) = fake.thread("C1", to.to).messages
    assert message["text"] == chunk(TEXT).text
    assert message["metadata"]["event_payload"] == {"id": "r1", "n": "0"}
    assert not message["_streaming"]
    (start,) = fake.called("chat.startStream")
    assert start.params["recipient_user_id"] == "U1"
    assert start.params["recipient_team_id"] == fake.team
    assert len(fake.called("chat.appendStream")) > 5
    assert not fake.called("chat.update")


async def test_text_that_was_taken_back_is_replaced_in_the_same_message(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("One beginning that is wrong in the end.")
    await live.show("Another")
    await live.show("Another beginning, and its end.", final=True)
    (message,) = fake.thread("C1", to.to).messages
    assert fake.thread("C1", to.to).texts == ["Another beginning, and its end."]
    assert message["ts"] == live.ids[0]


async def test_an_answer_longer_than_a_message_streams_on_in_the_next(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    text = "\n\n".join(f"Paragraph {n}: " + "some words here. " * 12 for n in range(40))
    await live.grow(text, 900)
    await live.show(text, final=True)
    shown = fake.thread("C1", to.to).messages
    assert [m["ts"] for m in shown] == list(live.ids.values())
    assert " ".join(" ".join(m["text"] for m in shown).split()) == " ".join(text.split())


async def test_a_stream_is_ended_before_its_life_is_and_the_message_is_updated_from_then_on(
    fake: FakeSlack, desk: Desk
) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("The first words are here")
    desk.clock.now += 245
    fake.advance(245)
    await live.show("The first words are here and some more")
    assert fake.called("chat.stopStream")
    fake.advance(100)
    await live.show("The first words are here and some more, and yet more")
    await live.show("The first words are here and some more, and yet more. End.", final=True)
    assert fake.thread("C1", to.to).texts == ["The first words are here and some more, and yet more. End."]
    assert not any(call.error for call in fake.calls)


async def test_a_stream_that_slack_ended_is_updated(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("The first words are here")
    fake.advance(400)
    await live.show("The first words are here and some more")
    await live.show("The first words are here and some more. End.", final=True)
    assert fake.thread("C1", to.to).texts == ["The first words are here and some more. End."]


async def test_a_reader_who_presses_stop_sees_no_more_and_stops_the_run(fake: FakeSlack, desk: Desk) -> None:
    to, told = question(fake), list[Inbound]()
    sender = await desk.sender()

    async def receive(inbound: Inbound) -> None:
        told.append(inbound)

    sender.receive = receive
    live = Live(desk, sender, to)
    await live.show("The first words are here")
    fake.stop_stream("C1", live.ids[0])
    await live.show("The first words are here and some more of it")
    await live.show("The first words are here and some more. End.", final=True)
    await sender.post(to, 1, chunk("more"), final=True)
    (message,) = fake.thread("C1", to.to).messages
    assert message["text"] in "The first words are here"
    await until(lambda: told)
    assert [(i.text, i.sender.id, i.address.thread) for i in told] == [("/stop", "U1", to.to)]


@pytest.mark.parametrize("error", ["unknown_method", "missing_scope", "feature_not_enabled"])
async def test_where_streams_are_not_to_be_had_answers_are_posted_and_updated(
    fake: FakeSlack, desk: Desk, error: str
) -> None:
    fake.fail("chat.startStream", error, times=99)
    sender = await desk.sender()
    for n in range(2):
        to = question(fake, f"r{n}")
        live = Live(desk, sender, to)
        await live.show("The first words are here")
        await live.show(TEXT, final=True)
        assert fake.thread("C1", to.to).texts == [chunk(TEXT).text]
    assert len(fake.called("chat.startStream")) == 1


async def test_a_direct_chat_without_threads_is_posted_and_updated(fake: FakeSlack, desk: Desk) -> None:
    place = fake.direct("U1")
    live = Live(desk, await desk.sender(), ref(place.id))
    await live.show("The first words are here")
    await live.show(TEXT, final=True)
    assert fake.shown(place.id).texts == [chunk(TEXT).text]
    assert not fake.called("chat.startStream")


async def test_a_flooded_end_is_tried_again_and_adds_nothing_twice(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("The first words are here")
    fake.fail("chat.stopStream", "ratelimited", retry_after=3)
    with pytest.raises(Flooded):
        await live.show("The first words are here. End.", final=True)
    await live.show("The first words are here. End.", final=True)
    assert fake.thread("C1", to.to).texts == ["The first words are here. End."]


@pytest.mark.parametrize("method", ["chat.appendStream", "chat.stopStream"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_answer_within_a_stream_does_not_double_words(
    fake: FakeSlack, desk: Desk, method: str, when: str
) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("The first words are here")
    fake.cut(method, when)
    for final in (False, True, True):
        try:
            await live.show("The first words are here and then some. End.", final=final)
        except (Unknown, NotSent):
            continue
    assert fake.thread("C1", to.to).texts == ["The first words are here and then some. End."]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_stream_that_may_have_begun_is_looked_for_before_another_begins(
    fake: FakeSlack, desk: Desk, when: str
) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    fake.cut("chat.startStream", when)
    with pytest.raises(Unknown):
        await live.show("The **first** words are here")
    await live.show("The **first** words are here and some more")
    await live.show("The **first** words are here and some more. End.", final=True)
    assert fake.thread("C1", to.to).texts == ["The **first** words are here and some more. End."]


async def test_code_that_could_ping_ends_the_stream_and_is_shown_escaped(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    text = "To call all write `<!channel>` in the text."
    await live.grow(text, 5)
    assert fake.thread("C1", to.to).pings == []
    await live.show(text, final=True)
    assert fake.thread("C1", to.to).texts == [text]
    assert fake.thread("C1", to.to).pings == []


async def test_a_reply_resumed_by_another_process_goes_on_in_its_message(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.show("The first words are here")
    live.sender = await desk.sender()  # the first one died: its stream is still open
    await live.show("The first words are here. End.", final=True)
    assert fake.thread("C1", to.to).texts == ["The first words are here. End."]


# -- steps -----------------------------------------------------------------------------------------------


async def test_tool_steps_are_cards_in_the_message_that_the_answer_grows_in(
    fake: FakeSlack, desk: Desk
) -> None:
    to, sender = question(fake), await desk.sender()
    sender.activity(to, Activity("c1", "web_search", "running", "cats <x>" + "y" * 400))
    await fake.wait_for(lambda: fake.thread("C1", to.to).messages)
    sender.activity(to, Activity("c1", "web_search", "done"))
    sender.activity(to, Activity("c2", "read_file", "running"))
    await fake.wait_for(lambda: "c2" in fake.thread("C1", to.to).messages[0]["_tasks"])
    live = Live(desk, sender, to)
    await live.grow(TEXT)
    sender.activity(to, Activity("c2", "read_file", "failed"))
    await live.show(TEXT, final=True)
    await sender.end(to)
    (message,) = fake.thread("C1", to.to).messages
    assert message["text"] == chunk(TEXT).text
    assert {id: task["status"] for id, task in message["_tasks"].items()} == {"c1": "complete", "c2": "error"}
    assert desk.state.logs["streams"] == {}


async def test_a_run_that_ends_without_words_leaves_no_open_stream(fake: FakeSlack, desk: Desk) -> None:
    to, sender = question(fake), await desk.sender()
    sender.activity(to, Activity("c1", "web_search", "running"))
    await fake.wait_for(lambda: fake.thread("C1", to.to).messages)
    await sender.end(to)
    (message,) = fake.thread("C1", to.to).messages
    assert not message["_streaming"]
    assert message["_tasks"]["c1"]["status"] == "complete"


async def test_steps_shown_before_a_restart_become_the_answers_message(fake: FakeSlack, desk: Desk) -> None:
    to, sender = question(fake), await desk.sender()
    sender.activity(to, Activity("c1", "web_search", "running"))
    await until(lambda: desk.state.logs.get("streams"))
    second = await desk.sender()
    await Live(desk, second, to).show("Done.", final=True)
    await second.end(to)
    assert fake.thread("C1", to.to).texts == ["Done."]
    assert desk.state.logs["streams"] == {}


async def test_steps_without_a_place_for_cards_are_quiet(fake: FakeSlack, desk: Desk) -> None:
    place = fake.direct("U1")
    sender, to = await desk.sender(), ref(place.id)
    sender.activity(to, Activity("c1", "web_search", "running"))
    await sender.post(to, 0, Chunk("hi", {"mrkdwn": "hi", "form": "markdown"}), final=True)
    assert fake.shown(place.id).texts == ["hi"]


# -- status ----------------------------------------------------------------------------------------------


async def test_a_status_shows_while_working_and_is_gone_at_the_end(fake: FakeSlack, desk: Desk) -> None:
    to = question(fake)
    live = Live(desk, await desk.sender(), to)
    await live.sender.typing(to)
    await live.show("The first words are here")
    await live.sender.typing(to)  # renewed while the answer grows
    await live.show("The first words are here. End.", final=True)
    await live.sender.end(to)
    assert [s["status"] for s in fake.place("C1").statuses] == ["slack.status", "slack.status", ""]
    assert {s["thread_ts"] for s in fake.place("C1").statuses} == {to.to}


async def test_a_refused_status_is_not_asked_for_again(fake: FakeSlack, desk: Desk) -> None:
    fake.fail("assistant.threads.setStatus", "missing_scope", times=99)
    to, sender = question(fake), await desk.sender()
    for _ in range(3):
        await sender.typing(to)
    assert len(fake.called("assistant.threads.setStatus")) == 1
