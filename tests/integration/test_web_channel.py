"""The web channel over HTTP: sessions, sending, the stream of events, files, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from channels.base import NotSent, OutFile, Rejected
from channels.web.conversation import MAX_WAITING
from tests.fakes.channel_env import until
from tests.integration.web_house import Reply, Visitor, WebHouse


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[WebHouse]:
    house = await WebHouse(tmp_path).start()
    yield house
    await house.stop()


@pytest.fixture
async def visitor(house: WebHouse) -> AsyncIterator[Visitor]:
    async with Visitor(house) as visitor:
        yield visitor


class Listener:
    """Reads a page's events into `seen`."""

    def __init__(self, visitor: Visitor, after: str = "") -> None:
        self.seen: list[tuple[str, str, dict]] = []
        self._task = asyncio.create_task(self._listen(visitor, after))

    async def _listen(self, visitor: Visitor, after: str) -> None:
        async for event in visitor.events(after):
            self.seen.append(event)

    def of(self, *names: str) -> list[dict]:
        return [data for name, _, data in self.seen if name in names]

    async def ready(self) -> Listener:
        await until(lambda: self.of("ready"))
        return self

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})


def shown(listener: Listener) -> str:
    """The HTML of all replies as a page would show it after these events."""
    items: dict[str, list[str]] = {}
    for data in listener.of("entry", "live"):
        if "blocks" in data:
            start = data.get("from", 0)
            items[data["id"]] = items.get(data["id"], [])[:start] + data["blocks"]
    return "".join(block for blocks in items.values() for block in blocks)


async def test_a_message_reaches_the_bridge_once_however_often_it_is_sent(
    house: WebHouse, visitor: Visitor
) -> None:
    assert [await visitor.send("message-1", "hello") for _ in range(3)] == [200, 200, 200]
    (inbound,) = house.received
    assert (inbound.id, inbound.text, inbound.sender.id) == ("message-1", "hello", "local")
    await house.stop()
    await house.start()
    assert await visitor.send("message-1", "hello") == 200
    assert len(house.received) == 1
    entries = [data for name, _, data in await visitor.catch_up() if name == "entry"]
    assert [entry["text"] for entry in entries] == ["hello"]


async def test_a_message_that_the_bridge_could_not_take_is_not_shown_as_taken(
    house: WebHouse, visitor: Visitor
) -> None:
    house.fault = OSError("no space left")
    assert await visitor.send("message-1", "hello") == 503
    assert await visitor.catch_up() == []
    house.fault = None
    assert await visitor.send("message-1", "hello") == 200
    assert len(house.received) == 1


async def test_messages_sent_at_once_keep_their_order(house: WebHouse, visitor: Visitor) -> None:
    tasks = []
    for i in range(10):
        tasks.append(asyncio.create_task(visitor.send(f"message-{i}", str(i))))
        await until(lambda i=i: len(house.received) >= max(0, i - 2))
    await asyncio.gather(*tasks)
    entries = [data for name, _, data in await visitor.catch_up() if name == "entry"]
    assert [entry["text"] for entry in entries] == [inbound.text for inbound in house.received]
    assert sorted(entry["pos"] for entry in entries) == [entry["pos"] for entry in entries]


async def test_a_growing_text_travels_in_parts_and_ends_in_the_log(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "hello")
    listener = await Listener(visitor).ready()
    reply = Reply(house, house.received[0])
    await reply.typing()
    for text in ("# One", "# One\n\nTwo", "# One\n\nTwo thr", "# One\n\nTwo three"):
        await reply.show(text)
        await until(lambda text=text: text.split()[-1] in shown(listener))
    assert [data["from"] for data in listener.of("live")] == [0, 1, 1, 1]
    await reply.finish("# One\n\nTwo three.")
    await until(lambda: listener.of("busy")[-1:] == [{"on": False}])
    assert shown(listener) == "<h1>One</h1>\n<p>Two three.</p>\n"
    assert listener.of("entry")[-1]["to"] == "u:message-1"
    await listener.close()


async def test_a_page_that_reloads_sees_the_unfinished_text_and_the_running_tool(
    house: WebHouse, visitor: Visitor
) -> None:
    await visitor.send("message-1", "hello")
    reply = Reply(house, house.received[0])
    reply.tool("c1", "read", "running", "notes.txt")
    reply.tool("c2", "bash", "running", "ls")
    reply.tool("c1", "read", "done", "42 lines")
    await reply.typing()
    await reply.show("half an ans")
    listener = await Listener(visitor).ready()
    await until(lambda: "half an ans" in shown(listener) and listener.of("busy"))
    tools = {data["name"]: data for data in listener.of("entry", "live") if data["role"] == "tool"}
    assert (tools["read"]["state"], tools["read"]["input"], tools["read"]["output"]) == (
        "done", "notes.txt", "42 lines",
    )  # fmt: skip
    assert tools["bash"]["state"] == "running"
    assert listener.of("busy")[-1] == {"on": True}
    await listener.close()


