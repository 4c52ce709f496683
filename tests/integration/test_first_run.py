"""A newcomer's first minutes: no configuration, no key, the real bridge and a real browser."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

import pytest

from tests.fakes.llm import require
from tests.harness import Process, say_by_api

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
             "--disable-component-update", "--no-first-run", "--disable-quic"]  # fmt: skip


@pytest.mark.xdist_group("browser")
async def test_the_demo_greets_lists_what_it_can_do_and_shows_a_tool_at_work(tmp_path: Path) -> None:
    require(CHROMIUM.exists(), "there is no browser: apt-get install chromium")
    from playwright.async_api import async_playwright, expect

    workspace = tmp_path / ".causeway" / "workspace"
    workspace.mkdir(parents=True)
    server = {"command": sys.executable, "args": ["-m", "mcp_server_time"]}
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": {"time": server}}))
    bridge = Process(None, tmp_path, "run", "--port", "0")
    await bridge.start()
    assert "demo (no real model" in bridge.output
    assert str(workspace) in bridge.output
    try:
        async with asyncio.timeout(30):  # the server starts beside the bridge, which does not wait for it
            while "1 of 1" not in await say_by_api(bridge, "/status"):
                await asyncio.sleep(0.05)
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
            page = await browser.new_page(locale="en-GB")
            page.set_default_timeout(15_000)
            await page.goto(bridge.url)
            log = page.locator("#log")

            async def say(text: str) -> None:
                await page.locator("#text").fill(text)
                await page.locator("#text").press("Enter")

            await say("hello")
            await expect(log).to_contain_text("demo model", timeout=15_000)
            await expect(log).to_contain_text("no real language model")
            await say("what can you do")
            for word in ("web_fetch", "send_file", "skill-creator", "translate", "OPENAI_API_KEY"):
                await expect(log).to_contain_text(word, timeout=15_000)
            await expect(log).not_to_contain_text("bash")  # off unless switched on
            await say("what time is it in Tokyo")
            tool = page.locator(".tool", has_text="time__get_current_time")
            await expect(tool).to_have_count(1, timeout=15_000)
            await expect(tool).to_have_class(re.compile(r"\bdone\b"), timeout=15_000)
            await expect(log).to_contain_text("Asia/Tokyo")
            await say("use skill translate")
            await expect(page.locator(".tool", has_text="read")).to_have_count(1, timeout=15_000)
            await page.reload()
            await expect(log).to_contain_text("Asia/Tokyo")
            await expect(page.locator(".tool", has_text="time__get_current_time")).to_have_count(1)
            await browser.close()
        assert await bridge.terminate() == 0
        assert "Traceback" not in bridge.output
    finally:
        await bridge.close()


async def test_a_wrong_configuration_is_explained_with_its_line_and_the_nearest_right_key(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.yaml").write_text("model:\n  provder: openai\nchanels: {}\n")
    bridge = Process(None, tmp_path)
    await bridge.start(ready=False)
    assert bridge.process is not None
    assert await bridge.process.wait() == 1
    await bridge._drained()
    for word in ("config.yaml", "provder", "provider", "chanels", "channels"):
        assert word in bridge.output, bridge.output
    assert "Traceback" not in bridge.output
    assert "config.yaml:2:" in bridge.output
    assert "config.yaml:3:" in bridge.output
