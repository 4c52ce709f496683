"""The console in a real browser: people, waiting calls, and a page that stays still for its reader."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from bridge.app import App
from tests.fakes.llm import Call, Say, ScriptedModel, Seen
from tests.fakes.telegram import TOKEN, FakeTelegram
from tests.harness import bridge, openai_at
from tests.integration.test_web_page import CHROMIUM, browser, wait_text

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

__all__ = ["browser"]  # the fixture

pytestmark = [
    pytest.mark.skipif(
        not CHROMIUM.exists() and not os.environ.get("CI"),
        reason=f"there is no browser at {CHROMIUM}: apt-get install chromium",
    ),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("browser"),
]


def answer(seen: Seen) -> Say:
    if "clean" in seen.last_user and not seen.results:
        return Say(calls=(Call("bash", {"command": "echo '<img src=x onerror=window.hit=1>'"}),))
    return Say("Well.")


@pytest_asyncio.fixture(loop_scope="module")
async def telegram() -> AsyncIterator[FakeTelegram]:
    async with FakeTelegram() as telegram:
        yield telegram


@pytest_asyncio.fixture(loop_scope="module")
async def app(tmp_path: Path, telegram: FakeTelegram) -> AsyncIterator[App]:
    async with ScriptedModel(answer).running() as model:
        settings = {
            "model": openai_at(model.openai_url),
            "channels": {"telegram": {"token": TOKEN, "base_url": telegram.url}, "web": {}},
            "access": {"telegram": {"admins": ["5"]}},
            "tools": {"bash": {"enabled": True}},
        }
        async with bridge(tmp_path, settings) as app:
            yield app


@pytest_asyncio.fixture(loop_scope="module")
async def page(app: App, browser: Browser) -> AsyncIterator[Page]:
    context = await browser.new_context(locale="en-GB")
    page = await context.new_page()
    page.set_default_timeout(8000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda line: complaints.append(line.text) if line.type == "error" else None)
    await page.goto(f"{app.url}/console")
    await page.wait_for_selector("#connection[data-state=online]")
    yield page
    assert [one for one in complaints if not re.search("Failed to load resource|ERR_", one)] == []
    await context.close()


async def look_again(page: Page) -> None:
    """What the page does every few seconds, now."""
    async with page.expect_response("**/console/state*"):
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


async def test_somebody_is_let_in_with_a_role_and_taken_out_again(
    app: App, telegram: FakeTelegram, page: Page
) -> None:
    assert await page.locator("#nothing").is_visible()
    telegram.say(9, "may I?")
    await telegram.wait_for(lambda: telegram.chat(9).shown)
    await look_again(page)
    row = page.locator("#waiting li")
    assert "User 9" in await row.inner_text()
    assert await page.title() == "● Causeway · Console"
    await row.get_by_label("Role").select_option("admin")
    await look_again(page)  # what is being chosen stays chosen
    assert await row.get_by_label("Role").input_value() == "admin"
    await row.get_by_role("button", name="Let in").press("Enter")
    await wait_text(page, "#said", "User 9 is let in as admin.")
    await page.wait_for_selector("#nothing", state="visible")
    assert app.access.grants.role("telegram", "9") == "admin"
    await telegram.wait_for(lambda: "You are let in" in telegram.chats[9].texts[-1])
    person = page.locator("#people li", has_text="telegram:9")
    await person.get_by_role("button", name="Revoke").click()
    assert app.access.grants.role("telegram", "9") == "admin"  # asked once more first
    await person.get_by_role("button", name="Really revoke?").click()
    await person.wait_for(state="detached")
    assert app.access.grants.role("telegram", "9") is None


async def test_a_waiting_call_is_shown_as_text_and_allowed(
    app: App, telegram: FakeTelegram, page: Page
) -> None:
    telegram.say(5, "clean up", 5)
    await telegram.wait_for(lambda: any("bash" in text for text in telegram.chat(5).texts))
    await look_again(page)
    assert "<img src=x" in await page.locator("#approvals pre").inner_text()
    assert await page.locator("main img").count() == 0
    assert await page.evaluate("window.hit") is None
    await page.get_by_role("button", name="Yes, once").click()
    await wait_text(page, "#said", "Allowed: bash.")
    await page.wait_for_selector("#approvals li", state="detached")
    await telegram.wait_for(lambda: any("allowed by console" in text for text in telegram.chats[5].texts))
    await telegram.wait_for(lambda: "Well." in telegram.chats[5].texts[-1])
    assert "allowed once" in await page.locator("#audit li").first.inner_text()


async def test_a_page_that_is_read_does_not_move(app: App, telegram: FakeTelegram, page: Page) -> None:
    telegram.say(5, "hello", 5)
    await telegram.wait_for(lambda: "Well." in telegram.chat(5).texts)
    await look_again(page)
    await page.locator("#sessions summary").click()
    await page.wait_for_selector("#sessions .bar")
    words = await page.locator("#sessions .body").inner_text()
    assert re.search(r"system prompt\s+\d+\s+skills\s+\d+\s+tools\s+[\d,]+", words), words
    await page.locator("#servers summary").first.focus()
    await page.keyboard.press("Enter")
    await page.evaluate("document.querySelectorAll('#servers li, #skills li').forEach(e => { e.mark = 1; })")
    before = await page.locator("#servers").inner_text()
    await look_again(page)
    unmarked = "[...document.querySelectorAll('#servers li, #skills li')].filter(e => !e.mark).length"
    assert await page.evaluate(unmarked) == 0
    # Of a row that did change, what was open stays open, and the focus stays where it was.
    await app.tools.switch("ls", on=False)
    await look_again(page)
    await page.wait_for_function(
        "before => document.getElementById('servers').innerText !== before", arg=before
    )
    assert await page.locator("#servers details").first.get_attribute("open") is not None
    assert await page.evaluate("document.activeElement.closest('#servers') !== null")
    assert await page.locator("#sessions .bar").first.is_visible()


async def test_the_page_speaks_chinese_and_fits_a_phone(app: App, page: Page) -> None:
    await page.set_viewport_size({"width": 340, "height": 700})
    await page.get_by_role("link", name="中文").click()
    await page.wait_for_selector("html[lang=zh-CN] #connection[data-state=online]")
    assert await page.locator("h1").inner_text() == "控制台"
    assert await page.locator("#nothing").inner_text() == "没有等待处理的事项。"
    assert not re.search(r"undefined|\{\{|console\.", await page.locator("body").inner_text())
    assert await page.evaluate("document.documentElement.scrollWidth") <= 340
    await page.get_by_role("link", name="English").click()
    await page.wait_for_selector("html[lang=en] #connection[data-state=online]")


async def test_a_bridge_that_is_away_is_told_and_found_again(page: Page) -> None:
    await page.context.set_offline(True)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for_selector("#connection[data-state=offline]")
    await page.context.set_offline(False)
    await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    await page.wait_for_selector("#connection[data-state=online]")
