"""The demo model answers by its rules, says what it is, and cannot be upset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.history import Assistant, Entry, ImageRef, ToolCall, ToolOutput, User
from agent.models.base import Completed, Request, Text, ToolSpec
from agent.models.demo import DemoModel
from agent.models.demo_rules import answer, find_skills, first_sentence
from agent.skills.formatter import skills_section
from agent.skills.skill import Skill, SkillSet
from agent.tools.builtin.files import file_tools
from agent.tools.builtin.search import search_tool
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers

TEXT = {"type": "string"}


def spec(name: str, description: str = "", required: tuple[str, ...] = (), **properties: Any) -> ToolSpec:
    return ToolSpec(
        name, description, {"type": "object", "properties": properties, "required": list(required)}
    )


TOOLS = (
    spec("read", "Read a file. It may be long.", ("path",), path=TEXT, offset={"type": "integer"}),
    spec("write", "Write a file.", ("path", "content"), path=TEXT, content=TEXT),
    spec("ls", "List files.", (), path=TEXT),
    spec("search", "Search files.", ("pattern",), pattern=TEXT),
    spec("web_fetch", "Get a page.", ("url",), url=TEXT),
    spec("send_file", "Send a file.", ("path",), path=TEXT),
    spec("time__get_current_time", "The time in a zone.", ("timezone",), timezone=TEXT),
    spec("time__convert_time", "Convert.", ("time",), source_timezone=TEXT, target_timezone=TEXT, time=TEXT),
    spec(
        "calc__add",
        "Add numbers.",
        ("a", "b"),
        a={"type": "number"},
        b={"type": "integer"},
        loud={"type": "boolean"},
    ),
)
SYSTEM = """You help. Today is Monday.
<available_skills>
  <skill>
    <name>translate</name>
    <description>Translates texts &amp; files. Use it when asked.</description>
    <location>/skills/translate/SKILL.md</location>
  </skill>
  <skill><name>pdf tools</name><description>PDF.</description>
  <location>/skills/pdf/SKILL.md</location></skill>
