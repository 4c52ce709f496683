"""What servers ask of a chat, tell about a call, and offer beside tools: against servers of both eras."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.tools.base import Answer, Caller, Question, Sample, ToolContext, ToolFailure, ToolResult
from tests.fakes.llm import free_port
from tests.fakes.mcp_bench import FAKES, Bench, alive, bench, plain, sdk, until
from tests.integration.test_mcp_real_servers import needs_node, published

FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "size": {"type": "integer", "default": 3, "minimum": 1},
        "tone": {"type": "string", "enum": ["warm", "cool"], "default": "warm"},
        "gift": {"type": "boolean", "default": True},
    },
    "required": ["name"],
}
FORM_REQUEST = {
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "For whom?", "requestedSchema": FORM},
}
SAMPLE_REQUEST = {
    "method": "sampling/createMessage",
    "params": {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Say hi"}}],
        "systemPrompt": "Be brief.",
        "maxTokens": 50,
    },
}
ROOTS_REQUEST = {"method": "roots/list", "params": {}}


class Desk:
    """A chat with a person who answers as told."""

    def __init__(self, answer: Answer | None = None, said: str | ToolFailure = "hi") -> None:
        self.answer = answer
        self.said = said
        self.questions: list[Question] = []
        self.samples: list[Sample] = []
        self.told: list[tuple[float, float | None, str]] = []
        self.left = 0

    async def ask(self, question: Question) -> Answer:
        self.questions.append(question)
        try:
            if self.answer is None:
                await asyncio.Event().wait()
            assert self.answer is not None
            return self.answer
        finally:
            self.left += 1

    def progress(self, done: float, total: float | None, message: str) -> None:
        self.told.append((done, total, message))

    async def sample(self, sample: Sample) -> str:
        self.samples.append(sample)
        if isinstance(self.said, ToolFailure):
            raise self.said
        return self.said


async def call(b: Bench, name: str, desk: Desk | None, session: str = "s", /, **arguments: Any) -> ToolResult:
    folder = b.folder / session
    folder.mkdir(exist_ok=True)
    context = ToolContext(session, "r", folder, Caller("u"), lambda name: None, call="c", desk=desk)
    return await b.tool(name).execute(arguments, context)


@pytest.fixture(scope="module")
def remotes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[str, Path]]]:
    """The SDK's server over HTTP in both eras, for all tests of a process: address and log."""
    log = tmp_path_factory.mktemp("remotes") / "log"
    ports = {"http": free_port(), "legacy http": free_port()}
    words = ["--port", str(ports["http"]), "--legacy-port", str(ports["legacy http"]), "--log", str(log)]
    process = subprocess.Popen([sys.executable, str(FAKES / "mcp_sdk.py"), *words])
    try:
        yield {way: (f"http://127.0.0.1:{port}/mcp", log) for way, port in ports.items()}
    finally:
        process.kill()
        process.wait(10)


@dataclass(frozen=True)
class Way:
    """A way to a server: an entry for `mcp.json` and the file in which its tools write down what happens."""

    name: str
    words: dict[str, Any]
    log: Path

    def entry(self, **more: Any) -> dict[str, Any]:
        return {**self.words, **more}


@pytest.fixture(params=["stdio", "legacy stdio", "http", "legacy http"])
async def way(request: pytest.FixtureRequest, tmp_path: Path, remotes: dict[str, tuple[str, Path]]) -> Way:
    name: str = request.param
    if "http" not in name:
        log = tmp_path / "log"
        legacy = ["--legacy"] if "legacy" in name else []
        return Way(name, sdk("--log", str(log), *legacy), log)
    return await remote(remotes, name)


@pytest.fixture(params=["http", "legacy http"])
async def era(request: pytest.FixtureRequest, remotes: dict[str, tuple[str, Path]]) -> Way:
    """One way to a server of each era, for what does not depend on the transport."""
    return await remote(remotes, request.param)


async def remote(remotes: dict[str, tuple[str, Path]], name: str) -> Way:
    url, log = remotes[name]
    async with asyncio.timeout(40):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            return Way(name, {"url": url}, log)


