"""How often each skill was offered, read and used: what is never used can go, what is never read is badly
described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MAX_COUNTED = 2_000
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Count:
    """`offered`: runs whose prompt listed it; `read`: its file read by a model; `used`: called by a person
    with `/skill`, or taught to a model that called it as a tool."""

    offered: int = 0
    read: int = 0
    used: int = 0

    def __str__(self) -> str:
        return f"offered {self.offered}, read {self.read}, used {self.used}"


class SkillCounts:
    """Counts of one process, continued from what was saved. For one event loop; every call is short."""

    def __init__(self, saved: Any = None) -> None:
        self._counts: dict[str, list[int]] = {}
        self.load(saved)

    def load(self, saved: Any) -> None:
        """Add what `saved()` once gave. What is not of that form is passed over."""
        skills = saved.get("skills") if isinstance(saved, Mapping) and saved.get("v") == _VERSION else None
        for name, values in skills.items() if isinstance(skills, Mapping) else ():
            right = isinstance(values, list) and all(type(v) is int and v >= 0 for v in values)
            if right and len(values) == 3:
                for kind, value in enumerate(values):
                    self._add(str(name), kind, value)

    def saved(self) -> dict[str, Any]:
        """Plain JSON to keep."""
        return {"v": _VERSION, "skills": {name: list(values) for name, values in self._counts.items()}}

    def since(self, before: Any) -> dict[str, Any]:
        """What was counted after `saved()` gave `before`, in the same form."""
        known, news = SkillCounts(before)._counts, SkillCounts()
        for name, values in self._counts.items():
            for kind, (now, then) in enumerate(zip(values, known.get(name, (0, 0, 0)), strict=True)):
                if now > then:
                    news._add(name, kind, now - then)
        return news.saved()

    def offered(self, names: Iterable[str]) -> None:
        for name in names:
            self._add(name, 0)

    def read(self, name: str) -> None:
        self._add(name, 1)

    def used(self, name: str) -> None:
        self._add(name, 2)

    def of(self, name: str) -> Count:
        return Count(*self._counts.get(name, (0, 0, 0)))

    def _add(self, name: str, kind: int, value: int = 1) -> None:
        if name not in self._counts and len(self._counts) >= MAX_COUNTED:
            # Forget the tenth that matters least: those hardly read or used.
            least = sorted(self._counts, key=lambda name: (sum(self._counts[name][1:]), name))
            for old in least[: MAX_COUNTED // 10]:
                del self._counts[old]
        self._counts.setdefault(name, [0, 0, 0])[kind] += value
