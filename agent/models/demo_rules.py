"""The demo model's rules: from a request to words and calls. Pure functions, nothing outside is touched."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.history import Assistant, ToolOutput, User
from agent.models.base import Request, ToolSpec
from agent.models.demo_arguments import example, parameter, parse_arguments, properties, required, unquote
from agent.models.demo_texts import EXAMPLES, ZONES, Language, say

#: Tools or skills in one list, characters of one description, of one quoted result.
MOST_LISTED, LONGEST_SENTENCE, LONGEST_QUOTE = 40, 140, 700
#: Characters of a message that the rules look at.
LONGEST_MESSAGE = 20_000

_CJK = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_SKILLS = re.compile(r"<available_skills>(.*?)</available_skills>", re.DOTALL)
_SKILL = re.compile(r"<skill>(.*?)</skill>", re.DOTALL)
_CALL = r"(?:\b(?:call|use|run|invoke|try)|调用|使用|运行|执行|用)\s*(?:(?:the\s+)?tool\b|工具)?\s*[:：]?\s*"
_SKILL_WORD = re.compile(
    r"(?:\b(?:use|run|try|read|open|follow)\s+(?:the\s+)?skill|(?:使用|用|读取|阅读|打开)\s*技能)"
    r"\s*[:：]?\s*[\"“'`]?([\w.\- ]+)",
    re.I,
)
_HELP = re.compile(
    r"what (can|do) you (do|know)|what are you able|\bhelp\b|\b(which|what|list|show)( \w+)? (tools|skills)\b"
    r"|能做(些)?什么|会(做)?什么|可以做什么|有(什么|哪些)(工具|技能)|帮助|功能",
    re.I,
)
_TIME = re.compile(
    r"\bwhat(?:'s| is)? (?:the )?time|\bcurrent time|\btime (?:is it )?in\b|几点|什么时间|现在时间|当前时间",
    re.I,
)
_HELLO = re.compile(
    r"^\W*(hello|hi|hey|good (morning|evening|day|afternoon)|greetings)\b|你好|您好|嗨|早上好|晚上好", re.I
)
_WHO = re.compile(
    r"who are you|what are you\b|are you (a|an|real)|which model|你是谁|你是什么|什么模型", re.I
)
_THANKS = re.compile(r"\b(thanks|thank you)\b|谢谢|多谢", re.I)
_FILE = r"[\"“'`]?([^\s\"”'`:：,，。?？!！]+)[\"”'`]?"
_LIST = re.compile(
    rf"\blist (?:the |my |all )?files\b(?: (?:in|of) {_FILE})?|\bls\b|列出(?:所有)?文件|文件列表|有哪些文件",
    re.I,
)
_WRITE = re.compile(rf"(?:\bwrite|写入|写)\s+(?:to |file |文件)*{_FILE}\s*[:：]\s*(.+)", re.I | re.S)
_SEND = re.compile(rf"(?:\bsend\s+(?:me\s+)?(?:the\s+)?(?:file\s+)|发送(?:文件)?\s*){_FILE}", re.I)
_READ = re.compile(
    rf"(?:\b(?:read|show|open|cat)\s+(?:the\s+)?(?:file\s+)?|(?:读取|阅读|打开|查看|读)(?:文件)?\s*){_FILE}",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Skill:
    name: str
    description: str
    location: str


@dataclass(frozen=True, slots=True)
class Wish:
    """A call that the rules ask for."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    text: str
    calls: tuple[Wish, ...] = ()


@dataclass(frozen=True, slots=True)
class Scene:
    """What the rules know: the language, the tools and the skills of this request."""

    language: Language
    tools: dict[str, ToolSpec] = field(default_factory=dict)
    skills: tuple[Skill, ...] = ()

    def say(self, key: str, **values: object) -> str:
        return say(self.language, key, **values)


