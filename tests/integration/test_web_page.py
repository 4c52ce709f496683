"""The page in a real browser: typing, streaming, reloads, lost connections, hostile text."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from channels.base import OutFile
from tests.fakes.channel_env import until
from tests.integration.web_house import Reply, WebHouse

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--disable-quic",
]  # fmt: skip

pytestmark = [
    pytest.mark.skipif(
        not CHROMIUM.exists() and not os.environ.get("CI"),
        reason=f"there is no browser at {CHROMIUM}: apt-get install chromium",
    ),
    pytest.mark.asyncio(loop_scope="module"),  # starting the browser is slow: one for all tests here
    pytest.mark.xdist_group("browser"),
]


@pytest_asyncio.fixture(loop_scope="module")
async def house(tmp_path: Path) -> AsyncIterator[WebHouse]:
    house = await WebHouse(tmp_path).start()
    yield house
    await house.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(house: WebHouse, browser: Browser) -> AsyncIterator[Page]:
    """An open page; what the browser's console complains about fails the test."""
    context = await browser.new_context(locale="en-GB")
    page = await context.new_page()
    page.set_default_timeout(8000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    await page.goto(house.url)
    await online(page)
    yield page
    network = re.compile(r"Failed to load resource|ERR_CONNECTION|ERR_EMPTY|ERR_INCOMPLETE|ERR_INTERNET")
    assert [complaint for complaint in complaints if not network.search(complaint)] == []
    await context.close()


async def online(page: Page) -> None:
    await page.wait_for_selector("#connection[data-state=online]")


async def say(page: Page, house: WebHouse, text: str) -> Reply:
    """Type a message and send it; the reply to it."""
    count = len(house.received)
    await page.fill("#text", text)
    await page.press("#text", "Enter")
    await until(lambda: len(house.received) > count)
    return Reply(house, house.received[-1])


async def texts(page: Page, selector: str) -> list[str]:
    return [text.strip() for text in await page.locator(selector).all_inner_texts()]


async def wait_text(page: Page, selector: str, text: str) -> None:
    found = "([at, text]) => [...document.querySelectorAll(at)].some(e => e.innerText.includes(text))"
    await page.wait_for_function(found, arg=[selector, text])


async def test_a_message_is_typed_sent_and_answered_as_it_streams(house: WebHouse, page: Page) -> None:
    assert await page.locator("#empty").is_visible()
    await page.locator("#text").press_sequentially("hello")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("second line")
    assert not house.received
    await page.keyboard.press("Enter")
    await until(lambda: house.received)
    assert house.received[0].text == "hello\nsecond line"
    assert house.received[0].sender.language == "en-GB"
    assert not await page.locator("#empty").is_visible()
    reply = Reply(house, house.received[0])
    await reply.typing()
    await page.wait_for_selector("#working:not([hidden])")
    await page.wait_for_selector("#stop:not([hidden])")
    reply.tool("c1", "read", "running", "notes.txt")
    await page.wait_for_selector(".tool.running")
    await reply.show("The **first")
    await wait_text(page, ".bot .body", "first")
    reply.tool("c1", "read", "done", "42 lines")
    await page.wait_for_selector(".tool.done")
    await reply.finish("The **first** word\n\n```python\nprint(1)\n```")
    await page.wait_for_selector(".bot strong")
    await page.wait_for_selector("#working", state="hidden")
    assert await texts(page, ".bot pre code") == ["print(1)"]
    await page.click(".tool summary")
    assert "42 lines" in (await texts(page, ".tool .parts"))[0]
    assert await page.locator("#text").input_value() == ""


async def test_enter_that_chooses_a_word_of_an_input_method_does_not_send(
    house: WebHouse, page: Page
) -> None:
    await page.fill("#text", "你好")
    await page.evaluate(
        """() => {
            const press = (more) => document.getElementById("text").dispatchEvent(
                new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...more }));
            press({ isComposing: true });
            press({ keyCode: 229 });
        }"""
    )
    assert await page.locator("#text").input_value() == "你好"
    await page.press("#text", "Enter")
    await until(lambda: house.received)
    assert [inbound.text for inbound in house.received] == ["你好"]


async def test_a_reload_in_the_middle_of_a_reply_neither_loses_nor_doubles_text(
    house: WebHouse, page: Page
) -> None:
    reply = await say(page, house, "tell me")
    await reply.show("one two")
    await wait_text(page, ".bot .body", "one two")
    await page.reload()
    await online(page)
    await wait_text(page, ".bot .body", "one two")
    await reply.show("one two three")
    await wait_text(page, ".bot .body", "three")
    await reply.finish("one two three four")
    await wait_text(page, ".bot .body", "four")
    await page.reload()
    await wait_text(page, ".bot .body", "four")
    assert await texts(page, ".bot .body") == ["one two three four"]
    assert await texts(page, ".mine .text") == ["tell me"]


async def test_a_restart_of_the_bridge_loses_neither_messages_nor_replies(
    house: WebHouse, page: Page
) -> None:
    reply = await say(page, house, "before")
    await reply.show("half")
    await wait_text(page, ".bot .body", "half")
    await house.stop()
    await page.wait_for_selector("#connection[data-state=offline]")
    await page.fill("#text", "during")
    await page.press("#text", "Enter")
    await page.wait_for_selector(".mine.pending")
    await house.start()
    await Reply(house, house.received[0]).finish("half and whole")
    await wait_text(page, ".bot .body", "half and whole")
    await until(lambda: len(house.received) == 2)
    await page.wait_for_selector(".mine.pending", state="detached")
    await Reply(house, house.received[1]).finish("second answer")
    await wait_text(page, ".bot .body", "second answer")
    assert await texts(page, ".mine .text") == ["before", "during"]
    assert await texts(page, ".bot .body") == ["half and whole", "second answer"]
    assert await page.evaluate("localStorage.length") == 0


async def test_messages_written_offline_survive_a_closed_page_and_are_sent_in_order(
    house: WebHouse, page: Page
) -> None:
    await page.context.set_offline(True)
    await page.wait_for_selector("#connection[data-state=offline]")
    for text in ("first", "second", "third"):
        await page.fill("#text", text)
        await page.press("#text", "Enter")
    assert len(await texts(page, ".mine.pending")) == 3
    other = await page.context.new_page()
    await page.close()
    await page.context.set_offline(False)
    await other.goto(house.url)
    await until(lambda: len(house.received) == 3)
    assert [inbound.text for inbound in house.received] == ["first", "second", "third"]
    await other.wait_for_selector(".mine.pending", state="detached")
    assert await texts(other, ".mine .text") == ["first", "second", "third"]


async def test_a_lost_answer_to_sending_does_not_double_the_message(house: WebHouse, page: Page) -> None:
    lost = 0

    async def drop_the_answer(route) -> None:
        nonlocal lost
        lost += 1
        if lost <= 2:
            await route.fetch()  # the bridge gets it, the page never hears so
            await route.abort("connectionreset")
        else:
            await route.continue_()

    await page.route("**/web/send", drop_the_answer)
    await page.fill("#text", "only once")
    await page.press("#text", "Enter")
    await until(lambda: house.received)
    await page.wait_for_function("localStorage.length === 0")
    await page.wait_for_selector(".mine.pending", state="detached")
    assert [inbound.text for inbound in house.received] == ["only once"]
    assert await texts(page, ".mine .text") == ["only once"]


async def test_hostile_text_runs_nothing_and_loads_nothing(
    house: WebHouse, page: Page, tmp_path: Path
) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hostile = (
        "<script>window.hit=1</script><img src=x onerror='window.hit=1'>\n\n"
        "![pixel](https://evil.example/p.png)\n\n[a](javascript:window.hit=1) [b](data:text/html,x)\n\n"
        '```"><script>window.hit=1</script>\n</code></pre><script>window.hit=1</script>\n```\n'
    )
    reply = await say(page, house, "<img src=x onerror='window.hit=1'>")
    (tmp_path / "f").write_text("<script>window.hit=1</script>")
    name = "<img src=x onerror=window.hit=1>.html"
    reply.tool("c", "<img src=x onerror=window.hit=1>", "running", "<script>window.hit=1</script>")
    reply.tool("c", "<img src=x onerror=window.hit=1>", "failed", "</pre><script>window.hit=1</script>")
    await reply.finish(hostile, (OutFile(str(tmp_path / "f"), name, "text/html", "<b onclick=x>"),))
    await page.wait_for_selector(".file .download")
    for _ in range(2):
        await page.click(".tool summary")
        assert await page.evaluate("window.hit") is None
        forbidden = "#log :is(script, img, iframe, b, svg:not(.chevron), [onclick], [onerror], [style])"
        assert await page.locator(forbidden).count() == 0
        links = await page.evaluate("[...document.querySelectorAll('#log .text a')].map(a => a.href)")
        assert links == ["https://evil.example/p.png"]
        await page.reload()
        await page.wait_for_selector(".file .download")
    assert all(url.startswith(house.url) for url in asked)


async def test_new_chat_empties_the_page_and_earlier_messages_can_be_shown(
    house: WebHouse, page: Page
) -> None:
    await (await say(page, house, "old question")).finish("old answer")
    await wait_text(page, ".bot .body", "old answer")
    await page.click("#new")
    await until(lambda: len(house.received) == 2)
    assert house.received[1].text == "/new"
    await page.wait_for_selector(".divider", state="attached")
    await page.wait_for_selector("#empty:not([hidden])")
    assert not await page.locator(".mine").first.is_visible()
    await page.click("#earlier")
    assert await page.locator(".mine").first.is_visible()
    await page.click("#suggestions button >> nth=0")
    await until(lambda: len(house.received) == 3)


async def test_the_stop_button_sends_the_command(house: WebHouse, page: Page) -> None:
    reply = await say(page, house, "work")
    await reply.typing()
    await page.click("#stop")
    await until(lambda: len(house.received) == 2)
    assert house.received[1].text == "/stop"
    await reply.finish("stopped")
    await page.wait_for_selector("#stop", state="hidden")


async def test_the_page_follows_new_text_only_for_a_reader_at_its_end(house: WebHouse, page: Page) -> None:
    at_end = (
        "(() => { const s = document.getElementById('scroll');"
        " return s.scrollHeight - s.scrollTop - s.clientHeight < 5; })()"
    )
    reply = await say(page, house, "long")
    await reply.show("\n\n".join(f"line {i}" for i in range(100)))
    await wait_text(page, ".bot .body", "line 99")
    assert await page.evaluate(at_end)
    await page.evaluate("document.getElementById('scroll').scrollTop = 0")
    await page.wait_for_selector("#latest:not([hidden])")
    await reply.show("\n\n".join(f"line {i}" for i in range(120)))
    await wait_text(page, ".bot .body", "line 119")
    assert await page.evaluate("document.getElementById('scroll').scrollTop") == 0
    await page.click("#latest")
    await page.wait_for_function(at_end)
    await page.wait_for_selector("#latest", state="hidden")


async def test_a_message_refused_for_good_says_why_and_blocks_no_other(house: WebHouse, page: Page) -> None:
    await page.evaluate("document.getElementById('text').removeAttribute('maxlength')")
    await page.evaluate("document.getElementById('text').value = 'x'.repeat(100001)")
    await page.press("#text", "Enter")
    await wait_text(page, ".mine.failed .note", "100000")
    reply = await say(page, house, "short")
    await reply.finish("fine")
    await wait_text(page, ".bot .body", "fine")
    assert len(house.received) == 1


async def test_a_selection_in_finished_blocks_survives_growing_text(house: WebHouse, page: Page) -> None:
    reply = await say(page, house, "go")
    await reply.show("First paragraph.\n\nSecond")
    await wait_text(page, ".bot .body", "Second")
    await page.evaluate("getSelection().selectAllChildren(document.querySelector('.bot .block p'))")
    await reply.show("First paragraph.\n\nSecond and third")
    await wait_text(page, ".bot .body", "third")
    assert await page.evaluate("getSelection().toString()") == "First paragraph."


async def test_two_pages_of_one_visitor_show_the_same(house: WebHouse, page: Page) -> None:
    other = await page.context.new_page()
    await other.goto(house.url)
    await online(other)
    reply = await say(page, house, "hello both")
    await wait_text(other, ".mine .text", "hello both")
    await reply.finish("hello two")
    for one in (page, other):
        await wait_text(one, ".bot .body", "hello two")


async def test_a_narrow_page_never_scrolls_sideways(house: WebHouse, page: Page) -> None:
    await page.set_viewport_size({"width": 340, "height": 600})
    reply = await say(page, house, "w" * 200)
    cells = " | ".join("column" for _ in range(12))
    table = f"| {cells} |\n|{'---|' * 12}\n| {cells} |"
    reply.tool("c", "a_server__a_tool_with_a_very_long_name_that_goes_on", "running", "x" * 500)
    await reply.finish(f"{'https://a.example/' + 'x' * 200}\n\n{table}\n\n```\n{'y' * 300}\n```")
    await page.wait_for_selector(".bot table")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 340
    assert (
        await page.evaluate(
            "document.getElementById('scroll').scrollWidth - document.getElementById('scroll').clientWidth"
        )
        == 0
    )


async def test_a_question_is_answered_by_keyboard_and_its_outcome_is_in_every_tab(
    house: WebHouse, page: Page
) -> None:
    other = await page.context.new_page()
    await other.goto(house.url)
    await online(other)
    reply = await say(page, house, "clean up")
    await reply.typing()
    card = await reply.ask("May I run **rm**?", "a1", "Yes, once", "No")
    for one in (page, other):
        await one.wait_for_selector(".card .choices button")
        assert await one.title() == "● Causeway"
    assert not await page.locator("#working").is_visible()  # it is the person's turn
    assert await page.get_by_role("group", name="web.card").get_by_role("button").count() == 2
    await page.locator(".card button", has_text="Yes, once").focus()
    await page.keyboard.press("Enter")
    await until(lambda: house.presses)
    assert house.presses[0].choice == "ap:a1:0"
    await wait_text(page, ".card [role=status]", "noted")
    assert await texts(other, ".card .said") == [""]  # told to the one who pressed, and to nobody else
    await reply.settle(card, "✅ **rm**: allowed")
    for one in (page, other):
        await one.wait_for_selector(".card.settled .outcome strong")
        assert await one.locator(".card button").count() == 0
        assert await one.title() == "Causeway"
    assert await page.evaluate("document.activeElement.className") == "outcome"
    await page.reload()
    await page.wait_for_selector(".card.settled .outcome strong")
    assert await texts(page, ".card .outcome") == ["✅ rm: allowed"]


async def test_a_question_survives_a_restart_and_a_failed_press_can_be_repeated(
    house: WebHouse, page: Page
) -> None:
    reply = await say(page, house, "clean up")
    await reply.ask("May I?", "a1", "Yes", "No")
    await page.wait_for_selector(".card button")
    await house.stop()
    await page.wait_for_selector("#connection[data-state=offline]")
    await page.click(".card button >> nth=1")
    await wait_text(page, ".card .said", "web.card.failed")
    await house.start()
    await online(page)
    await page.click(".card button[aria-disabled=false] >> nth=1")
    await until(lambda: house.presses)
    assert [press.choice for press in house.presses] == ["ap:a1:1"]


async def test_a_long_question_fits_a_narrow_page_and_runs_nothing(house: WebHouse, page: Page) -> None:
    await page.set_viewport_size({"width": 340, "height": 600})
    reply = await say(page, house, "go")
    hostile = "<img src=x onerror='window.hit=1'>"
    question = f"May I? {hostile}\n\n```\n{'y' * 3000}\n</code></pre>{hostile}\n```"
    card = await reply.ask(question, "a1", hostile, "A button with a label that goes on and on and on", "No")
    await page.wait_for_selector(".card button")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 340
    await reply.settle(card, hostile)
    await page.wait_for_selector(".card.settled")
    assert await page.locator(".card img").count() == 0
    assert await page.evaluate("window.hit") is None
