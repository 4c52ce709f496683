"""`task_status`: how a call that became a background task stands, or its result."""

from __future__ import annotations

from typing import Any

from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolResult
from agent.tools.builtin import schema
from agent.tools.tasks import Tasks

NAME = "task_status"
_LONGEST_WAIT = 120


def task_tool(tasks: Tasks) -> FunctionTool:
    """The tool. It is offered only beside tools whose calls may become tasks."""

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return await tasks.poll(context, params["task"], float(params["wait"]), stop=params["stop"])

    return FunctionTool(
        NAME,
        "Get the result of a background task, or how it stands. A call that takes long gives you a task id "
        "instead of its result; use this tool with that id. It waits for the end or for news. A task without "
        "news for three looks in a row is ended. With stop you end a task that is not needed any more.",
        schema.arguments(
            ("task",),
            task=schema.text("The id, such as task-1a2b3c4d", maxLength=100),
            wait=schema.integer("Seconds to wait for news", 30, 1, _LONGEST_WAIT),
            stop=schema.flag("End the task"),
        ),
        run,
        Annotations(read_only=True, destructive=False, open_world=False),
        _LONGEST_WAIT + 15.0,
    )