def answer(request: Request) -> Answered:
    """The demo's answer to a request: to the results when there are new ones, else to what was written."""
    said: list[User] = []
    outputs: list[ToolOutput] = []
    calls: dict[str, dict[str, Any]] = {}
    for entry in request.entries:
        match entry:
            case User():
                if outputs or calls:
                    said, outputs, calls = [], [], {}
                said.append(entry)
            case Assistant():
                if not entry.calls:
                    said = []
                outputs, calls = [], {call.id: call.arguments for call in entry.calls}
            case ToolOutput():
                outputs.append(entry)
    # Other runs' messages before it are context that was given along.
    said = [one for one in said if one.run == said[-1].run]
    texts = [_own_words(one.text[:LONGEST_MESSAGE]) for one in said]
    tools = {tool.name: tool for tool in request.tools}
    scene = Scene(_language(texts, request), tools, find_skills(request.system))
    if outputs:
        return Answered("\n\n".join(_report(output, calls.get(output.call, {}), scene) for output in outputs))
    parts = [_reply(text, scene) for text in texts] or [_fallback(scene)]
    if any(one.images for one in said):
        parts.append(Answered(scene.say("picture")))
    words = list(dict.fromkeys(part.text for part in parts if part.text))
    return Answered("\n\n".join(words), tuple(call for part in parts for call in part.calls))


def _own_words(text: str) -> str:
    """The text without the lines that quote another message."""
    lines = text.splitlines()
    while lines and (lines[0].startswith(">") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines)


def _language(texts: list[str], request: Request) -> Language:
    earlier = [entry.text for entry in reversed(request.entries) if isinstance(entry, User)][:5]
    for text in (*reversed(texts), *earlier):
        if _CJK.search(text[:LONGEST_MESSAGE]):
            return "zh"
        if re.search(r"[A-Za-z]{2}", text[:LONGEST_MESSAGE]):
            return "en"
    return "en"


def find_skills(system: str) -> tuple[Skill, ...]:
    """The skills that the system prompt offers in its `<available_skills>` block."""
    block = _SKILLS.search(system)
    if block is None:
        return ()
    found = []
    for match in _SKILL.finditer(block[1]):
        skill = Skill(*(_tag(match[1], tag) for tag in ("name", "description", "location")))
        if skill.name and skill.location:
            found.append(skill)
    return tuple(found)


