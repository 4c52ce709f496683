"""The contract of a tool. Built-in and MCP tools look the same to whoever calls them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from agent.events import FileRef
from agent.history import ImageRef

Role = Literal["admin", "member", "guest"]


@dataclass(frozen=True, slots=True)
class Annotations:
    """What a tool does to the world. Defaults are the careful ones of the MCP specification; `stated` is
    False when the tool's server said nothing."""

    read_only: bool = False
    destructive: bool = True
    open_world: bool = True
    stated: bool = True


@dataclass(frozen=True, slots=True)
class Caller:
    """The person for whom a call is made, in this turn. `others` are further people whose messages the same
    run answers: a call has to be allowed to each of them."""

    id: str
    name: str = ""
    admin: bool = False
    channel: str = ""
    chat_kind: Literal["direct", "group", "channel"] = "direct"
    language: str = ""
    chat: str = ""
    guest: bool = False
    others: tuple[Caller, ...] = ()

    @property
    def role(self) -> Role:
        return "admin" if self.admin else "guest" if self.guest else "member"

    @property
    def standing(self) -> tuple[str, ...]:
        """All that rules look at."""
        return self.id, self.role, self.channel, self.chat_kind, self.chat

    @property
    def everybody(self) -> tuple[Caller, ...]:
        return (self, *self.others)

    def joined(self, other: Caller) -> Caller:
        """The same turn with other people's messages in it; those of one person from another kind of chat,
        or in another role, count as well."""
        known = {one.standing for one in self.everybody}
        new = tuple(replace(one, others=()) for one in other.everybody if one.standing not in known)
        return replace(self, others=(*self.others, *new)) if new else self


@dataclass(frozen=True, slots=True)
class Question:
    """Something that the person has to be asked while a call waits.

    `source` is who asks (an MCP server's name), `text` is in its words. `schema` is a JSON Schema of a flat
    object (strings, numbers, booleans, choices) that the answer must fit; empty: only yes or no. `url` is a
    page to open instead of a form. `deadline` is in seconds; no answer until then is a "cancel".
    """

    source: str
    text: str
    schema: dict[str, Any] = field(default_factory=dict)
    url: str = ""
    deadline: float = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the person said. `values` fits the question's schema when `action` is "accept"."""

    action: Literal["accept", "decline", "cancel"]
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """A server asks for text from the configured model. `messages` are (role, text) pairs, oldest first."""

    source: str
    messages: tuple[tuple[Literal["user", "assistant"], str], ...]
    system: str = ""
    max_tokens: int = 1000


class Desk(Protocol):
    """What a call may ask of the chat for which it runs. Bound to one call."""

    async def ask(self, question: Question) -> Answer:
        """Put a question into the chat and wait for the answer. Never raises but CancelledError."""
        ...

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Tell how far the call is. Returns at once; may be called often (it is thinned out)."""
        ...

    async def sample(self, sample: Sample) -> str:
        """The model's answer to a server's request. Raises ToolFailure when that is switched off, over the
        budget, or failing."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a call may touch.

    `folder` is the session's own folder (created before the first call): the only place a tool may write,
    and the base of relative paths. `skill_folder` maps a skill's name to its folder, or None for a name
    that this caller may not use. `call` is the call's id; `desk` leads to the chat (None: nobody is there
    to be asked).
    """

    session: str
    run: str
    folder: Path
    caller: Caller
    skill_folder: Callable[[str], Path | None]
    call: str = ""
    desk: Desk | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call brought. An error's text says what happened, why, and what to try: never a stack trace.

    `files` are shown to the person with the reply, `images` are shown to the model; both lie in the
    session's folder, paths relative to it.
    """

    text: str
    is_error: bool = False
    files: tuple[FileRef, ...] = ()
    images: tuple[ImageRef, ...] = ()


class Tool(Protocol):
    """One tool. It never changes once a catalog holds it.

    `timeout` is the deadline of a call in seconds. `source` is "builtin" or the MCP server's name.
    """

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def params(self) -> dict[str, Any]: ...
    @property
    def annotations(self) -> Annotations: ...
    @property
    def timeout(self) -> float: ...
    @property
    def source(self) -> str: ...
    @property
    def admin_only(self) -> bool: ...

    async def execute(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        """Run the call. Cancelling it ends whatever it started (processes, requests) before it returns."""
        ...


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A tool made from a coroutine function: what most built-in tools are."""

    name: str
    description: str
    params: dict[str, Any]
    run: Callable[[dict[str, Any], ToolContext], Awaitable[ToolResult]]
    annotations: Annotations = field(default_factory=Annotations)
    timeout: float = 30.0
    source: str = "builtin"
    admin_only: bool = False

    async def execute(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        return await self.run(params, context)


class ToolFailure(Exception):
    """Raised inside a tool for a failure that the model should read; becomes an error result."""

    def __init__(self, what: str, why: str = "", cure: str = "") -> None:
        super().__init__(" ".join(part for part in (what, why, cure) if part))
