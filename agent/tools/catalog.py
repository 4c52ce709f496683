"""The immutable set of tools that agents read; swapped whole, never changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import MappingProxyType

from agent.tools.base import Tool


class Catalog:
    """Tools by their unique name, in a stable order: built-in first, then MCP by server and name.

    A later tool never replaces an earlier one of the same name.
    """

    __slots__ = ("_by_name",)

    def __init__(self, tools: Iterable[Tool] = ()) -> None:
        by_name: dict[str, Tool] = {}
        for tool in tools:
            by_name.setdefault(tool.name, tool)
        self._by_name = MappingProxyType(by_name)

    def get(self, name: str) -> Tool | None:
        return self._by_name.get(name)

    def keeping(self, older: Catalog, used: Iterable[str]) -> Catalog:
        """This catalog with those of `older`'s tools at the end that `used` names and this one lacks: what a
        run has used stays offered to its end. The same object when nothing is lacking."""
        if older is self:
            return self
        kept = [tool for name in used if name not in self._by_name and (tool := older.get(name)) is not None]
        return Catalog((*self, *kept)) if kept else self

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._by_name)