def _tag(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
    return html.unescape(found[1]).strip() if found else ""


def _reply(text: str, scene: Scene) -> Answered:
    rules: tuple[Callable[[str, Scene], Answered | None], ...] = (
        _use_skill, _call_tool, _help, _time, _fetch, _files, _search, _talk,
    )  # fmt: skip
    for rule in rules:
        answered = rule(text, scene)
        if answered is not None:
            return answered
    return _fallback(scene)


def _can(scene: Scene) -> str:
    return scene.say("can", examples="\n".join(f"- {example}" for example in EXAMPLES[scene.language]))


def _fallback(scene: Scene) -> Answered:
    return Answered("\n\n".join((scene.say("cannot"), _can(scene), scene.say("configure"))))


def _talk(text: str, scene: Scene) -> Answered | None:
    if _WHO.search(text):
        return Answered(f"{scene.say('who')}\n\n{scene.say('configure')}")
    if _HELLO.search(text):
        return Answered(scene.say("hello"))
    if _THANKS.search(text) and len(text) < 60:
        return Answered(scene.say("thanks"))
    return None


def _help(text: str, scene: Scene) -> Answered | None:
    if not _HELP.search(text):
        return None
    tools = [(tool.name, tool.description) for tool in scene.tools.values()]
    skills = [(skill.name, skill.description) for skill in scene.skills]
    lists = (_listing(scene, "tools", tools), _listing(scene, "skills", skills))
    return Answered("\n\n".join((scene.say("who"), *lists, _can(scene), scene.say("configure"))))


def _listing(scene: Scene, kind: str, items: Sequence[tuple[str, str]]) -> str:
    if not items:
        return scene.say(f"no_{kind}")
    about = [(name, first_sentence(text)) for name, text in items[:MOST_LISTED]]
    lines = [f"- `{name}`: {sentence}" if sentence else f"- `{name}`" for name, sentence in about]
    if len(items) > MOST_LISTED:
        lines.append(scene.say("more", count=len(items) - MOST_LISTED))
    return "\n".join((scene.say(kind), *lines))


def first_sentence(text: str) -> str:
    words = " ".join(text[:2000].split())
    found = re.match(r".*?[.!?](?=\s|$)|.*?[。！？]", words)
    sentence = found[0] if found else words
    return sentence if len(sentence) <= LONGEST_SENTENCE else sentence[: LONGEST_SENTENCE - 1] + "…"


def _use_skill(text: str, scene: Scene) -> Answered | None:
    found = _SKILL_WORD.search(text)
    if found is None:
        return None
    wanted = found[1].strip().lower()
    names = {skill.name.lower(): skill for skill in scene.skills}
    # The name may be followed by more words.
    fitting = [name for name in names if re.match(rf"{re.escape(name)}([ .-]|\Z)", wanted)]
    if not fitting:
        return _there_is_no("skill", found[1].strip(), [skill.name for skill in scene.skills], scene)
    skill = names[max(fitting, key=len)]
    reader = scene.tools.get("read") or next((t for n, t in scene.tools.items() if "read" in n.lower()), None)
    if reader is None:
        return Answered(scene.say("no_reader", name=skill.name))
    arguments = {parameter(reader, "path"): skill.location}
    return Answered(scene.say("reading", name=skill.name), (Wish(reader.name, arguments),))


def _there_is_no(kind: str, name: str, names: Sequence[str], scene: Scene) -> Answered:
    shown = ", ".join([f"`{one}`" for one in names[:20]] + ["…"] * (len(names) > 20))
    offer = scene.say("tool_names", names=shown) if names else scene.say(f"no_{kind}s")
    return Answered(scene.say(f"no_{kind}", name=f"`{name[:60]}`", offer=offer))


def _call_tool(text: str, scene: Scene) -> Answered | None:
    for found in re.finditer(_CALL + r"[\"“'`]?([A-Za-z][\w.-]*)[\"”'`]?", text, re.I):
        tool = find_tool(found[1], scene.tools)
        if tool is not None:
            return _with_arguments(tool, text[found.end() :].strip(" \t\r\n:：,，。"), scene)
    # "call weather ..." names a tool that is not there; "use the word ..." does not.
    found_name = re.match(
        r"\W*(?:call|invoke|run|调用|执行|运行)\s*(?:the\s+)?(?:tool|工具)?\s*[:：]?\s*[\"“'`]?([A-Za-z][\w.-]*)",
        text,
        re.I,
    )
    if found_name is None:
        return None
    return _there_is_no("tool", found_name[1], list(scene.tools), scene)


def find_tool(word: str, tools: dict[str, ToolSpec]) -> ToolSpec | None:
    """The tool of that name; an MCP tool also by its name without the server's, when that is clear."""
    wanted = word.lower().replace("-", "_").strip("._")
    plain = [(name.lower().replace("-", "_"), tool) for name, tool in tools.items()]
    exact = [tool for name, tool in plain if name == wanted]
    short = [tool for name, tool in plain if name.rpartition("__")[2] == wanted]
    return exact[0] if exact else short[0] if len(short) == 1 else None


def _with_arguments(tool: ToolSpec, rest: str, scene: Scene) -> Answered:
    shown = example(tool)
    try:
        arguments = parse_arguments(tool, rest)
    except ValueError as error:
        return Answered(scene.say("no_json", tool=tool.name, reason=str(error), example=shown))
    missing = [name for name in required(tool) if name not in arguments]
    if missing:
        return Answered(scene.say("needs", tool=tool.name, missing=", ".join(missing), example=shown))
    return _calling(tool, arguments, scene)


def _calling(tool: ToolSpec, arguments: dict[str, Any], scene: Scene) -> Answered:
    return Answered(scene.say("calling", tool=f"`{tool.name}`"), (Wish(tool.name, arguments),))


def _with(scene: Scene, names: tuple[str, ...], **meanings: str) -> Answered:
    """A call of the first of the named tools, its parameters filled by their meaning."""
    tool = next((tool for name in names if (tool := find_tool(name, scene.tools))), None)
    if tool is None:
        return Answered(f"{scene.say('no_match')} {scene.say('cannot')}")
    arguments = {parameter(tool, meaning): value for meaning, value in meanings.items() if value}
    return _calling(tool, arguments, scene)


def _time(text: str, scene: Scene) -> Answered | None:
    if not _TIME.search(text):
        return None
    clocks = [t for n, t in scene.tools.items() if "time" in n.lower() and "timezone" in properties(t)]
    if not clocks:
        return None
    zone = re.search(r"\b[A-Z][A-Za-z]+/[A-Z][A-Za-z_/]+", text)
    lowered = text.lower()
    named = (name for name in ZONES if re.search(rf"\b{name}\b" if name.isascii() else name, lowered))
    city = max(named, key=len, default="utc")
    return _calling(clocks[0], {"timezone": zone[0] if zone else ZONES[city]}, scene)


def _fetch(text: str, scene: Scene) -> Answered | None:
    url = re.search(r"https?://[^\s<>\"'”）)，。]+", text)
    if url is None or not re.search(
        r"\b(fetch|open|get|read|load|visit|summari[sz]e)\b|抓取|打开|读取|访问|获取", text, re.I
    ):
        return None
    return _with(scene, ("web_fetch", "fetch", "fetch_url"), url=url[0].rstrip(".,;"))


def _files(text: str, scene: Scene) -> Answered | None:
    if found := _LIST.search(text):
        return _with(scene, ("ls", "list_files", "list_directory"), path=found[1] or "")
    if found := _WRITE.search(text):
        return _with(scene, ("write", "write_file"), path=found[1].rstrip("."), content=found[2].strip())
    if found := _SEND.search(text):
        return _with(scene, ("send_file",), path=found[1].rstrip("."))
    if found := _READ.search(text):
        return _with(scene, ("read", "read_file"), path=found[1].rstrip("."))
    return None


def _search(text: str, scene: Scene) -> Answered | None:
    found = re.match(
        r"\W*(?:please\s+)?(?:search|find|grep|搜索|查找|搜)\s*(?:for\s+|一下)?[:：]?\s*(.+)",
        text,
        re.I | re.S,
    )
    if found is None:
        return None
    return _with(scene, ("search", "grep", "search_files"), query=unquote(found[1])[:500])


def _report(output: ToolOutput, arguments: dict[str, Any], scene: Scene) -> str:
    """What came back from a tool, quoted and shortened."""
    skill = next((skill for skill in scene.skills if skill.location in arguments.values()), None)
    if skill is not None and not output.is_error:
        return _skill_report(skill, output.text, scene)
    title = scene.say("failed" if output.is_error else "result", tool=f"`{output.name}`")
    return f"{title}\n\n{_quote(output.text, scene)}"


def _quote(text: str, scene: Scene) -> str:
    shown = text.strip()[:LONGEST_QUOTE]
    lines = [f"> {line}".rstrip() for line in shown.splitlines()] or ["> -"]
    if len(text.strip()) > LONGEST_QUOTE:
        lines.append(f"> … {scene.say('cut')}")
    return "\n".join(lines)


def _skill_report(skill: Skill, text: str, scene: Scene) -> str:
    # Readers may number the lines.
    body = re.sub(r"(?m)^\s*\d+[\t|→] ?", "", text).strip()
    body = re.sub(r"\A---\s*\n.*?\n---\s*(\n|\Z)", "", body, flags=re.DOTALL).strip()
    headings = [line.lstrip("# ").strip() for line in body.splitlines() if re.match(r"#{1,3} ", line)]
    prose = next(
        (part for part in re.split(r"\n\s*\n", body) if part.strip() and not part.lstrip().startswith("#")),
        body,
    )
    parts = [scene.say("skill_says", name=skill.name), _quote(prose, scene)]
    if headings:
        parts.append(scene.say("skill_parts", parts=", ".join(headings[:12])))
    parts.append(scene.say("skill_real"))
    return "\n\n".join(parts)
