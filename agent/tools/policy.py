"""Who may call which tool, and which calls need a person's yes. Pure: rules, a tool and the people of a turn
go in, an effect comes out.

Rules are looked at together: deny beats ask, ask beats allow, and any of them beats the defaults, which are
the careful ones. Patterns are globs and match the whole name or id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agent.tools.base import Caller, Role, Tool

Effect = Literal["allow", "ask", "deny"]
Nature = Literal["read", "write", "unknown"]

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_READING = frozenset(
    [
        "get",
        "list",
        "search",
        "read",
        "fetch",
        "find",
        "query",
        "describe",
        "show",
        "view",
        "lookup",
        "count",
        "check",
        "status",
        "browse",
        "recall",
        "convert",
        "calculate",
        "compute",
        "translate",
        "summarize",
        "echo",
        "ping",
    ]
)
_WRITING = frozenset(
    [
        "write",
        "create",
        "update",
        "delete",
        "remove",
        "set",
        "put",
        "post",
        "send",
        "insert",
        "edit",
        "modify",
        "patch",
        "move",
        "rename",
        "copy",
        "upload",
        "publish",
        "execute",
        "exec",
        "run",
        "eval",
        "invoke",
        "push",
        "commit",
        "merge",
        "rebase",
        "reset",
        "deploy",
        "install",
        "uninstall",
        "drop",
        "truncate",
        "kill",
        "restart",
        "append",
        "save",
        "approve",
        "reject",
        "cancel",
        "pay",
        "buy",
        "order",
        "transfer",
        "book",
        "schedule",
        "invite",
        "share",
        "grant",
        "revoke",
    ]
)


class PolicyRule(BaseModel):
    """One rule of `tools.policy`. A list that is empty or left out matches everything.

    `tools` are names (`server__tool`), `sources` MCP servers (or `builtin`), `people` ids or
    `channel:id`; `nature` is what the tool does by its annotations, or else by its name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    effect: Effect
    tools: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    chats: tuple[str, ...] = ()
    kinds: tuple[Literal["direct", "group", "channel"], ...] = ()
    roles: tuple[Role, ...] = ()
    people: tuple[str, ...] = ()
    nature: tuple[Nature, ...] = ()
    destructive: bool | None = None
    open_world: bool | None = None
    reason: str = Field(default="", max_length=300)

    def matches(self, tool: Tool, caller: Caller) -> bool:
        notes = tool.annotations
        return (
            _any(self.tools, tool.name)
            and _any(self.sources, tool.source)
            and _any(self.channels, caller.channel)
            and _any(self.chats, caller.chat)
            and (not self.kinds or caller.chat_kind in self.kinds)
            and (not self.roles or caller.role in self.roles)
            and (_any(self.people, caller.id) or _any(self.people, f"{caller.channel}:{caller.id}"))
            and (not self.nature or nature(tool) in self.nature)
            and self.destructive in (None, notes.destructive)
            and self.open_world in (None, notes.open_world)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """`reason` are words for the model; empty when the call is allowed without more ado."""

    effect: Effect
    reason: str = ""


def nature(tool: Tool) -> Nature:
    """What a tool does: by its annotations when its server stated them, else by the verbs of its name."""
    notes = tool.annotations
    if notes.stated:
        return "read" if notes.read_only else "write"
    words = [word.lower() for word in _WORDS.findall(tool.name.rpartition("__")[2])]
    if any(word in _WRITING for word in words):
        return "write"
    return "read" if any(word in _READING for word in words) else "unknown"


class Policy:
    """The rules of one configuration."""

    def __init__(self, rules: Sequence[PolicyRule] = ()) -> None:
        self._rules = tuple(rules)

    def decide(self, tool: Tool, caller: Caller, mounted: frozenset[str] = frozenset()) -> Decision:
        """The strictest of what holds for each person of the turn. `mounted`: servers that an admin has put
        into this session."""
        strictest = Decision("allow")
        for one in caller.everybody:
            if not _is_there(tool, one, mounted):
                return Decision("deny", "Its server is not mounted in this chat.")
            decision = self._decide(tool, one)
            if decision.effect == "deny":
                return decision
            if decision.effect == "ask":
                strictest = decision
        return strictest

    def allowed(self, tool: Tool, caller: Caller, mounted: frozenset[str] = frozenset()) -> bool:
        """Whether the tool is offered to the model in this turn."""
        return self.decide(tool, caller, mounted).effect != "deny"

    def _decide(self, tool: Tool, caller: Caller) -> Decision:
        said = {rule.effect: rule for rule in reversed(self._rules) if rule.matches(tool, caller)}
        if "deny" in said:
            return Decision("deny", said["deny"].reason or "The rules of this bot forbid it here.")
        default = _default(tool, caller)
        if default.effect == "deny" and "allow" not in said and "ask" not in said:
            return default
        if "ask" in said:
            return Decision("ask", said["ask"].reason)
        return Decision("allow") if "allow" in said else default


def _is_there(tool: Tool, caller: Caller, mounted: frozenset[str]) -> bool:
    mount: tuple[str, ...] = getattr(tool, "mount", ())
    return is_mounted(tool.source, mount, getattr(tool, "on_request", False), caller, mounted)


def is_mounted(
    source: str, mount: Sequence[str], on_request: bool, caller: Caller, mounted: frozenset[str]
) -> bool:
    """Whether a server is there for a person in a chat: by its entry's `mount`, and by an admin's where it is
    there only on request."""
    if on_request and source not in mounted:
        return False
    names = (caller.chat_kind, caller.role, caller.channel, f"{caller.channel}:{caller.chat}")
    return not mount or any(fnmatchcase(name, pattern) for pattern in mount for name in names)


def _default(tool: Tool, caller: Caller) -> Decision:
    direct = caller.chat_kind == "direct"
    if tool.admin_only and not caller.admin:
        return Decision("deny", "It is reserved for admins, and the person of this turn is none.")
    if tool.admin_only and not direct:
        # In a group other people's words stand in the same conversation, and the model may act on them.
        return Decision("deny", "It may only be used in a direct chat with an admin, which this is not.")
    kind = nature(tool)
    harmless = tool.source == "builtin" and not tool.annotations.destructive
    if (caller.guest or not direct) and kind != "read" and not harmless:
        where = "guests" if direct else "groups"
        return Decision("deny", f"Only tools that read are offered to {where}.")
    if tool.name == "bash" or (tool.source != "builtin" and kind == "write" and tool.annotations.destructive):
        if getattr(tool, "pre_approved", False):
            return Decision("allow")
        return Decision("ask")
    return Decision("allow")


def _any(patterns: Sequence[str], value: str) -> bool:
    return not patterns or any(fnmatchcase(value, pattern) for pattern in patterns)
