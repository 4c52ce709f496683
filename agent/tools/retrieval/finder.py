"""`find_tools` looks for a tool among those that are connected but not offered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from agent.skills.formatter import clean
from agent.tools.base import Annotations, FunctionTool, Tool, ToolContext, ToolResult
from agent.tools.builtin import schema
from agent.tools.retrieval.select import BUILTIN, FIND_TOOLS

#: Tools that one search finds.
_MOST = 8
_DESCRIBED = 300
#: Servers that the description names.
_SERVERS = 40

_DESCRIPTION = (
    "Find a tool among those that are connected but not in your list. Use it whenever no listed tool does "
    f"what is needed, before saying that it cannot be done. Returns at most {_MOST} with what they do; "
    "they can be called by their names from your next answer on. Not for files or skills."
)

#: Ranks tools by a text: the best first, only those that fit at all.
Search = Callable[[str, Sequence[Tool]], Awaitable[list[Tool]]]


def find_tools_tool(search: Search, usable: Callable[[ToolContext], Sequence[Tool]]) -> FunctionTool:
    """The tool. `usable` gives the tools that the caller may use in this session."""

    async def run(params: dict[str, object], context: ToolContext) -> ToolResult:
        tools = [tool for tool in usable(context) if tool.source != BUILTIN]
        found = (await search(str(params["query"]), tools))[:_MOST]
        if not found:
            return ToolResult(
                f"No tool fits these words ({len(tools)} were searched{_of_servers(tools)}). Try the words "
                "that such a tool's own description would use, in English, or go on without."
            )
        lines = [f"- {tool.name}: {clean(tool.description, _DESCRIBED)}" for tool in found]
        return ToolResult("\n".join([*lines, "They are in your list now: call the one that fits."]))

    return FunctionTool(
        FIND_TOOLS,
        _DESCRIPTION,
        schema.arguments(
            ("query",),
            query=schema.text("What the tool should do, in a few words: verb, object, service", minLength=1),
        ),
        run,
        Annotations(read_only=True, destructive=False, open_world=False),
    )


def described(tools: Iterable[Tool]) -> str:
    """The description of `find_tools` for these tools: it names their servers, so that a model knows what
    there is to look for."""
    servers = _servers(tools)
    return f"{_DESCRIPTION} Connected: {servers}." if servers else _DESCRIPTION


def _of_servers(tools: Iterable[Tool]) -> str:
    servers = _servers(tools)
    return f", of: {servers}" if servers else ""


def _servers(tools: Iterable[Tool]) -> str:
    names = list(dict.fromkeys(clean(t.source, 40) for t in tools if t.source != BUILTIN))
    more = f" and {len(names) - _SERVERS} more" if len(names) > _SERVERS else ""
    return ", ".join(names[:_SERVERS]) + more