async def test_a_form_is_asked_in_the_chat_and_its_defaults_are_filled_in(tmp_path: Path, way: Way) -> None:
    async with bench(tmp_path, {"a": way.entry()}) as b:
        desk = Desk(Answer("accept", {"name": "Ann", "size": "7", "unknown": 1}))
        result = await call(b, "a__ask", desk, request=FORM_REQUEST)
        content = {"name": "Ann", "size": 7, "tone": "warm", "gift": True}
        assert json.loads(result.text)["content"] == content
        assert [(q.source, q.text) for q in desk.questions] == [("a", "For whom?")]
        assert desk.questions[0].schema["required"] == ["name"]
        for said in (Answer("decline"), Answer("cancel")):
            result = await call(b, "a__ask", Desk(said), request=FORM_REQUEST)
            assert json.loads(result.text)["action"] == said.action


async def test_what_cannot_be_asked_or_does_not_fit_is_a_cancel(tmp_path: Path, era: Way) -> None:
    async with bench(tmp_path, {"a": era.entry()}) as b:
        for desk in (
            None,
            Desk(Answer("accept", {})),
            Desk(Answer("accept", {"name": "x", "size": 0})),
            Desk(Answer("accept", {"name": "x", "tone": "loud"})),
        ):
            result = await call(b, "a__ask", desk, request=FORM_REQUEST)
            assert json.loads(result.text)["action"] == "cancel"
            assert "content" not in json.loads(result.text)


async def test_a_page_to_open_is_shown_and_one_that_is_no_web_page_is_refused(
    tmp_path: Path, era: Way
) -> None:
    def request(url: str) -> dict[str, Any]:
        params = {"mode": "url", "message": "Open", "url": url, "elicitationId": "1"}
        if era.name == "http":
            del params["elicitationId"]
        return {"method": "elicitation/create", "params": params}

    async with bench(tmp_path, {"a": era.entry()}) as b:
        desk = Desk(Answer("accept"))
        result = await call(b, "a__ask", desk, request=request("https://example.org/in"))
        assert json.loads(result.text)["action"] == "accept"
        assert "content" not in json.loads(result.text)
        assert [q.url for q in desk.questions] == ["https://example.org/in"]
        result = await call(b, "a__ask", desk, request=request("javascript:alert(1)"))
        assert result.is_error
        assert len(desk.questions) == 1


async def test_a_call_that_is_refused_until_a_page_was_opened_is_made_again(
    tmp_path: Path, remotes: dict[str, tuple[str, Path]]
) -> None:
    far = await remote(remotes, "legacy http")
    async with bench(tmp_path, {"a": far.entry()}) as b:
        desk = Desk(Answer("accept"))
        assert (await call(b, "a__needs_page", desk, key=str(tmp_path))).text == "signed in"
        assert [q.url for q in desk.questions] == ["https://example.org/in"]
        result = await call(b, "a__needs_page", Desk(Answer("decline")), key="another")
        assert result.is_error
        assert "sign in first" in result.text


async def test_the_model_is_asked_by_the_desk_and_its_refusal_is_a_protocol_error(
    tmp_path: Path, era: Way
) -> None:
    async with bench(tmp_path, {"a": era.entry()}, sampling=True) as b:
        desk = Desk(said="hello there")
        result = await call(b, "a__ask", desk, request=SAMPLE_REQUEST)
        assert json.loads(result.text)["content"] == {"type": "text", "text": "hello there"}
        assert desk.samples == [Sample("a", (("user", "Say hi"),), "Be brief.", 50)]
        refused = Desk(said=ToolFailure("Over the budget", "of this turn."))
        result = await call(b, "a__ask", refused, request=SAMPLE_REQUEST)
        assert result.is_error
        assert "Over the budget" in result.text


async def test_roots_are_the_folder_of_the_session_that_calls_and_stay_on_this_host(
    tmp_path: Path, remotes: dict[str, tuple[str, Path]]
) -> None:
    async with bench(tmp_path, {"a": sdk(), "l": sdk("--legacy")}) as b:
        for name in ("a__ask", "l__ask"):
            result = await call(b, name, Desk(), "mine", request=ROOTS_REQUEST)
            assert json.loads(result.text)["roots"][0]["uri"] == (tmp_path / "mine").as_uri()
    far = await remote(remotes, "http")
    async with bench(tmp_path, {"r": far.entry()}) as b:
        result = await call(b, "r__ask", Desk(), "mine", request=ROOTS_REQUEST)
        assert result.is_error
        assert "mine" not in result.text


