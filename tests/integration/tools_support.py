"""What the tests of tools share: a session's folder with a secret next to it, and calls by name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.tools.base import Caller, ToolContext, ToolResult
from agent.tools.manager import ToolManager

SECRET = "the-secret-outside"


@dataclass(slots=True)
class Bench:
    """A manager, and the session for which calls are made."""

    manager: ToolManager
    context: ToolContext
    outside: Path

    @property
    def folder(self) -> Path:
        return self.context.folder

    async def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return await self.manager.call(self.manager.catalog, name, "call-1", arguments, self.context)

    async def refused(self, name: str, /, **arguments: Any) -> str:
        """The text of a call that must fail; it names no path of this machine."""
        result = await self.call(name, **arguments)
        assert result.is_error, result.text
        assert SECRET not in result.text
        assert not result.files
        assert not result.images
        given = " ".join(str(value) for value in arguments.values())
        if str(self.outside) not in given:
            assert str(self.outside) not in result.text
        return result.text

    async def fine(self, name: str, /, **arguments: Any) -> str:
        result = await self.call(name, **arguments)
        assert not result.is_error, result.text
        return result.text

    def as_caller(self, caller: Caller) -> None:
        self.context = replace(self.context, caller=caller)


def make_context(root: Path, caller: Caller) -> ToolContext:
    """A session's folder, `secret.txt` outside of it, and the skills `notes` and `single` (one file)."""
    folder = root / "sessions" / "s1"
    folder.mkdir(parents=True)
    (root / "secret.txt").write_text(SECRET)
    skill = root / "skills" / "notes"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("# Notes\nHow to take notes.\n")
    (skill / "more").mkdir()
    (skill / "more" / "form.txt").write_text("form for notes\n")
    (root / "skills" / "single.md").write_text("# Single\n")
    skills = {"notes": skill, "single": root / "skills" / "single.md"}
    return ToolContext("s1", "r1", folder, caller, skills.get)