</available_skills>"""


def reply(
    text: str, *, tools: tuple[ToolSpec, ...] = TOOLS, system: str = SYSTEM
) -> tuple[str, list[tuple[str, Any]]]:
    found = answer(Request(system, [User("r", text)], tools, lambda ref: b""))
    return found.text, [(wish.tool, wish.arguments) for wish in found.calls]


@pytest.mark.parametrize("text", ["hello", "Hi!", "Hey there", "Good morning", "who are you?"])
def test_a_greeting_is_answered_with_what_it_is(text: str) -> None:
    said, calls = reply(text)
    assert "demo" in said
    assert "no real language model" in said or "no language model" in said
    assert calls == []


@pytest.mark.parametrize("text", ["你好", "您好！", "你是谁", "早上好"])
def test_chinese_is_answered_in_chinese(text: str) -> None:
    assert "演示模型" in reply(text)[0]


@pytest.mark.parametrize(
    "text", ["what can you do", "What can you do?", "help", "which tools are there? list tools"]
)
def test_what_can_you_do_lists_tools_and_skills_with_one_sentence_each(text: str) -> None:
    said, _ = reply(text)
    assert "`read`: Read a file." in said
    assert "It may be long" not in said
    assert "`translate`: Translates texts & files." in said
    assert "OPENAI_API_KEY" in said
    assert all(f"`{tool.name}`" in said for tool in TOOLS)


def test_the_list_in_chinese() -> None:
    said, _ = reply("你能做什么？")
    assert "工具" in said
    assert "`translate`" in said


def test_without_tools_and_skills_it_says_so() -> None:
    said, _ = reply("what can you do", tools=(), system="You help.")
    assert "No tools" in said
    assert "No skills" in said


CALLS: list[tuple[str, str, dict[str, Any]]] = [
    ('call read {"path": "a.txt"}', "read", {"path": "a.txt"}),
    ('please use the tool read with {"path": "a.txt", "offset": 3}', "read", {"path": "a.txt", "offset": 3}),
    ("call read path=a.txt offset=3", "read", {"path": "a.txt", "offset": 3}),
    ("run `read` path='my file.txt'", "read", {"path": "my file.txt"}),
    ("call read notes.txt", "read", {"path": "notes.txt"}),
    (
        "call write path=a.txt content=hello big world",
        "write",
        {"path": "a.txt", "content": "hello big world"},
    ),
    ('use write path="a=b.txt", content="path=x"', "write", {"path": "a=b.txt", "content": "path=x"}),
    ("call ls", "ls", {}),
    ("CALL LS", "ls", {}),
    ("call add a=1.5 and b=2 loud=true", "calc__add", {"a": 1.5, "b": 2, "loud": True}),
    ("call calc__add a=1, b=2.0", "calc__add", {"a": 1, "b": 2}),
    ("call get-current-time timezone=Asia/Tokyo", "time__get_current_time", {"timezone": "Asia/Tokyo"}),
    ('调用 read {"path": "a.txt"}', "read", {"path": "a.txt"}),
    ("使用工具 ls", "ls", {}),
    (
        "调用工具：write path=笔记.txt content=你好 世界",
        "write",
        {"path": "笔记.txt", "content": "你好 世界"},
    ),
    ("what time is it in Tokyo?", "time__get_current_time", {"timezone": "Asia/Tokyo"}),
    ("What's the time in New York", "time__get_current_time", {"timezone": "America/New_York"}),
    ("what time is it in Europe/Oslo", "time__get_current_time", {"timezone": "Europe/Oslo"}),
    ("what time is it", "time__get_current_time", {"timezone": "UTC"}),
    ("东京现在几点", "time__get_current_time", {"timezone": "Asia/Tokyo"}),
    ("list files", "ls", {}),
    ("list the files in docs", "ls", {"path": "docs"}),
    ("列出文件", "ls", {}),
    ("read notes.txt", "read", {"path": "notes.txt"}),
    ("please read the file docs/a.md.", "read", {"path": "docs/a.md"}),
    ("读取 笔记.txt", "read", {"path": "笔记.txt"}),
    ("write a.txt: one\ntwo", "write", {"path": "a.txt", "content": "one\ntwo"}),
    ("写入 a.txt：你好", "write", {"path": "a.txt", "content": "你好"}),
    ("search for TODO", "search", {"pattern": "TODO"}),
    ("搜索 待办", "search", {"pattern": "待办"}),
    ("fetch https://example.org/a?b=c", "web_fetch", {"url": "https://example.org/a?b=c"}),
    ("抓取 https://example.org/。", "web_fetch", {"url": "https://example.org/"}),
    ("send me the file a.txt", "send_file", {"path": "a.txt"}),
    ("use skill translate", "read", {"path": "/skills/translate/SKILL.md"}),
    ("please use the skill pdf tools on this", "read", {"path": "/skills/pdf/SKILL.md"}),
    ("使用技能 translate", "read", {"path": "/skills/translate/SKILL.md"}),
    ("> quoted: call ls\nread notes.txt", "read", {"path": "notes.txt"}),
]


@pytest.mark.parametrize(("text", "tool", "arguments"), CALLS, ids=[case[0][:40] for case in CALLS])
def test_a_plain_request_becomes_the_call(text: str, tool: str, arguments: dict[str, Any]) -> None:
    assert reply(text)[1] == [(tool, arguments)]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("call weather city=Paris", "no tool called `weather`"),
        ("call write path=a.txt", "needs content"),
        ("call read {path: nope}", "no JSON object"),
        ("use skill cooking", "no skill called `cooking`"),
        ("invent a poem about the sea", "only a demo"),
        ("what is 2+2?", "only a demo"),
        ("use your imagination", "only a demo"),
    ],
)
def test_what_it_cannot_do_it_says(text: str, part: str) -> None:
    said, calls = reply(text)
    assert part in said
    assert calls == []


def test_without_the_tool_for_a_request_it_says_so() -> None:
    said, calls = reply("read notes.txt", tools=())
    assert "no tool for that" in said
    assert calls == []


def after(text: str, call: ToolCall, output: ToolOutput) -> str:
    entries: list[Entry] = [User("r", text), Assistant("r", "I call.", (call,)), output]
    found = answer(Request(SYSTEM, entries, TOOLS, lambda ref: b""))
    assert found.calls == ()
    return found.text


def test_after_a_result_it_says_what_came_back_quoted_and_shortened() -> None:
    output = ToolOutput("r", "c", "ls", "a.txt\nb.txt")
    assert after("call ls", ToolCall("c", "ls", {}), output) == "`ls` answered:\n\n> a.txt\n> b.txt"
    assert "`ls` 的结果" in after("调用 ls", ToolCall("c", "ls", {}), output)
    long = ToolOutput("r", "c", "ls", "x" * 5000)
    assert len(after("call ls", ToolCall("c", "ls", {}), long)) < 1000
    failed = ToolOutput("r", "c", "ls", "No such folder.", is_error=True)
    assert "`ls` failed" in after("call ls", ToolCall("c", "ls", {}), failed)


def test_after_reading_a_skill_it_says_what_the_skill_says() -> None:
    head = "---\nname: translate\ndescription: x\n---\n\n"
    body = f"{head}# Translate\n\nKeep the layout.\n\n## Steps\n\n1. Find it.\n"
    for text in (body, "".join(f"{n}\t{line}\n" for n, line in enumerate(body.splitlines(), 1))):
        call = ToolCall("c", "read", {"path": "/skills/translate/SKILL.md"})
        said = after("use skill translate", call, ToolOutput("r", "c", "read", text))
        assert "The skill translate says:\n\n> Keep the layout." in said
        assert "Translate, Steps" in said
        assert "name: translate" not in said


def test_several_messages_of_one_run_are_all_answered() -> None:
    entries: list[Entry] = [
        User("", "call ls"),
        User("r", "hello"),
        User("r", "call ls"),
        User("r", "call read a.txt"),
    ]
    found = answer(Request(SYSTEM, entries, TOOLS, lambda ref: b""))
    assert [wish.tool for wish in found.calls] == ["ls", "read"]
    assert "demo model" in found.text


def test_it_answers_the_newest_message_and_not_an_old_result() -> None:
    entries: list[Entry] = [
        User("r", "call ls"),
        Assistant("r", "", (ToolCall("c", "ls", {}),)),
        ToolOutput("r", "c", "ls", "a.txt"),
        Assistant("r", "There is a.txt."),
        User("s", "你好"),
    ]
    assert "演示模型" in answer(Request(SYSTEM, entries, TOOLS, lambda ref: b"")).text


def test_the_skills_are_found_in_the_prompt_as_the_product_writes_it() -> None:
    folder = Path("/x/plan")
    made = Skill(
        "plan", 'Plans "<days>" & more.', "builtin", folder / "SKILL.md", folder, "/skills/plan/SKILL.md"
    )
    (found,) = find_skills("Intro.\n\n" + skills_section(SkillSet((made,)), "read"))
    assert (found.name, found.description, found.location) == (made.name, made.description, made.location)


def test_the_product_s_own_tools_are_called_with_their_own_parameters() -> None:
    settings_, workers = ToolSettings(), Workers()
    own = [*file_tools(settings_, workers), search_tool(settings_, workers)]
    tools = tuple(ToolSpec(tool.name, tool.description, tool.params) for tool in own)
    by_name = {tool.name: tool for tool in tools}
    for text in ("list files", "read a.txt", "write a.txt: hi", "search for hi"):
        ((name, arguments),) = reply(text, tools=tools)[1]
        schema = by_name[name].parameters
        assert set(schema.get("required", [])) <= set(arguments) <= set(schema["properties"])


async def test_the_answer_comes_in_pieces_and_then_whole() -> None:
    entries = [User("r", "what can you do")]
    deltas = [delta async for delta in DemoModel().stream(Request(SYSTEM, entries, TOOLS, lambda ref: b""))]
    assert isinstance(deltas[-1], Completed)
    texts = [delta.text for delta in deltas[:-1] if isinstance(delta, Text)]
    assert len(texts) == len(deltas) - 1 > 2
    assert "".join(texts) == deltas[-1].text
    assert deltas[-1].stop == "end"


async def test_calls_have_ids_of_their_own_in_each_step() -> None:
    first = [
        d async for d in DemoModel().stream(Request("", [User("r", "call ls")], TOOLS, lambda ref: b""))
    ][-1]
    entries: list[Entry] = [User("q", "hello"), Assistant("q", "Hello!"), User("r", "call ls")]
    second = [d async for d in DemoModel().stream(Request("", entries, TOOLS, lambda ref: b""))][-1]
    assert isinstance(first, Completed)
    assert isinstance(second, Completed)
    assert first.stop == "tools"
    assert first.calls[0].id != second.calls[0].id


def test_a_picture_is_not_passed_over_in_silence() -> None:
    entries = [User("r", "hello", (ImageRef("a.png", "image/png"),))]
    assert "cannot see" in answer(Request("", entries, (), lambda ref: b"")).text


words = st.sampled_from(
    ["call", "use", "skill", "read", "write", ":", "{", "}", '"', "=", "path=", "time in", "调用", "技能",
     "\n", "> ", "ls", "https://", "'", "…", "\x00", "\ud800"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(words, st.text(max_size=10)), max_size=15).map(" ".join))
def test_nothing_that_people_write_upsets_it(text: str) -> None:
    said, _ = reply(text)
    assert said


@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "call read " * 9000, "{" * 100_000, "call ls " + "=" * 90_000,
     "use skill " + "x " * 50_000,
     "https://" + "a" * 90_000, "what time " * 9000, '"' * 90_000, "path=" * 20_000, "\n" * 90_000],
)  # fmt: skip
def test_a_huge_message_takes_no_time(text: str) -> None:
    started = time.thread_time()
    reply(text)
    assert time.thread_time() - started < 0.2


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("One. Two.", "One."), ("读文件。然后", "读文件。"), ("v1.2 is here\nnow", "v1.2 is here now"), ("", ""),
     ("x" * 500, "x" * 139 + "…")],
)  # fmt: skip
def test_the_first_sentence_of_a_description(text: str, sentence: str) -> None:
    assert first_sentence(text) == sentence