async def test_finished_tools_and_texts_are_there_after_a_restart_and_a_cut_off_tool_is_not_running(
    house: WebHouse, visitor: Visitor
) -> None:
    await visitor.send("message-1", "hello")
    reply = Reply(house, house.received[0])
    reply.tool("c1", "read", "running", "notes.txt")
    reply.tool("c1", "read", "done", "42 lines")
    reply.tool("c2", "bash", "running", "sleep 9")
    await reply.finish("The **end**.")
    await house.stop()
    await house.start()
    entries = [data for name, _, data in await visitor.catch_up() if name == "entry"]
    assert {(e["role"], e.get("name"), e.get("state")) for e in entries} == {
        ("user", None, None),
        ("tool", "read", "done"),
        ("tool", "bash", "failed"),
        ("bot", None, None),
    }
    (bot,) = [e for e in entries if e["role"] == "bot"]
    assert bot["blocks"] == ["<p>The <strong>end</strong>.</p>\n"]
    assert len({e["pos"] for e in entries if e["group"] == bot["group"]}) == 1


async def test_a_page_that_reconnects_gets_exactly_what_it_missed(house: WebHouse, visitor: Visitor) -> None:
    listener = await Listener(visitor).ready()
    for i in range(3):
        await visitor.send(f"message-{i}", str(i))
    await until(lambda: len(listener.of("entry")) == 3)
    last = [id for name, id, _ in listener.seen if name == "entry"][-1]
    await listener.close()
    assert await visitor.catch_up(last) == []
    await visitor.send("message-3", "3")
    await Reply(house, house.received[3]).finish("answer")
    missed = await visitor.catch_up(last)
    assert [data["id"] for _, _, data in missed] == ["u:message-3", "r-message-3/0"]


async def test_a_page_that_knows_more_than_the_log_starts_anew(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "hello")
    events = await visitor.catch_up("999999")
    assert [name for name, _, _ in events] == ["reset", "entry"]


