"""`find_skills`: looks for a skill that found no room in the prompt. Only offered when there is one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agent.skills.formatter import clean
from agent.skills.skill import SkillSet
from agent.skills.words import ranked
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolResult
from agent.tools.builtin import schema

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