async def test_with_calls_of_two_chats_under_way_a_question_reaches_its_own_or_nobody(
    tmp_path: Path, remotes: dict[str, tuple[str, Path]]
) -> None:
    # Over a pipe of the older era nothing says for which call a request is; over HTTP its stream does.
    async with bench(tmp_path, {"a": sdk("--legacy")}) as b:
        other = asyncio.create_task(call(b, "a__wait", Desk(), "other", seconds=60))
        await until(lambda: b.hub.find("a")._calls)  # type: ignore[union-attr]
        mine = Desk(Answer("accept", {"name": "x"}))
        result = await call(b, "a__ask", mine, request=FORM_REQUEST)
        assert json.loads(result.text)["action"] == "cancel"
        assert mine.questions == []
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        result = await call(b, "a__ask", mine, request=FORM_REQUEST)
        assert json.loads(result.text)["action"] == "accept"
    far = await remote(remotes, "legacy http")
    async with bench(tmp_path, {"a": far.entry()}) as b:
        theirs, mine = Desk(), Desk(Answer("accept", {"name": "x"}))
        other = asyncio.create_task(call(b, "a__wait", theirs, "other", seconds=60))
        await until(lambda: b.hub.find("a")._calls)  # type: ignore[union-attr]
        result = await call(b, "a__ask", mine, request=FORM_REQUEST)
        assert json.loads(result.text)["action"] == "accept"
        result = await call(b, "a__ask_alone", mine, request=FORM_REQUEST)  # on the stream of no call
        assert json.loads(result.text)["action"] == "cancel"
        assert (len(mine.questions), theirs.questions) == (1, [])
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)


async def test_waiting_for_a_person_does_not_count_against_the_call(tmp_path: Path, way: Way) -> None:
    async with bench(tmp_path, {"a": way.entry(timeout=1)}) as b:
        desk = Desk()
        asking = asyncio.create_task(call(b, "a__ask", desk, request=FORM_REQUEST))
        await until(lambda: desk.questions)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(asking), 1.3)  # longer than the call's own deadline
        asking.cancel()
        await asyncio.wait({asking}, timeout=5)
        await until(lambda: desk.left == 1)
        slow = await call(b, "a__wait", desk, seconds=30)
        assert slow.is_error
        assert "within 1 s" in slow.text


async def test_progress_is_shown_and_extends_the_deadline(tmp_path: Path, era: Way) -> None:
    async with bench(tmp_path, {"a": era.entry(timeout=1)}) as b:
        desk = Desk()
        result = await call(b, "a__work", desk, steps=5, pause=0.3)
        assert result.text == "worked"
        assert desk.told == [(float(n), 5.0, f"step {n}") for n in range(1, 6)]
        silent = await call(b, "a__work", desk, steps=1, pause=5)
        assert silent.is_error
        assert "within 1 s" in silent.text


