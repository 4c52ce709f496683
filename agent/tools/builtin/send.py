"""`send_file`: give a file of the session's folder to the person."""

from __future__ import annotations

import mimetypes
from typing import Any

from agent.events import FileRef
from agent.tools import paths
from agent.tools.base import Annotations, FunctionTool, ToolContext, ToolFailure, ToolResult
from agent.tools.builtin import schema
from agent.tools.settings import ToolSettings
from agent.tools.workers import Workers


def send_tool(settings: ToolSettings, workers: Workers) -> FunctionTool:
    """The tool. The file itself is read later, when the reply is delivered."""

    async def run(params: dict[str, Any], context: ToolContext) -> ToolResult:
        return await workers.run(lambda: _send(settings, params, context))

    return FunctionTool(
        "send_file",
        "Send a file of this session's folder to the person, together with your reply. Call it once for each "
        "file; the person sees files only this way. Do not write file paths into the reply instead. At most "
        f"{settings.send_bytes // 1_000_000} MB; folders and skills' files cannot be sent.",
        schema.arguments(
            ("path",),
            path=schema.text("Path relative to the session's folder"),
            caption=schema.text("A short text to show with the file", default="", maxLength=1000),
        ),
        run,
        Annotations(read_only=False, destructive=False, open_world=False),
        settings.file_timeout,
    )


def _send(settings: ToolSettings, params: dict[str, Any], context: ToolContext) -> ToolResult:
    place = paths.locate(context, params["path"])
    if place.skill:
        raise ToolFailure(
            f"{place.shown} cannot be sent.",
            "Only files of the session's folder can.",
            "Read it and write a copy to the session's folder first.",
        )
    with paths.open_file(place, settings.send_bytes) as (_, state):
        size = state.st_size
    if size == 0:
        raise ToolFailure(
            f"{place.shown} is empty.", "Chat platforms take no empty files.", "Write it first."
        )
    name = place.parts[-1]
    mime = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return ToolResult(
        f"{place.shown} ({size} bytes) will be sent with your reply.",
        files=(FileRef(place.relative, name, mime, params["caption"]),),
    )
