"""A place with two skill sources for tests: real folders, a real manager, an environment to change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent.skills.manager import SkillManager


def text(name: str, description: str = "Does it. Use when asked.", *more: str, body: str = "Do it.") -> str:
    return "\n".join(["---", f"name: {name}", f"description: {description}", *more, "---", "", body, ""])


def put(path: Path, content: str | bytes) -> Path:
    """Write a file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@dataclass
class Shop:
    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    programs: set[str] = field(default_factory=set)
    platform: str = "Linux"
    now: float = 1_000_000_000.0

    @property
    def builtin(self) -> Path:
        return self.root / "builtin"

    @property
    def custom(self) -> Path:
        return self.root / "workspace" / "skills"

    @property
    def config(self) -> Path:
        return self.custom / "skills_config.json"

    def skill(self, folder: str, content: str | bytes | None = None, *, source: str = "custom") -> Path:
        base = self.custom if source == "custom" else self.builtin
        return put(base / folder / "SKILL.md", text(Path(folder).name) if content is None else content)

    def manager(self, which: Callable[[str], str | None] | None = None) -> SkillManager:
        self.builtin.mkdir(exist_ok=True)
        return SkillManager(
            self.builtin,
            self.custom,
            environ=lambda: dict(self.environ),
            platform=self.platform,
            which=which or (lambda name: f"/bin/{name}" if name in self.programs else None),
            clock=lambda: self.now,
        )


def names(skills: object) -> list[str]:
    """The names in a part of a SkillSet."""
    return [getattr(item, "name", None) or item[0].name for item in skills]  # type: ignore[attr-defined,index]


def symlink(link: Path, target: str | Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