async def test_a_gap_longer_than_the_log_is_read_starts_the_page_anew(
    house: WebHouse, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.web.stream.HISTORY", 3)
    await visitor.send("message-0", "0")
    first = (await visitor.catch_up())[-1][1]
    for i in range(1, 6):
        await visitor.send(f"message-{i}", str(i))
    events = await visitor.catch_up(first)
    assert [name for name, _, _ in events] == ["reset", "entry", "entry", "entry"]


async def test_what_was_shown_of_a_reply_that_was_given_up_stays(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "hello")
    reply = Reply(house, house.received[0])
    await reply.show("as far as it went")
    await house.channel.end(reply.ref)
    events = await visitor.catch_up()
    assert events[-1][2]["blocks"] == ["<p>as far as it went</p>\n"]


async def test_posting_a_chunk_again_shows_it_once(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "hello")
    for _ in range(2):
        await Reply(house, house.received[0], "r1").finish("once")
    events = await visitor.catch_up()
    assert len([data for _, _, data in events if data["id"] == "r1/0"]) == 1


async def test_a_page_too_slow_to_read_is_cut_off_and_others_are_not(
    house: WebHouse, visitor: Visitor
) -> None:
    await visitor.send("message-1", "hello")
    listener = await Listener(visitor).ready()
    (conversation,) = house.channel._conversations.values()
    slow = conversation.open_page()  # nobody takes from it
    reply = Reply(house, house.received[0])
    for i in range(MAX_WAITING + 10):
        reply.tool(f"c{i}", "read", "running")
        await asyncio.sleep(0)
    assert slow.closed
    assert not slow.waiting
    await reply.finish("done")
    await until(lambda: "done" in shown(listener))
    await listener.close()


async def test_one_visitor_sees_nothing_of_another(house: WebHouse, visitor: Visitor, tmp_path: Path) -> None:
    (tmp_path / "report.txt").write_text("secret")
    async with Visitor(house) as other:
        await visitor.send("message-1", "mine")
        reply = Reply(house, house.received[0])
        await reply.finish("here", (OutFile(str(tmp_path / "report.txt"), "report.txt", "text/plain"),))
        assert await other.catch_up() == []
        file = next(data for _, _, data in await visitor.catch_up() if "file" in data)["file"]
        async with other.http.get(f"{house.url}/web/file/{file['id']}") as response:
            assert response.status == 404
        async with visitor.http.get(f"{house.url}/web/file/{file['id']}") as response:
            assert await response.text() == "secret"
            assert response.headers["Content-Type"] == "application/octet-stream"
            assert response.headers["Content-Disposition"].startswith("attachment")
    assert len({inbound.address.chat for inbound in house.received}) == 1
    assert house.received[0].address.chat not in str(visitor.http.cookie_jar._cookies)


async def test_a_picture_of_a_reply_is_shown_in_place_and_survives_its_original(
    house: WebHouse, visitor: Visitor, tmp_path: Path
) -> None:
    picture = tmp_path / "图 1.png"
    picture.write_bytes(b"\x89PNG....")
    await visitor.send("message-1", "draw")
    reply = Reply(house, house.received[0])
    await reply.finish("", (OutFile(str(picture), picture.name, "image/png", "a caption"),))
    picture.unlink()
    (data,) = [data for _, _, data in await visitor.catch_up() if "file" in data]
    assert data["file"]["image"]
    async with visitor.http.get(f"{house.url}/web/file/{data['file']['id']}") as response:
        assert await response.read() == b"\x89PNG...."
        assert response.headers["Content-Type"] == "image/png"
        assert "sandbox" in response.headers["Content-Security-Policy"]


async def test_a_file_that_is_gone_is_rejected_and_a_failing_log_is_tried_again(
    house: WebHouse, visitor: Visitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await visitor.send("message-1", "hello")
    reply = Reply(house, house.received[0])
    with pytest.raises(Rejected):
        await reply.show("", final=True, files=(OutFile(str(tmp_path / "gone"), "gone"),))

    async def full(*_: object) -> int:
        raise OSError("database or disk is full")

    monkeypatch.setattr(house.state, "append", full)
    with pytest.raises(NotSent):
        await reply.show("text", final=True)


@pytest.mark.parametrize(
    "path", ["..%2fchannel.py", "%2e%2e/channel.py", "page.html", "../../etc/passwd", "file/..%2f..%2fx", "x"]
)
async def test_no_other_file_can_be_had(house: WebHouse, visitor: Visitor, path: str) -> None:
    import yarl

    url = yarl.URL(f"{house.url}/web/{path}", encoded=True)
    async with visitor.http.get(url) as response:
        assert response.status == 404


async def test_requests_without_session_or_of_a_wrong_form_are_refused(house: WebHouse) -> None:
    async with aiohttp.ClientSession() as stranger:
        async with stranger.get(house.url + "/web/events") as response:
            assert response.status == 403
        async with stranger.post(house.url + "/web/send", json={"id": "message-1", "text": "x"}) as response:
            assert response.status == 403
        bad_cookie = {"causeway_chat": "../../etc"}
        async with stranger.get(house.url + "/web/events", cookies=bad_cookie) as response:
            assert response.status == 403
    async with Visitor(house) as visitor:
        for id, text, status in (
            ("short", "x", 400), ("bad id!!", "x", 400), ("message-1", " \n", 400),
            ("message-1", "x" * 100_001, 413), (5, "x", 400), ("message-1", None, 400),
        ):  # fmt: skip
            assert await visitor.send(id, text) == status  # type: ignore[arg-type]
        form = {"Content-Type": "text/plain"}
        body = b'{"id":"message-1","text":"x"}'
        async with visitor.http.post(house.url + "/web/send", data=body, headers=form) as response:
            assert response.status == 415
        json_type = {"Content-Type": "application/json"}
        async with visitor.http.post(house.url + "/web/send", data=b"{", headers=json_type) as response:
            assert response.status == 400
    assert not house.received


async def test_the_page_has_strict_headers_and_its_language(house: WebHouse, visitor: Visitor) -> None:
    async with visitor.http.get(house.url + "/", headers={"Accept-Language": "zh-CN,zh;q=0.9"}) as response:
        page = await response.text()
        policy = response.headers["Content-Security-Policy"]
    assert '<html lang="zh-CN">' in page
    assert "{{" not in page
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "Set-Cookie" not in response.headers
    async with visitor.http.get(house.url + "/web/app.js") as response:
        assert response.content_type == "text/javascript"
        tag = response.headers["ETag"]
    async with visitor.http.get(house.url + "/web/app.js", headers={"If-None-Match": tag}) as response:
        assert response.status == 304


async def test_the_cookie_cannot_be_read_or_sent_from_elsewhere_and_is_kept(
    house: WebHouse, visitor: Visitor
) -> None:
    async with visitor.http.post(house.url + "/web/session") as response:
        cookie = response.headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        value = response.cookies["causeway_chat"].value
    async with visitor.http.post(house.url + "/web/session") as response:
        assert response.cookies["causeway_chat"].value == value


async def test_idle_conversations_are_dropped_from_memory(
    house: WebHouse, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("channels.web.channel._CONVERSATIONS", 3)
    for i in range(6):
        async with Visitor(house) as other:
            await other.send(f"message-{i}", "hello")
    assert len(house.channel._conversations) <= 3
    reply = Reply(house, house.received[0])
    await reply.finish("still found")  # of a conversation that was dropped
    assert len(house.channel._conversations) <= 3


async def test_a_stop_ends_open_pages_at_once(house: WebHouse, visitor: Visitor) -> None:
    listener = await Listener(visitor).ready()
    async with asyncio.timeout(5):
        await house.channel.pause()
        await house.channel.stop()
        await asyncio.wait({listener._task})
    assert await visitor.send("message-1", "too late") == 503
