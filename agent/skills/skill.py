"""A skill, what is known about its state, and the immutable set that agents read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from agent.skills.frontmatter import parse
from agent.skills.requirements import Missing, Requirements
from agent.skills.textfile import decode, read_bytes

Source = Literal["builtin", "custom"]
Severity = Literal["error", "warning", "note"]

#: Where a model finds skills: the read tool maps this to real folders.
VIRTUAL_ROOT = "/skills"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What is wrong, where, and what to do. "error": the skill is not offered as its file stands;
    "warning": it is, but something was repaired or left out; "note": other programs would complain."""

    file: str
    line: int
    reason: str
    cure: str
    severity: Severity = "error"

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.reason}. To mend it: {self.cure}."


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill, without its body.

    `file` and `folder` are real paths with links resolved. `single` marks a root-level `.md`: only that
    file belongs to it, not its folder. `location` is the path that a model reads. `allowed_tools` is None
    when the skill does not say; empty means none.
    """

    name: str
    description: str
    source: Source
    file: Path
    folder: Path
    location: str
    single: bool = False
    user_invocable: bool = True
    model_invocable: bool = True
    default_enabled: bool = True
    allowed_tools: tuple[str, ...] | None = None
    requirements: Requirements = field(default_factory=Requirements)
    setup: str = ""
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)

    @property
    def base_dir(self) -> str:
        """The virtual folder of the skill's files."""
        return f"{VIRTUAL_ROOT}/{self.name}"

    @property
    def root(self) -> Path:
        """What of the disk belongs to the skill: its folder, or for a single-file skill that file."""
        return self.file if self.single else self.folder

    def read_text(self) -> str:
        """The whole file as text. Blocks; raises OSError, also when it has grown over the bound."""
        return decode(read_bytes(self.file))[0]

    def read_body(self) -> str:
        """The instructions below the frontmatter. Blocks; raises OSError."""
        return parse(read_bytes(self.file)).body


@dataclass(frozen=True, slots=True)
class SkillSet:
    """All skills at one moment, in the order of their names; swapped whole, never changed.

    `available` can be used; `unavailable` lacks something; `disabled` is switched off, whatever it lacks.
    """

    available: tuple[Skill, ...] = ()
    unavailable: tuple[tuple[Skill, Missing], ...] = ()
    disabled: tuple[Skill, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    _usable: Mapping[str, Skill] = field(init=False, repr=False, compare=False)
    _all: Mapping[str, Skill] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_usable", {skill.name: skill for skill in self.available})
        object.__setattr__(self, "_all", {skill.name: skill for skill in self})

    def __iter__(self) -> Iterator[Skill]:
        """Every skill, usable or not."""
        yield from self.available
        yield from (skill for skill, _ in self.unavailable)
        yield from self.disabled

    def __len__(self) -> int:
        return len(self._all)

    def get(self, name: str) -> Skill | None:
        """The skill if it can be used now: switched on and lacking nothing."""
        return self._usable.get(name)

    def find(self, name: str) -> Skill | None:
        """The skill in any state."""
        return self._all.get(name)

    def folder(self, name: str) -> Path | None:
        """What the read tool may show under `/skills/<name>`: the real folder of a usable skill, or the
        file itself (not a folder) when the skill is a single file, of which nothing else may be shown."""
        skill = self._usable.get(name)
        return skill.root if skill else None

    def teachable(self, name: str) -> Skill | None:
        """The skill meant by a model that called `name` as a tool: usable, open to models, and of that
        name when `-`, `_`, blanks and case are ignored, since a tool's name cannot hold them all."""
        exact = self._usable.get(name)
        wanted = _loose(name)
        found = [exact] if exact else [skill for skill in self.available if _loose(skill.name) == wanted]
        return found[0] if len(found) == 1 and found[0].model_invocable else None


def _loose(name: str) -> str:
    return re.sub(r"[\s_.-]", "", name).casefold()