async def test_progress_without_end_is_ended_at_the_ceiling(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": sdk(timeout=0.3)}) as b:
        async with asyncio.timeout(20):
            result = await call(b, "a__work", None, steps=500, pause=0.05)
        assert result.is_error
        assert "told progress" in result.text
        assert b.tool("a__work").ceiling > 3.0  # type: ignore[attr-defined]


async def test_a_cancelled_call_and_one_past_its_deadline_end_in_the_server_too(
    tmp_path: Path, way: Way
) -> None:
    def happened() -> list[str]:
        return way.log.read_text().split() if way.log.exists() else []

    async with bench(tmp_path, {"a": way.entry(timeout=1)}) as b:
        before = happened()
        cancelled = asyncio.create_task(call(b, "a__linger", Desk()))
        await until(lambda: happened() == [*before, "began"])
        cancelled.cancel()
        await asyncio.wait({cancelled}, timeout=5)
        await until(lambda: happened() == [*before, "began", "cancelled"])
        assert (await call(b, "a__linger", Desk())).is_error
        await until(lambda: happened() == [*before, *["began", "cancelled"] * 2])
        assert (await call(b, "a__add", None, a=1, b=1)).text == "2"


async def test_a_servers_log_goes_to_the_log_in_bounds(
    tmp_path: Path, era: Way, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "causeway.mcp")
    async with bench(tmp_path, {"a": era.entry()}) as b:
        await call(b, "a__work", None, steps=1, pause=0)
        told = [record for record in caplog.records if record.name == "causeway.mcp.a"]
        await until(lambda: any("more than" in r.getMessage() for r in caplog.records))
        told = [record for record in caplog.records if record.name == "causeway.mcp.a"]
        assert (told[0].getMessage(), told[0].levelname) == ("line 0", "WARNING")
        assert len(told) == 61


async def test_resources_and_prompts_are_listed_read_and_followed(tmp_path: Path, way: Way) -> None:
    async with bench(tmp_path, {"a": way.entry()}) as b:
        await until(lambda: b.hub.resources() and b.hub.prompts())
        today, logo = b.hub.resources()[:2]
        assert (today.server, today.uri, today.name) == ("a", "note://today", "today")
        assert (today.description, today.mime) == ("What is on today.", "text/plain")
        greet = b.hub.prompts()[0]
        assert (greet.name, greet.description) == ("greet", "Greets somebody.")
        assert [(name, needed) for name, _, needed in greet.arguments] == [("name", True), ("tone", False)]
        assert (await b.hub.read_resource("a", today.uri, tmp_path)).text == "water the plants"
        picture = await b.hub.read_resource("a", logo.uri, tmp_path)
        assert [file.mime for file in picture.files] == ["image/png"]
        assert (tmp_path / picture.files[0].path).read_bytes().endswith(b"and more")
        said = await b.hub.get_prompt("a", "greet", {"name": "Ann"})
        assert said == (("user", "Greet Ann in a warm way."),)
        for fails in (
            b.hub.read_resource("a", "note://nowhere", tmp_path),
            b.hub.get_prompt("a", "greet", {}),
            b.hub.get_prompt("gone", "greet", {}),
        ):
            with pytest.raises(ToolFailure):
                await fails
        changes = b.changes
        await call(b, "a__offer_more", None)
        await until(lambda: "later" in [info.name for info in b.hub.resources()])
        await until(lambda: "farewell" in [info.name for info in b.hub.prompts()])
        assert b.changes > changes
        await b.reload({})
        assert (b.hub.resources(), b.hub.prompts()) == ((), ())


@needs_node
async def test_the_reference_server_asks_samples_tells_progress_and_offers(tmp_path: Path) -> None:
    async with bench(tmp_path, {"e": published("server-everything", "stdio")}, sampling=True) as b:
        await until(lambda: b.hub.resources() and b.hub.prompts())
        desk = Desk(Answer("accept", {"name": "Ann", "untitledMultipleSelectEnum": "Piano, Drums"}), "a poem")
        asked = await call(b, "e__trigger-elicitation-request", desk)
        assert '"name": "Ann"' in asked.text
        assert '"integer": 42' in asked.text, "a default was not filled in"
        assert "Drums" in asked.text
        assert "a poem" in (await call(b, "e__trigger-sampling-request", desk, prompt="p", maxTokens=9)).text
        await call(b, "e__trigger-long-running-operation", desk, duration=0.2, steps=2)
        assert [told[:2] for told in desk.told] == [(1.0, 2.0), (2.0, 2.0)]
        first = b.hub.resources()[0]
        assert len((await b.hub.read_resource("e", first.uri, tmp_path)).text) > 100
        words = await b.hub.get_prompt("e", "args-prompt", {"city": "Ulm"})
        assert words[0][0] == "user"
        assert "Ulm" in words[0][1]


async def test_an_idle_server_is_stopped_and_the_next_call_starts_it(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain(idle_stop=0.5)}) as b:
        names = b.names()
        pid = int((await b.call("a__pid")).text)
        slow = await b.call("a__sleep", seconds=0.8)  # a call under way is no idleness
        assert not slow.is_error
        assert int((await b.call("a__pid")).text) == pid
        await until(lambda: not alive(pid))
        await until(lambda: "without calls" in b.status("a").reason)
        assert b.status("a").state == "ready"
        assert b.names() == names
        calls = await asyncio.gather(*(b.call("a__pid") for _ in range(3)))
        (again,) = {int(result.text) for result in calls}
        assert again != pid
        await until(lambda: not alive(again))
        assert await b.hub.restart("a")
        await until(lambda: "without calls" not in b.status("a").reason and b.status("a").state == "ready")


async def test_an_idle_server_can_be_changed_and_removed(tmp_path: Path) -> None:
    async with bench(tmp_path, {"a": plain(idle_stop=0.2)}) as b:
        sleeping: Callable[[], bool] = lambda: "without calls" in b.status("a").reason  # noqa: E731
        await until(sleeping)
        await b.reload({"a": plain(idle_stop=30, timeout=5)})
        assert sleeping()
        assert not (await b.call("a__pid")).is_error
        await b.reload({"a": plain(idle_stop=0.2)})
        await until(sleeping)
        await b.reload({"a": plain("--tag", "x")})
        assert not (await b.call("a__pid")).is_error
        await b.reload({"a": plain(idle_stop=0.1)})
        await until(sleeping)
        await b.reload({})
        assert b.names() == []
