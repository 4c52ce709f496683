"""What a model is told of skills: the list in its prompt, and the lesson after a wrong call.

Pure text, but for `teaching`, which reads one file. The same set of skills gives the same text, letter for
letter, so that a provider's prompt cache holds.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.skills.requirements import Missing
from agent.skills.skill import Skill, SkillSet

log = logging.getLogger("causeway.skills")

DEFAULT_BUDGET_CHARS = 24_000
MAX_DESCRIPTION_CHARS = 1_024
#: What descriptions are cut to when all of them together do not fit.
SHORT_DESCRIPTION_CHARS = 200
MAX_TEACHING_CHARS = 24_000
_MAX_TOOLS_TOLD = 40
_END = "--- END SKILL ---"
#: With these a text can close no tag of the prompt.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"})
#: Joiners that scripts and emoji need; every other format character could hide or reorder text.
_JOINERS = "\u200c\u200d"


def clean(text: str, limit: int) -> str:
    """One line of at most `limit` characters, without control and hidden characters."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(
            " " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c
            for c in text
            if c in _JOINERS or unicodedata.category(c) not in ("Cf", "Cs", "Co", "Cn")
        )
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Section:
    """The prompt's section on skills. `offered` are the names of the usable skills that it lists; `left_out`
    is how many usable ones found no room: with any, `find_skills` should be among the tools."""

    text: str
    offered: tuple[str, ...] = ()
    left_out: int = 0


def skills_section(skills: SkillSet, read_tool: str, budget_chars: int = DEFAULT_BUDGET_CHARS) -> str:
    """The text of `section`."""
    return section(skills, read_tool, budget_chars=budget_chars).text


def section(
    skills: SkillSet, read_tool: str, find_tool: str = "", *, budget_chars: int = DEFAULT_BUDGET_CHARS
) -> Section:
    """The prompt's section on skills, "" when there is none to show, at most about `budget_chars` long.

    `read_tool` is the real name of the tool that reads files, `find_tool` of the one that finds skills which
    are not listed ("": there is none). Descriptions are shortened before a skill is left out; of those left
    out the number is told. The user's own skills are kept before built-in ones.
    """
    usable = [(skill, None) for skill in skills.available if skill.model_invocable]
    lacking = [(skill, what) for skill, what in skills.unavailable if skill.model_invocable and what.fixable]
    parts = []
    offered: tuple[str, ...] = ()
    if usable:
        rules = _rules(read_tool)
        listed = _fit(usable, budget_chars * 4 // 5 - len(rules))
        offered = tuple(listed)
        parts += [rules, _wrap("available_skills", listed, len(usable), find_tool)]
    if lacking:
        listed = _fit(lacking, budget_chars - sum(map(len, parts)) - len(_LACKING))
        parts += [_LACKING, _wrap("unavailable_skills", listed, len(lacking))]
    text = "\n\n".join(["## Skills", *parts]) if parts else ""
    return Section(text, offered, len(usable) - len(offered))


def _rules(read_tool: str) -> str:
    return (
        "A skill is a written procedure for one kind of task, kept as a file. Skills are not tools: no tool "
        "bears a skill's name, and calling one does nothing. The only way to use a skill is to read the file "
        f"at its <location> with the tool `{clean(read_tool, 64)}` and then to follow what it says, with the "
        "tools you have.\n"
        "Before you answer, compare the request with the descriptions below. When one fits, read that skill "
        "first; when several are needed, read each when its turn comes; when none fits, read none. A path "
        "inside a skill's text is relative to its <base_dir>."
    )


_LACKING = (
    "These skills are installed but cannot be used yet, because something is missing on the machine. When a "
    "request needs one, say what is missing and that an administrator has to install it, or to set it in the "
    "environment or the workspace's .env file. Never ask for a key, a token or a password in the chat."
)


def _wrap(tag: str, listed: Mapping[str, str], count: int, find_tool: str = "") -> str:
    lines = [f"<{tag}>", *listed.values(), f"</{tag}>"]
    if left_out := count - len(listed):
        what = "1 more skill is" if left_out == 1 else f"{left_out} more skills are"
        how = f" When none of these fits, look for it with the tool `{clean(find_tool, 64)}`."
        lines.append(f"{what} not listed for want of room.{how if find_tool else ''}")
    return "\n".join(lines)


def _fit(skills: Sequence[tuple[Skill, Missing | None]], room: int) -> dict[str, str]:
    """As many skills as there is room for, in the given order: their blocks by name."""
    blocks = {skill.name: _block(skill, missing, MAX_DESCRIPTION_CHARS) for skill, missing in skills}
    if sum(map(len, blocks.values())) + len(blocks) > room:
        blocks = {skill.name: _block(skill, missing, SHORT_DESCRIPTION_CHARS) for skill, missing in skills}
    kept = set()
    room -= 160  # for the lines that tell of the rest
    for skill, _ in sorted(skills, key=lambda one: one[0].source != "custom"):
        room -= len(blocks[skill.name]) + 1
        if room < 0:
            break
        kept.add(skill.name)
    return {name: block for name, block in blocks.items() if name in kept}


def _block(skill: Skill, missing: Missing | None, limit: int) -> str:
    fields = [("name", skill.name, 64), ("description", skill.description, limit)]
    if missing is None:
        fields += [("location", skill.location, 200), ("base_dir", skill.base_dir, 200)]
    else:
        fields.append(("missing", str(missing), 300))
        if skill.setup:
            fields.append(("setup", skill.setup, 300))
    lines = [f"    <{tag}>{clean(text, most).translate(_ESCAPES)}</{tag}>" for tag, text, most in fields]
    return "\n".join(["  <skill>", *lines, "  </skill>"])


def teaching(skill: Skill, tool_name: str, tools: Iterable[str], *, again: bool = False) -> str:
    """What a model reads that called a skill as if it were a tool: the skill itself, and how to go on.

    `tools` are the names that it can really call now. `again` is for a skill taught before in the same
    conversation: a short reminder in place of the text. Blocks, since it reads the skill's file.
    """
    names = list(tools)
    told = ", ".join(names[:_MAX_TOOLS_TOLD]) or "none"
    if len(names) > _MAX_TOOLS_TOLD:
        told += f" and {len(names) - _MAX_TOOLS_TOLD} more"
    called = clean(tool_name, 80)
    opening = f"There is no tool called '{called}', so nothing was run. '{skill.name}' is a skill to be read."
    closing = f"Go on by following it with real tools. Tools you can call: {told}."
    if again:
        return f"{opening} You were given its text before; it is also at {skill.location}. {closing}"
    try:
        text = skill.read_text()
    except OSError as error:
        log.warning("skill %s could not be read for a model: %s", skill.name, error)
        description = clean(skill.description, MAX_DESCRIPTION_CHARS)
        return (
            f"{opening} Its file cannot be read at the moment. What it is for: {description}\n"
            f"Do the task with real tools, or say that the skill cannot be read. Tools you can call: {told}."
        )
    text = re.sub(r"--- (END )?SKILL", lambda match: match[0].lower(), text.strip())
    if (rest := len(text) - MAX_TEACHING_CHARS) > 0:
        text = f"{text[:MAX_TEACHING_CHARS]}\n[{rest} more characters: read the rest at {skill.location}]"
    marker = f"--- SKILL: {skill.name} (path: {skill.location}) ---"
    return (
        f"{opening} It stands here:\n\n{marker}\n{text}\n{_END}\n\n"
        f"{closing} Paths in the text are relative to {skill.base_dir}."
    )
