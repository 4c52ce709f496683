"""`find_skills` looks for a skill that found no room in the prompt, `install_skill` brings a new one."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agent.skills.formatter import clean
from agent.skills.install import InstallError, Offer, contents, fetch, replaceable
from agent.skills.install import place as put
from agent.skills.skill import SkillSet
from agent.skills.words import ranked
from agent.tools.base import (
    Annotations,
    FunctionTool,
    Question,
    ToolContext,
    ToolFailure,
    ToolResult,
)
from agent.tools.builtin import schema
from agent.tools.paths import locate_for_writing

NAME = "find_skills"
_MOST = 8


def find_skills_tool(current: Callable[[], SkillSet]) -> FunctionTool:
    """The tool. `current` gives the skills of the moment."""

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        usable = [skill for skill in current().available if skill.model_invocable]
        found = ranked(params["query"], usable)[:_MOST]
        if not found:
            return ToolResult(
                f"No skill fits these words ({len(usable)} were searched). Try other nouns, or go on without."
            )
        lines = [f"- {skill.name}: {clean(skill.description, 300)}\n  {skill.location}" for skill in found]
        return ToolResult("\n".join([*lines, "Read the file of the one that fits, then follow it."]))

    return FunctionTool(
        NAME,
        "Find a skill (a written procedure) among those that are not listed, by words of the task. Returns "
        f"at most {_MOST} with the file to read. Only for skills: to find files use search.",
        schema.arguments(("query",), query=schema.text("Nouns and verbs of the task", minLength=1)),
        run,
        Annotations(read_only=True, destructive=False, open_world=False),
    )


#: Told after a skill was put in place: who installed it, why.
Installed = Callable[[str, str], Awaitable[None]]


def install_skill_tool(custom: Path, installed: Installed) -> FunctionTool:
    """The tool that puts a skill from the session's folder into the workspace, when an admin says yes.

    `custom` is the workspace's folder of skills.
    """

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        place = locate_for_writing(context, params["path"])
        with tempfile.TemporaryDirectory(prefix="causeway-skill-") as staging:
            try:
                offer = await asyncio.to_thread(_looked_at, place.root / place.relative, Path(staging))
            except InstallError as error:
                raise ToolFailure(
                    f"{place.shown} was not installed.", str(error), "Mend it and try again."
                ) from error
            errors = [str(f) for f in offer.findings if f.severity == "error"]
            if errors:
                raise ToolFailure(
                    f"{offer.name} was not installed.", " ".join(errors[:5]), "Mend this and try again."
                )
            copy = await asyncio.to_thread(replaceable, offer.name, custom)
            if not await _agreed(context, offer, copy is not None):
                raise ToolFailure(
                    f"{offer.name} was not installed.",
                    "The person did not agree.",
                    "Do not try again unasked.",
                )
            await asyncio.to_thread(put, offer, custom, copy)
        await installed(context.caller.id, str(params.get("reason", "")))
        return ToolResult(f"The skill {offer.name} is installed. It is offered from the next message on.")

    return FunctionTool(
        "install_skill",
        "Put a finished skill (a folder with a SKILL.md in this session's folder) into the workspace, for "
        "everybody. The person is shown what it is and asked for a yes. One of that name is replaced; its "
        "old text is kept in the history. Not for single facts or files.",
        schema.arguments(
            ("path",),
            path=schema.text("The skill's folder, such as new-skills/release-notes"),
            reason=schema.text("A word on why, for the history", maxLength=200),
        ),
        run,
        Annotations(read_only=False, destructive=True, open_world=False),
        timeout=360.0,
        admin_only=True,
    )


def _looked_at(source: Path, staging: Path) -> Offer:
    found = contents(fetch(str(source), staging))
    if len(found.offers) != 1:
        raise InstallError(" ".join(found.refused) or "It has to be the folder of one skill.")
    return found.offers[0]


async def _agreed(context: ToolContext, offer: Offer, replaces: bool) -> bool:
    if context.desk is None:
        return False
    about, scripts = clean(offer.skill.description, 500), ", ".join(offer.scripts[:10]) or "-"
    if context.caller.language.lower().startswith("zh"):
        words = (
            f"要为所有人安装技能 {offer.name} 吗?它的说明:{about} 文件:{len(offer.files)};脚本:{scripts}。"
        )
        words += "它会替换同名的技能。" if replaces else ""
    else:
        words = f"Install the skill {offer.name} for everybody? It says of itself: {about}"
        words += f" Files: {len(offer.files)}; scripts: {scripts}."
        words += " It replaces the one of that name." if replaces else ""
    answer = await context.desk.ask(Question(source="install_skill", text=words))
    return answer.action == "accept"
