"""Questions with buttons in the web chat: shown, pressed, settled, and what of it outlives a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from channels.base import Address, Choice, NotSent, OutFile, ReplyRef
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


async def asked(house: WebHouse, visitor: Visitor) -> tuple[Reply, str]:
    """A message, and a question about it."""
    assert await visitor.send("message-1", "clean up") == 200
    reply = Reply(house, house.received[-1])
    return reply, await reply.ask("May I run **rm**?\n\n```\n<b>-rf</b>\n```", "a1", "Yes, once", "No")


async def entries(visitor: Visitor) -> dict[str, dict[str, Any]]:
    return {data["id"]: data for name, _, data in await visitor.catch_up() if name == "entry"}


async def test_a_question_shows_its_buttons_and_a_press_reaches_the_bridge(
    house: WebHouse, visitor: Visitor
) -> None:
    _, card = await asked(house, visitor)
    shown = (await entries(visitor))[card]
    assert [(one["id"], one["label"]) for one in shown["choices"]] == [
        ("ap:a1:0", "Yes, once"),
        ("ap:a1:1", "No"),
    ]
    html = "".join(shown["blocks"])
    assert "<strong>rm</strong>" in html
    assert "&lt;b&gt;-rf" in html
    assert await visitor.press(card, "ap:a1:0") == (200, {"said": "noted"})
    (press,) = house.presses
    assert (press.choice, press.message_id, press.sender.id) == ("ap:a1:0", card, "local")
    assert press.address == house.received[0].address


async def test_the_outcome_takes_the_place_of_the_buttons_also_after_a_restart(
    house: WebHouse, visitor: Visitor
) -> None:
    reply, card = await asked(house, visitor)
    await house.stop()
    await house.start()
    before = (await entries(visitor))[card]
    assert "outcome" not in before
    assert await visitor.press(card, "ap:a1:1") == (200, {"said": "noted"})
    for _ in range(2):  # told twice, as after a crash
        await reply.settle(card, "**rm**: denied by <i>me</i>")
    await house.stop()
    await house.start()
    after = (await entries(visitor))[card]
    assert after["outcome"] == ["<p><strong>rm</strong>: denied by &lt;i&gt;me&lt;/i&gt;</p>\n"]
    assert (after["blocks"], after["pos"], after["group"]) == tuple(
        before[key] for key in ("blocks", "pos", "group")
    )
    # A late press still gets the bridge's word on it.
    house.answer = "decided already"
    assert await visitor.press(card, "ap:a1:0") == (200, {"said": "decided already"})


async def test_a_question_stands_in_the_reply_that_it_belongs_to(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "clean up")
    reply = Reply(house, house.received[-1])
    reply.tool("c1", "bash", "running", "rm")
    first = await reply.ask("May I?", "a1")
    reply.tool("c1", "bash", "done", "gone")
    await reply.finish("I did.")
    await house.stop()
    await house.start()
    second = await reply.ask("And this?", "a2")
    found = await entries(visitor)
    assert {found[id]["group"] for id in (first, second, f"{reply.ref.id}/0")} == {reply.ref.id}


async def test_asking_again_after_a_crash_shows_the_question_once(house: WebHouse, visitor: Visitor) -> None:
    reply, card = await asked(house, visitor)
    await house.stop()
    await house.start()
    assert await reply.ask("May I run **rm**?", "a1", "Yes, once", "No") == card
    cards = [entry for entry in (await entries(visitor)).values() if "choices" in entry]
    assert len(cards) == 1


async def test_a_question_without_choices_is_a_message_like_any_other(
    house: WebHouse, visitor: Visitor
) -> None:
    await visitor.send("message-1", "hello")
    ref = Reply(house, house.received[-1]).ref
    id = await house.channel.ask(ref, "Which city?", ())
    assert "choices" not in (await entries(visitor))[id]


async def test_an_outcome_without_its_question_is_shown_all_the_same(
    house: WebHouse, visitor: Visitor
) -> None:
    await visitor.send("message-1", "hello")
    reply = Reply(house, house.received[-1])
    await reply.settle("a9/0", "Nobody answered in time.")
    assert "Nobody answered" in (await entries(visitor))["a9/0"]["outcome"][0]


async def test_nobody_presses_what_was_not_shown_to_them(house: WebHouse, visitor: Visitor) -> None:
    _, card = await asked(house, visitor)
    async with Visitor(house) as other:
        assert (await other.press(card, "ap:a1:0"))[0] == 404
    assert (await visitor.press(card, "ap:a1:always"))[0] == 404
    assert (await visitor.press("u:message-1", "ap:a1:0"))[0] == 404
    assert (await visitor.press(None, ["ap:a1:0"]))[0] == 400
    url = house.url + "/web/press"
    async with visitor.http.post(url, data=f'{{"card":"{card}","choice":"ap:a1:0"}}') as response:
        assert response.status == 415  # a form of another site
    async with visitor.http.post(url, json=[card]) as response:
        assert response.status == 400
    async with aiohttp.ClientSession() as stranger, stranger.post(url, json={}) as response:
        assert response.status == 403
    assert not house.presses


async def test_a_press_that_the_bridge_could_not_take_may_be_made_again(
    house: WebHouse, visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    _, card = await asked(house, visitor)
    for fault in (OSError("disk full"), TimeoutError()):
        house.answer = fault
        status, body = await visitor.press(card, "ap:a1:0")
        assert (status, body["again"]) == (503, True)
        assert "disk" not in body["error"]
    assert "a pressed button was not taken" in caplog.text
    await house.channel.pause()
    assert (await visitor.press(card, "ap:a1:0"))[0] == 503


async def test_a_log_that_cannot_be_written_makes_the_question_not_sent(
    house: WebHouse, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply, card = await asked(house, visitor)

    async def full(*_: object) -> int:
        raise OSError("disk full")

    monkeypatch.setattr(house.state, "append", full)
    with pytest.raises(NotSent):
        await house.channel.ask(ReplyRef("a2", Address("web", "c")), "?", [Choice("x", "y")])
    with pytest.raises(NotSent):
        await reply.settle(card, "done")


async def test_sc_02_a_link_in_the_folder_of_files_leads_nowhere(house: WebHouse, visitor: Visitor) -> None:
    await visitor.send("message-1", "a file, please")
    reply = Reply(house, house.received[-1])
    (house.folder / "report.txt").write_text("the report")
    await reply.finish("Here.", (OutFile(str(house.folder / "report.txt"), "report.txt"),))
    (file,) = [entry["file"]["id"] for entry in (await entries(visitor)).values() if "file" in entry]
    address = f"{house.url}/web/file/{file}"
    async with visitor.http.get(address) as response:
        assert await response.text() == "the report"
    copy = house.folder / "files" / file
    assert copy.is_file()
    copy.unlink()
    copy.symlink_to("/etc/passwd")
    async with visitor.http.get(address) as response:
        assert response.status == 404
        assert "root:" not in await response.text()
