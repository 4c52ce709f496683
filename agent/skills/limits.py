"""`allowed-tools`: what a run that works by a skill may do without asking the person. It only ever narrows.

Which skills a run works by is read from what the run has written down, so that a restart forgets nothing.
Of several skills each one's limit holds. Who may use a tool at all is the policy's matter, not a skill's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from agent.history import Assistant, Entry, User
from agent.skills.formatter import clean
from agent.skills.skill import VIRTUAL_ROOT, Skill, SkillSet
from agent.tools.base import Desk, Question, ToolResult

#: Names that the public format uses for tools which have other names here.
_OTHER_NAMES = {
    "grep": "search",
    "glob": "search",
    "webfetch": "web_fetch",
    "multiedit": "edit",
    "shell": "bash",
}
_ITEM = re.compile(r"([^(]+)\((.*)\)\Z", re.DOTALL)
#: Signs by which one command line becomes two, or writes somewhere.
_SHELL_SIGNS = re.compile(r"[;&|<>`$()\n\\]")
_CHOSEN_LINE = re.compile(r"\[The person chose the skill ([^\]\n]{1,64})\.\]\n")
_FREE = frozenset({"find_skills"})


def skill_of(arguments: Mapping[str, Any]) -> str:
    """The skill whose file a call of the read tool asks for; "" for any other file."""
    path = arguments.get("path")
    parts = path.split("/") if isinstance(path, str) else []
    return parts[2] if len(parts) > 2 and f"/{parts[1]}" == VIRTUAL_ROOT and not parts[0] else ""


def chosen_line(name: str) -> str:
    """The line by which a run is known to have been begun with `/skill name`."""
    return f"[The person chose the skill {name}.]\n"


def in_use(entries: Iterable[Entry], skills: SkillSet, read_tool: str = "read") -> tuple[Skill, ...]:
    """The skills that these entries of one run read, were taught, or began with; also since switched off."""
    found: dict[str, Skill] = {}
    for entry in entries:
        names: list[str] = []
        if isinstance(entry, User) and (match := _CHOSEN_LINE.match(entry.text)):
            names.append(match[1])
        elif isinstance(entry, Assistant):
            for call in entry.calls:
                if call.name == read_tool:
                    names.append(skill_of(call.arguments))
                elif taught := skills.teachable(call.name):
                    names.append(taught.name)
        for name in names:
            if skill := skills.find(name):
                found[name] = skill
    return tuple(found.values())


def refusing(
    used: Iterable[Skill], tool: str, arguments: Mapping[str, Any], read_tool: str = "read"
) -> Skill | None:
    """The first skill in use whose `allowed-tools` does not hold this call. Reading skills is always free."""
    if tool in _FREE or (tool == read_tool and skill_of(arguments)):
        return None
    for skill in used:
        limit = skill.allowed_tools
        if limit is not None and not any(_fits(item, tool, arguments) for item in limit):
            return skill
    return None


def _fits(item: str, tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whether one item of a list holds a call: `read`, `github_*`, `Bash(git log:*)`."""
    match = _ITEM.match(item)
    name = (match[1] if match else item).strip().casefold()
    name = _OTHER_NAMES.get(name.replace("_", ""), name)
    if not fnmatchcase(tool.casefold(), name):
        return False
    limit = match[2].strip() if match else ""
    if limit in ("", "*"):
        return True
    command = arguments.get("command")
    if tool != "bash" or not isinstance(command, str) or _SHELL_SIGNS.search(command):
        return False  # a limit that is not understood allows nothing
    command = command.strip()
    start = re.sub(r"[:\s]*\*\Z", "", limit)
    return command == start or (start != limit and command.startswith(start + " "))


async def consent(
    entries: Sequence[Entry],
    skills: SkillSet,
    tool: str,
    arguments: Mapping[str, Any],
    desk: Desk | None,
    read_tool: str = "read",
    language: str = "",
) -> ToolResult | None:
    """Ask the person when a skill in use does not hold this call. None: go on. Else the result instead of it.

    `entries` are those of the run. Waits for the person, at most the question's deadline.
    """
    skill = refusing(in_use(entries, skills, read_tool), tool, arguments, read_tool)
    if skill is None:
        return None
    if desk is not None:
        shown = f"Run the tool {tool}? The skill {skill.name} does not list it as allowed."
        more = " It would be run with: "
        if language.lower().startswith("zh"):
            shown, more = f"要运行工具 {tool} 吗?技能 {skill.name} 没有把它列为允许的工具。", "参数:"
        if command := arguments.get("command") or arguments.get("path"):
            shown += more + clean(str(command), 300)
        answer = await desk.ask(Question(source=f"skill {skill.name}", text=shown))
        if answer.action == "accept":
            return None
    allowed = ", ".join(skill.allowed_tools or ()) or "no tool"
    return ToolResult(
        f"{tool} was not run. The skill {skill.name} allows {allowed} without asking, and the person did not "
        "agree. Go on with the allowed tools, or say what is left undone.",
        is_error=True,
    )
